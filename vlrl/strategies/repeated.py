"""Earlier successes, whose first turns are repeated to come back to where they went through."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from vlrl import exhausted
from vlrl.types import Decision, Episode, Observation, Sample


@dataclass(frozen=True, eq=False)
class Success:
    """A won episode of n turns, or its beginning: per turn what was seen, as a key, and what was done."""

    sample: Sample
    seen: Sequence[str]  # [n]
    actions: Sequence[str] | np.ndarray  # [n] texts, or float32 [n, K, A]

    def first(self, count: int) -> Success:
        return replace(self, seen=self.seen[:count], actions=self.actions[:count])


def success_of(episode: Episode) -> Success:
    """An episode as it would be repeated."""
    actions = [turn.decision.action for turn in episode.turns]
    numbers = not isinstance(actions[0], str)
    seen = [key_of(turn.observation) for turn in episode.turns]
    return Success(episode.sample, seen, np.stack(actions) if numbers else actions)


def key_of(shown: Observation) -> str:
    """A key of what is shown, the body's state included: equal for equal ones, in every process."""
    from vlrl.batch import done, seen

    return seen(shown) if shown.state is None else f"{seen(shown)} {done(shown.state)}"


class Repeating:
    """Stands in for a policy: each group's episodes repeat a beginning, and the policy goes on.

    A turn is repeated where its episode shows what was seen then; from the first one on that shows something else the
    policy takes its own decisions, so that an environment that does not repeat itself costs the beginning alone.

    Args:
        begins: of each group; None: the policy plays from the start.
    """

    def __init__(self, policy: Any, begins: Sequence[Success | None]):
        self._policy, self._begins = policy, begins

    def __getattr__(self, name: str) -> Any:
        return getattr(self._policy, name)

    def act(self, episodes: Sequence[Episode], observations: Sequence[Observation], **options: Any) -> list[Decision]:
        made = [self._repeated(*each) for each in zip(episodes, observations, strict=True)]
        own = [i for i, decision in enumerate(made) if decision is None]
        if own:
            asked, shown = [episodes[i] for i in own], [observations[i] for i in own]
            for i, decision in zip(own, exhausted.act(self._policy, asked, shown, **options), strict=True):
                made[i] = decision
        return made

    def _repeated(self, episode: Episode, shown: Observation) -> Decision | None:
        """The decision that was taken here, all of it forced; None: the policy's turn."""
        begin, number = self._begins[episode.group], len(episode.turns)
        if begin is None or number >= len(begin.seen) or repeated(episode) < number:
            return None
        if begin.seen[number] != key_of(shown):
            return None
        action = begin.actions[number]
        decision = self._policy.decide(shown, action, key=f"{episode.sample.id}, turn {number + 1}")
        return replace(decision, action=action, forced=decision.logprobs.new_ones(len(decision.logprobs)).bool())


def repeated(episode: Episode) -> int:
    """How many of an episode's first turns were repeated."""
    return next((i for i, turn in enumerate(episode.turns) if turn.decision.forced is None), len(episode.turns))
