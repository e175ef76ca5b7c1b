"""Earlier episodes of the run beside new ones: rollout strategy `replay`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from vlrl.algorithms.rollout_common import Share, begins_turns, evaluated, groups_accuracy, replayed
from vlrl.algorithms.rollout_filtering import Repeating, WonEpisode, repeated, success_of
from vlrl.algorithms.samplers import Shuffled
from vlrl.config import Count
from vlrl.episode_store import EpisodeBuffer, recorded_read
from vlrl.methods import RolloutStrategy, method
from vlrl.rollout import collect, plain
from vlrl.types import Episode, Policy, Sample, UserError

Perplexity = Annotated[float, Field(ge=1, allow_inf_nan=False)]


@method(
    reads=("all_turns",),
    lacks=("group", "sampled"),
    source="replay of all episodes: github.com/DigiRL-agent/digirl, arXiv 2406.11896; of successes by the actor's "
    "confidence: WebRL, 2411.02337",
)
class ReplayRollouts(RolloutStrategy):
    """New episodes, and earlier ones of the run among them: where playing is dear, each is learned from several times.

    The earlier ones are drawn at random, none twice in a step, before the new ones are remembered. To the loss they
    look as if the present policy had just written them; each is a group of its own.

    Args:
        earlier: so many for each new one, as soon as there are as many.
        capacity: episodes to remember; the oldest make room. They are in every checkpoint, images and all.
        only: `won` remembers successes alone, as WebRL does.
        perplexity: least and most perplexity of an earlier action under the present policy, `exp(-mean log p)` over
            its tokens; others earn no credit: what the policy is sure of teaches nothing, what it would never do is
            noise. WebRL: 1 / 0.95 and 1 / 0.5.
    """

    def __init__(
        self, policy: Policy, task: Any, seed: int, *, earlier: Count = 3, capacity: Count = 2000,
        only: Literal["all", "won"] = "all", perplexity: tuple[Perplexity, Perplexity] | None = None,
    ):  # fmt: skip
        if perplexity is not None and perplexity[0] > perplexity[1]:
            raise UserError(f"rollout_strategy.perplexity: {list(perplexity)}: the least first, then the most")
        self.seed, self.earlier, self.memory = seed, earlier, EpisodeBuffer(capacity)
        self.only, self.perplexity = only, perplexity

    def __call__(
        self, policy: Policy, task: Any, samples: Sequence[Sample], group_size: int, step: int, **act: Any
    ) -> list[Episode]:
        act["keep"] = False  # a prefill that is kept serves one evaluation, and the earlier ones need it first
        new = plain(policy, task, samples, group_size, step, **act)
        past = self._past(policy, task, len(new) * self.earlier, step)
        for number, episode in enumerate(past, start=len(samples)):
            episode.group = number
        self.memory.add([e for e in new if e.score.is_correct or self.only == "all"])
        turns = [turn.decision for episode in past for turn in episode.turns]
        self.metrics = {
            "replay/new_accuracy": sum(e.score.correct for e in new) / len(new), "replay/earlier": float(len(past)),
            "replay/credited": sum(d.forced_mask is None for d in turns) / max(1, len(turns)),
        }  # fmt: skip
        return [*new, *past]

    def _past(self, policy: Policy, task: Any, count: int, step: int) -> list[Episode]:
        """Up to `count` remembered episodes: known from the step's number and the memory."""
        kept = self.memory.episodes()
        places = np.random.default_rng([self.seed, step]).permutation(len(kept))[:count].tolist()
        past = evaluated(policy, [replayed(policy, task, kept, i) for i in places])
        return past if self.perplexity is None else [between(episode, *self.perplexity) for episode in past]

    def state_dict(self) -> dict[str, Any]:
        return self.memory.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.memory.load_state_dict(state)


replay = ReplayRollouts


def between(episode: Episode, least: float, most: float) -> Episode:
    """The episode, of which only actions with a perplexity within the bounds earn credit."""
    turns = []
    for turn in episode.turns:
        perplexity = float((-turn.decision.logprobs.double().mean()).exp())
        is_near = least <= perplexity <= most
        turns.append(turn if is_near else replace(turn, decision=turn.decision.without_credit()))
    return replace(episode, turns=turns)


# Recorded episodes before new ones: rollout strategy `offline_first`.


