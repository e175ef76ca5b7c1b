"""Training steps of a cluster as a queue: episodes that wait for places, batches that wait for their last episode.

Batch n is played by the weights that n - staleness updates have made, as `train.max_staleness` plays it, and learned
from when all of its episodes have ended. Episodes take the place that is free first, in order of their batches.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True)
class Setup:
    """Seconds and counts of a run. places: episodes that are played at once; nodes: that they are spread over.

    publish: from an update's end until engines have its weights; pause: of it, what an episode under way stands still.
    failures: of a node in a second, where episodes are played; repair: until its places are there again.
    """

    places: int
    learn: float  # seconds of an update
    nodes: int = 1
    staleness: int = 0
    publish: float = 0.0
    pause: float = 0.0
    failures: float = 0.0
    repair: float = 600.0


@dataclass(frozen=True, eq=False)
class Trace:
    """start, end: float64 [batches, episodes], of what was played to its end; place: int of the same shape.

    learned: float64 [batches], when the batch's update ended; broken: seconds of places that failures undid.
    """

    setup: Setup
    start: np.ndarray
    end: np.ndarray
    place: np.ndarray
    learned: np.ndarray
    broken: float

    def step(self, warm: int = 0) -> float:
        """Seconds of a step, the first `warm` left out.

        Ahead, batches come in bursts of staleness + 1, of which whole ones are counted.
        """
        count, burst = len(self.learned) - warm, self.setup.staleness + 1
        first = warm + (count % burst if count > burst else 0)
        begin = self.learned[first - 1] if first else 0.0
        return float(self.learned[-1] - begin) / (len(self.learned) - first)

    def busy(self, warm: int = 0) -> np.ndarray:
        """Share of all places' time that each episode takes, float64 [batches, episodes].

        After the first steps, and before those in whose time no further batches are played.
        """
        begin, finish = (self.learned[warm - 1] if warm else 0.0), self.learned[-1 - self.setup.staleness]
        seen = np.clip(np.minimum(self.end, finish) - np.maximum(self.start, begin), 0, None)
        return seen / (self.setup.places * (finish - begin))


def simulate(setup: Setup, seconds: np.ndarray, seed: int = 0) -> Trace:
    """Plays and learns from all batches.

    Args:
        seconds: float64 [batches, episodes], how long each occupies a place.
    """
    free = [(0.0, place) for place in range(setup.places)]
    ready = [0.0]  # when the weights of so many updates are at the engines
    failures, learned, rows = _Failures(setup, seed), [], []
    for number, batch in enumerate(seconds.tolist()):
        oldest = max(0, number - setup.staleness)
        rows.append(_play(setup, batch, ready[oldest], ready[oldest + 1 :], free, failures))
        ended = max(row[1] for row in rows[-1])
        learned.append(max(ended, learned[-1] if learned else 0.0) + setup.learn)
        ready.append(learned[-1] + setup.publish)
    start, end, place = np.array(rows).transpose(2, 0, 1)
    return Trace(setup, start, end, place.astype(int), np.array(learned), failures.broken)


def _play(
    setup: Setup,
    batch: list[float],
    release: float,
    later: list[float],
    free: list[tuple[float, int]],
    failures: _Failures,
) -> list[tuple[float, float, int]]:
    """A batch's episodes: start, end and place of each. later: when weights come that episodes stand still for."""
    rows = []
    for length in batch:
        begin = release
        while True:
            at, place = free[0]
            start = max(begin, at)
            end = start + length
            for moment in later:
                if start < moment < end:
                    end += setup.pause
            failed = failures.between(place * setup.nodes // setup.places, start, end)
            if failed is None:
                break
            heapq.heapreplace(free, (failed + setup.repair, place))
            failures.broken += failed - start
            begin = failed  # it is played anew, elsewhere
        heapq.heapreplace(free, (end, place))
        rows.append((start, end, place))
    return rows


@dataclass
class _Failures:
    """When nodes fail: drawn as time goes on, each node from a generator of its own."""

    setup: Setup
    seed: int
    broken: float = 0.0
    times: dict[int, list[float]] = field(default_factory=dict)
    random: dict[int, np.random.Generator] = field(default_factory=dict)

    def between(self, node: int, start: float, end: float) -> float | None:
        """The first failure of a node in (start, end]."""
        if not self.setup.failures:
            return None
        if node not in self.times:
            self.times[node], self.random[node] = [0.0], np.random.default_rng([self.seed, node])
        times = self.times[node]
        while times[-1] <= end:
            times.append(times[-1] + self.random[node].exponential(1 / self.setup.failures))
        first = times[bisect_right(times, start)]
        return first if first <= end else None
