"""A fixed number of new tokens a step, long completions going on in the next: rollout strategy `window`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from vlrl.methods import method
from vlrl.strategies.written import played, remembered, written
from vlrl.strict import Count
from vlrl.types import MALFORMED, Decision, Episode, Policy, Sample, Score, Step, Turn, UserError

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, eq=False)
class Open:
    """A completion under way, with the values of its tokens [n] when they were written."""

    sample: Sample
    group: int  # which prompt of the run it answers, counting from 0
    tokens: tuple[int, ...]
    logprobs: Tensor
    entropy: Tensor


@method(lacks=("group",), source="successive batches of T-PPO, arXiv 2506.15050; the filling of places is ours")
class Window:
    """At most `tokens` new tokens of each completion a step; what is not finished goes on in the next one.

    A step has prompts x group_size places. Completions under way keep theirs and go on from their own tokens, which are
    forced, with the log-probabilities that they had: only new ones are trained. What a completion finishes with makes
    room, and new prompts enter with their whole group as soon as it fits; of what the sampler drew the first do, the
    others are left out until they are drawn again. A completion ends at the last whole window in policy.max_tokens.

    An unfinished completion is an episode without a reward yet, cut by the window (`Rollouts.cut`): parts of the reward
    and accuracy are 0 there, and `window/accuracy` in the log is that of finished ones. `egae` knows what to make of
    it. Members of a group end in different steps, so that groups cannot be compared.

    Raises:
        UserError: the policy writes no text; not two windows in policy.max_tokens; the task shows other prompts than
            its samples'; a run is resumed whose samples are gone.
    """

    def __init__(self, policy: Policy, task: Any, seed: int, *, tokens: Count):
        if not hasattr(policy, "token_states"):
            raise UserError("rollouts: window goes on writing texts, but this policy writes none: use plain")
        if 2 * tokens > policy.max_tokens:
            raise UserError(f"rollouts: window: tokens: at most half of policy.max_tokens = {policy.max_tokens}")
        self.tokens, self.last = tokens, policy.max_tokens // tokens * tokens
        self.open: list[Open] = []
        self.groups = 0  # begun so far
        self.played = 0  # completions that the latest step began: each is counted once
        self.pool: Sequence[Sample] | None = None  # the sampler's prompts; None: all training samples
        self._all = lambda: task.samples("train")
        self.metrics: dict[str, float] = {}

    def __call__(
        self, policy: Policy, task: Any, samples: Sequence[Sample], group_size: int, step: int, **act: Any
    ) -> list[Episode]:
        act.pop("keep", None)  # a prefill that is kept serves completions from their beginning
        begun = self._begun(samples, group_size)
        under_way, self.played = [*self.open, *begun], len(begun)
        decisions = self._written(policy, under_way, act)
        goes_on = [d.cut and len(d.inputs.tokens) < self.last for d in decisions]
        pairs = list(zip(under_way, decisions, strict=True))
        ended = iter(_played(policy, task, [p for p, more in zip(pairs, goes_on, strict=True) if not more]))
        episodes = [unfinished(*pair, task) if more else next(ended) for pair, more in zip(pairs, goes_on, strict=True)]
        self._tell(episodes, goes_on, len(samples) * group_size)
        self.open = [
            replace(part, tokens=d.inputs.tokens, logprobs=d.logprobs, entropy=d.entropy)
            for (part, d), more in zip(pairs, goes_on, strict=True)
            if more
        ]
        return episodes

    def _begun(self, samples: Sequence[Sample], group_size: int) -> list[Open]:
        """The first of the samples, as many whole groups as there is room for."""
        import torch

        room = (len(samples) * group_size - len(self.open)) // group_size
        first, nothing = self.groups, torch.zeros(0)
        self.groups += room
        return [
            Open(sample, first + i, (), nothing, nothing)
            for i, sample in enumerate(samples[:room])
            for _ in range(group_size)
        ]

    def _written(self, policy: Any, under_way: Sequence[Open], act: dict[str, Any]) -> list[Decision]:
        """One more window of each."""
        begun = [part.tokens for part in under_way] if self.open else None
        made = written(policy, [part.sample for part in under_way], act, begun, self.tokens)
        return [remembered(d, part.logprobs, part.entropy) for d, part in zip(made, under_way, strict=True)]

    def _tell(self, episodes: Sequence[Episode], goes_on: Sequence[bool], places: int) -> None:
        ended = [episode for episode, more in zip(episodes, goes_on, strict=True) if not more]
        self.metrics = {"window/finished": len(ended) / len(episodes), "window/filled": len(episodes) / places}
        if ended:
            self.metrics["window/accuracy"] = sum(e.score.correct for e in ended) / len(ended)
            self.metrics["window/reward"] = sum(e.reward for e in ended) / len(ended)

    def state_dict(self) -> dict[str, Any]:
        kept = [vars(part) | {"sample": part.sample.id, "tokens": list(part.tokens)} for part in self.open]
        return {"open": kept, "groups": self.groups}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        samples = found(self._all() if self.pool is None else self.pool, {row["sample"] for row in state["open"]})
        self.open = [
            Open(**row | {"sample": samples[row["sample"]], "tokens": tuple(row["tokens"])}) for row in state["open"]
        ]
        self.groups = state["groups"]


window = Window


def unfinished(part: Open, decision: Decision, task: Any) -> Episode:
    """An episode that the window has cut: no reward yet."""
    shown, nothing = part.sample.prompt, {name: 0.0 for name in task.weights if name != MALFORMED}
    turn = Turn(shown, decision, Step(shown, cut=True))
    return Episode(part.sample, part.group, [turn], Score(nothing, 0.0))


def found(samples: Sequence[Sample], wanted: set[str]) -> dict[str, Sample]:
    """The samples of these ids.

    Raises:
        UserError: one is gone.
    """
    of: dict[str, Sample] = {}
    for sample in samples if wanted else ():
        if sample.id in wanted:
            of[sample.id] = sample
            if len(of) == len(wanted):
                break
    if lost := sorted(wanted - set(of)):
        raise UserError(f"rollouts: window: sample {lost[0]}, whose answer was under way, is gone: give back its data")
    return of


def _played(policy: Any, task: Any, pairs: Sequence[tuple[Open, Decision]]) -> list[Episode]:
    """Finished completions as scored episodes."""
    episodes = played(policy, task, [part.sample for part, _ in pairs], [d for _, d in pairs], "window")
    return [replace(e, group=part.group) for e, (part, _) in zip(episodes, pairs, strict=True)]