@method(reads=("all_turns",), lacks=("sampled",), source="offline to online: DigiRL, arXiv 2406.11896")
class OfflineFirst(RolloutStrategy):
    """Recorded episodes during the first steps, then plain ones.

    As many a step as would be played, in shuffled epochs over the folder. To the loss they look as if the present
    policy had just written them: their log-probabilities are its own. Episodes of one sample make a group.

    Args:
        episodes: a folder that `vlrl record` wrote, with a policy that reads and writes the same coordinates.
        steps: training steps on it.
    """

    def __init__(self, policy: Policy, task: Any, seed: int, *, episodes: str, steps: Count):
        self.recorded, self.seed, self.steps = recorded_read(episodes), seed, steps
        replayed(policy, task, self.recorded, 0)  # what does not fit shows before anything is written

    def __call__(
        self, policy: Policy, task: Any, samples: Sequence[Sample], group_size: int, step: int, **act: Any
    ) -> list[Episode]:
        offline = step < self.steps
        self.metrics = {"offline": float(offline)}
        if not offline:
            return plain(policy, task, samples, group_size, step, **act)
        episodes = [
            replayed(policy, task, self.recorded, i) for i in self._draw_positions(len(samples) * group_size, step)
        ]
        numbers: dict[str, int] = {}
        for episode in episodes:
            episode.group = numbers.setdefault(episode.sample.id, len(numbers))
        return evaluated(policy, episodes)

    def _draw_positions(self, count: int, step: int) -> list[int]:
        """The positions that a sampler would draw in this step: known from the step's number alone."""
        order = Shuffled(len(self.recorded), self.seed)
        order.epoch, order.position = divmod(step * count, len(self.recorded))
        return order.draw(count)


offline_first = OfflineFirst


# Episodes that begin in the middle of an earlier success: rollout strategy `snapshots`.


@method(
    reads=("truth",),
    check_recipe=begins_turns("begins between two turns", "plain"),
    source="Snapshot RL, arXiv 2403.00673; github.com/sdpkjc/snapshotrl, src/snapshot_ppo_fix_mujoco.py; starts along "
    "one demonstration: 1812.03381",
)
class Snapshots(RolloutStrategy):
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
        if not policy.can_decide:
            raise UserError(
                "rollout_strategy: snapshots repeats actions, which this policy cannot take for its own: use plain"
            )
        self.task, self.seed, self.share, self.steps, self.capacity = task, seed, share, steps, capacity
        self.known: dict[str, WonEpisode] = {}  # by sample, the oldest first

    def __call__(
        self, policy: Policy, task: Any, samples: Sequence[Sample], group_size: int, step: int, **act: Any
    ) -> list[Episode]:
        if self.steps is not None and step >= self.steps:
            self.metrics = {}
            return plain(policy, task, samples, group_size, step, **act)
        act["keep"] = False  # a prefill that is kept knows nothing of decisions that were repeated
        begins = self._draw_starts(len(samples), step)
        asked = [begin.sample if begin else sample for begin, sample in zip(begins, samples, strict=True)]
        episodes = collect(Repeating(policy, begins), task, asked, group_size, **act)
        self.metrics = _start_metrics(episodes, begins) | {"snapshots/known": float(len(self.known))}
        self._remember(episodes)
        return episodes

    def _draw_starts(self, count: int, step: int) -> list[WonEpisode | None]:
        """What each group begins with: known from the step's number and what is remembered."""
        rng, known = np.random.default_rng([self.seed, step]), list(self.known.values())

        def one() -> WonEpisode | None:
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
            name: WonEpisode(sample[name], keys, actions if isinstance(actions, list) else actions.numpy())
            for name, keys, actions in state["known"]
        }

    def _samples(self, names: set[str]) -> dict[str, Sample]:
        """The prompts of these names, which a checkpoint does not hold."""
        samples_by_id: dict[str, Sample] = {}
        for sample in self.task.samples("train") if self.pool is None else self.pool:
            if len(samples_by_id) == len(names):
                break
            if sample.id in names:
                samples_by_id[sample.id] = sample
        if missing := sorted(names - samples_by_id.keys()):
            raise UserError(
                f"rollout_strategy: snapshots: sample {missing[0]}, which was won, is gone: put the data back"
            )
        return samples_by_id


snapshots = Snapshots


def _start_metrics(episodes: Sequence[Episode], begins: Sequence[WonEpisode | None]) -> dict[str, float]:
    """How many episodes were begun so and how far, and how each kind went."""
    planned = [len(begin.seen) if begin else 0 for begin in (begins[episode.group] for episode in episodes)]
    lengths = [min(repeated(e), most) for e, most in zip(episodes, planned, strict=True)]
    continued = [e for e, count in zip(episodes, lengths, strict=True) if count]
    whole = [e for e, count in zip(episodes, lengths, strict=True) if not count]
    return {
        "snapshots/share": len(continued) / len(episodes), "snapshots/turns": sum(lengths) / max(1, len(continued)),
        "snapshots/lost": 1 - sum(lengths) / max(1, sum(planned)) if sum(planned) else 0.0,
        **({"snapshots/begun_accuracy": groups_accuracy(continued)} if continued else {}),
        **({"snapshots/whole_accuracy": groups_accuracy(whole)} if whole else {}),
    }  # fmt: skip
