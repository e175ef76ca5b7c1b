"""How each sample of a pool went, epoch by epoch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from vlrl.samplers.shuffled import Shuffled
from vlrl.types import Episode, Sample


class Trajectories:
    """Shuffled epochs over the first samples that note each sample's mean correctness in each epoch.

    `noted[position][epoch]` is None where a rollout strategy left the sample out.
    """

    def __init__(self, n: int, seed: int, limit: int | None = None):
        self.order = Shuffled(n, seed, limit=limit)
        self.noted: dict[int, list[float | None]] = {}
        self._drawn: dict[str, list[tuple[int, int]]] = {}  # id -> positions and epochs, of the latest draw

    def draw(self, samples: Sequence[Sample], count: int) -> list[int]:
        """The next positions."""
        drawn, self._drawn = [], {}
        for _ in range(count):
            epoch = self.order.epoch
            (position,) = self.order.draw(1)
            self._drawn.setdefault(samples[position].id, []).append((position, epoch))
            drawn.append(position)
        return drawn

    def observe(self, episodes: Sequence[Episode]) -> None:
        """Notes what came of the samples that were drawn."""
        found: dict[str, list[float]] = {}
        for episode in episodes:
            found.setdefault(episode.sample.id, []).append(episode.score.correct)
        for name, correct in found.items():
            for position, epoch in self._drawn.get(name, ()):
                own = self.noted.setdefault(position, [])
                own += [None] * (epoch + 1 - len(own))
                own[epoch] = sum(correct) / len(correct)

    @property
    def epochs(self) -> int:
        """Those that every sample has gone through."""
        return self.order.epoch

    def whole(self, last: int | None = None) -> dict[int, list[float]]:
        """The courses of all epochs, or the `last` ones, gaps filled by what follows; none whose end is missing."""
        found: dict[int, list[float]] = {}
        for position, own in sorted(self.noted.items()):
            values = filled((own + [None] * self.epochs)[: self.epochs])
            kept = values[-last:] if last else values
            ends = [value for value in kept if value is not None]
            if kept and len(ends) == len(kept):
                found[position] = ends
        return found

    def state_dict(self) -> dict[str, Any]:
        return {"order": self.order.state_dict(), "noted": [[i, list(own)] for i, own in self.noted.items()]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.order.load_state_dict(state["order"])
        self.noted = {position: list(own) for position, own in state["noted"]}


def filled(values: Sequence[float | None]) -> list[float | None]:
    """Each missing value replaced by the next known one; those at the end stay missing."""
    found, after = [], None
    for value in reversed(values):
        after = value if value is not None else after
        found.append(after)
    return found[::-1]


def alignment(trajectories: Mapping[int, Sequence[float]]) -> dict[int, float]:
    """How alike each sample learns to the average: `1 - sum (r - m)^2 / sum (1 - m)^2`, m the mean over samples.

    1: the average's own course. 0 for all where the average was right from the beginning, for nothing was learned.
    """
    if not trajectories:
        return {}
    courses = np.array(list(trajectories.values()), dtype=np.float64)
    mean = courses.mean(0)
    room = ((1 - mean) ** 2).sum()
    scores = 1 - ((courses - mean) ** 2).sum(1) / room if room > 0 else np.zeros(len(courses))
    return dict(zip(trajectories, scores.tolist(), strict=True))


def failed(trajectory: Sequence[float]) -> bool:
    """Whether a sample was never right half of the time and falls: the slope of its regression line is below 0."""
    if max(trajectory) >= 0.5 or len(trajectory) < 2:
        return False
    times = np.arange(len(trajectory)) - (len(trajectory) - 1) / 2
    return bool(times @ np.asarray(trajectory) < 0)
