"""What a policy learns from, in three groups: demonstrations, a person's corrections, the policy's own successes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from vlrl.learning.dataset import PERSON, About, Recorded
from vlrl.learning.examples import Example, by_person, by_policy, check_fit, examples
from vlrl.learning.imitate import chances
from vlrl.policies.control import ControlPolicy
from vlrl.types import UserError, wilson

GROUPS = ("demonstrations", "corrections", "successes")


class Pools:
    """The examples so far, and how they are drawn.

    Args:
        shares: of each group in a batch; a group without examples leaves its share to the others.
        apart: corrections come as data sets of their own, so that those within episodes are the same once more.
    """

    def __init__(self, policy: ControlPolicy, shares: dict[str, float], *, apart: bool):
        self.policy, self.shares, self.apart = policy, shares, apart
        self.groups: dict[str, list[Example]] = {name: [] for name in GROUPS}
        self.fps: float | None = None

    def add_whole(self, group: str, found: Iterable[tuple[About, Recorded]]) -> None:
        """Every frame of these episodes."""
        for data, episode in found:
            self._add(group, data, episode, np.arange(len(episode)))

    def add_played(self, found: Iterable[tuple[About, Recorded]]) -> None:
        """Episodes that the policy played, with or without a person."""
        for data, episode in found:
            if not self.apart:
                self._add("corrections", data, episode, by_person(episode))
            self._add("successes", data, episode, by_policy(episode, data.fps))

    def drawn(self) -> tuple[list[Example], np.ndarray]:
        """All examples and the chance float64 [N] of each."""
        sizes = {name: len(group) for name, group in self.groups.items()}
        return list(self._all()), chances(sizes, self.shares)

    def _all(self) -> Iterator[Example]:
        for group in self.groups.values():
            yield from group

    def _add(self, group: str, data: About, episode: Recorded, frames: np.ndarray) -> None:
        """
        Raises:
            UserError: the data set does not fit the policy, or has another rate than the others.
        """
        check_fit(data, self.policy.shape)
        if self.fps not in (None, data.fps):
            raise UserError(f"{data.path}: {data.fps:g} frames a second; the others have {self.fps:g}")
        self.fps = data.fps
        self.groups[group] += examples(self.policy, episode, frames.tolist())


def told(played: Iterable[Recorded]) -> dict[str, float]:
    """How the policy fared in the episodes: success, success without a person's help, the share that a person drove."""
    played = list(played)
    alone = sum(each.won and not (each.driver == PERSON).any() for each in played)
    low, high = wilson(alone, len(played)) if played else (0.0, 1.0)
    frames = sum(map(len, played))
    return {
        "success": sum(each.won for each in played) / max(1, len(played)),
        "alone": alone / max(1, len(played)), "alone_low": low, "alone_high": high,
        "person": sum(int((each.driver == PERSON).sum()) for each in played) / max(1, frames),
    }  # fmt: skip
