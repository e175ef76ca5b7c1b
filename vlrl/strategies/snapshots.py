"""Episodes that begin in the middle of an earlier success: rollout strategy `snapshots`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from vlrl.methods import method
from vlrl.rollout import collect
from vlrl.strategies import plain
from vlrl.strategies.groups import accuracy
from vlrl.strategies.hints import Share
from vlrl.strategies.repeated import Repeating, Success, repeated, success_of
from vlrl.strict import Count
from vlrl.types import Episode, Policy, Sample, UserError


@method(
    source="Snapshot RL, arXiv 2403.00673; github.com/sdpkjc/snapshotrl, src/snapshot_ppo_fix_mujoco.py; starts along "
    "one demonstration: 1812.03381"
)
class Snapshots:
    """A `share` of the groups begins in the middle of an episode that was won earlier in the run, as from a snapshot.

    Which of them, and after how many of its turns, is drawn evenly; its prompt takes the place of one that the sampler
    drew, and the whole group begins alike. So the policy learns the end of a long job before it finds the way there.
    The state is reached by doing again what was done, as a simulator, a page or a dialogue that begins from one seed
    allows: this takes the environment's time, but nothing is written for it. What is repeated earns no credit. Where a
    turn shows something else than it did then, the policy goes on from there by itself; `snapshots/lost` says how
    often. Rewards of such groups are easier to come by: `snapshots/whole_accuracy` is of the others.

    The published code begins every episode of training's first tenth in a state of a teacher's best, evenly over
    clusters of the values that the teacher gives them, and breaks it off after 100 ticks, which would leave a job that
    pays at its end without a reward. The run's own successes are ours; `guide_turns` begins by a script.

    Args:
        steps: training steps in which there are such groups; null: all.
        capacity: won episodes to remember, the latest of each prompt; the oldest make room.

    Raises:
        UserError: the policy cannot take a given action for its own; of a resumed run, a prompt is gone.
    """

    def __init__(
        self, policy: Policy, task: Any, seed: int, *,
        share: Share = 0.5, steps: Count | None = None, capacity: Count = 1000,
    ):  # fmt: skip
        if not hasattr(policy, "decide"):
            raise UserError("rollouts: snapshots repeats actions, which this policy cannot take for its own: use plain")
        self.task, self.seed, self.share, self.steps, self.capacity = task, seed, share, steps, capacity
        self.pool: Sequence[Sample] | None = None  # the sampler's prompts; None: all training samples
        self.known: dict[str, Success] = {}  # by sample, the oldest first
        self.metrics: dict[str, float] = {}

    def __call__(
        self, policy: Policy, task: Any, samples: Sequence[Sample], group_size: int, step: int, **act: Any
    ) -> list[Episode]:
        if self.steps is not None and step >= self.steps:
            self.metrics = {}
            return plain(policy, task, samples, group_size, step, **act)
        act["keep"] = False  # a prefill that is kept knows nothing of decisions that were repeated
        begins = self._drawn(len(samples), step)
        asked = [begin.sample if begin else sample for begin, sample in zip(begins, samples, strict=True)]
        episodes = collect(Repeating(policy, begins), task, asked, group_size, **act)
        self.metrics = _told(episodes, begins) | {"snapshots/known": float(len(self.known))}
        self._remember(episodes)
        return episodes

    def _drawn(self, count: int, step: int) -> list[Success | None]:
        """What each group begins with: known from the step's number and what is remembered."""
        rng, known = np.random.default_rng([self.seed, step]), list(self.known.values())

        def one() -> Success | None:
            if not known or rng.random() >= self.share:
                return None
            success = known[int(rng.integers(len(known)))]
            return success.first(int(rng.integers(1, len(success.seen))))

        return [one() for _ in range(count)]

    def _remember(self, episodes: Iterable[Episode]) -> None:
        for episode in episodes:
            if episode.score.correct >= 1 and len(episode.turns) > 1:  # of one turn nothing lies in the middle
                self.known.pop(episode.sample.id, None)
                self.known[episode.sample.id] = success_of(episode)
        for oldest in list(self.known)[: len(self.known) - self.capacity]:
            del self.known[oldest]

    def state_dict(self) -> dict[str, Any]:
        import torch

        def plainly(actions: Sequence[str] | np.ndarray) -> Any:
            return torch.from_numpy(actions) if isinstance(actions, np.ndarray) else list(actions)

        return {"known": [[name, list(s.seen), plainly(s.actions)] for name, s in self.known.items()]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        sample = self._samples({name for name, *_ in state["known"]})
        self.known = {
            name: Success(sample[name], seen, actions if isinstance(actions, list) else actions.numpy())
            for name, seen, actions in state["known"]
        }

    def _samples(self, names: set[str]) -> dict[str, Sample]:
        """The prompts of these names, which a checkpoint does not hold."""
        found: dict[str, Sample] = {}
        for sample in self.task.samples("train") if self.pool is None else self.pool:
            if len(found) == len(names):
                break
            if sample.id in names:
                found[sample.id] = sample
        if missing := sorted(names - found.keys()):
            raise UserError(f"rollouts: snapshots: sample {missing[0]}, which was won, is gone: put the data back")
        return found


snapshots = Snapshots


def _told(episodes: Sequence[Episode], begins: Sequence[Success | None]) -> dict[str, float]:
    """How many episodes were begun so and how far, and how each kind went."""
    planned = [len(begin.seen) if begin else 0 for begin in (begins[episode.group] for episode in episodes)]
    given = [min(repeated(e), most) for e, most in zip(episodes, planned, strict=True)]
    begun = [e for e, count in zip(episodes, given, strict=True) if count]
    whole = [e for e, count in zip(episodes, given, strict=True) if not count]
    return {
        "snapshots/share": len(begun) / len(episodes), "snapshots/turns": sum(given) / max(1, len(begun)),
        "snapshots/lost": 1 - sum(given) / max(1, sum(planned)) if sum(planned) else 0.0,
        **({"snapshots/begun_accuracy": accuracy(begun)} if begun else {}),
        **({"snapshots/whole_accuracy": accuracy(whole)} if whole else {}),
    }  # fmt: skip
