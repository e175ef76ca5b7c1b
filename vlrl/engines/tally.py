"""What an engine reports: counts, seconds, and how far its log-probabilities lie from the trainer's."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

COUNTS = ("seconds", "retries", "stale", "published")


class Tally:
    """Adds up between two updates of the weights. Threads may add at the same time."""

    def __init__(self):
        self._lock = threading.Lock()
        self.begin()

    def begin(self) -> None:
        """From zero: new weights."""
        self._counts = dict.fromkeys(COUNTS, 0.0)
        self._gaps, self._tokens, self._largest = 0.0, 0, 0.0

    def add(self, **counts: float) -> None:
        with self._lock:
            for name, count in counts.items():
                self._counts[name] += count

    def gaps(self, differences: Sequence[Tensor]) -> None:
        """Log-probabilities of sampled tokens, the trainer's less the engine's, of each completion [T]."""
        for each in differences:
            if len(each):
                self._gaps += float(each.abs().sum())
                self._tokens += len(each)
                self._largest = max(self._largest, float(each.abs().max()))

    def row(self) -> dict[str, float]:
        """seconds that rollouts waited, requests asked again after a failure, answers of other weights that were not
        used, weights given to a server; the gap's mean and largest, in nats a token."""
        row = {f"engine/{name}": count for name, count in self._counts.items()}
        if self._tokens:
            row |= {"engine/logprob_gap": self._gaps / self._tokens, "engine/logprob_gap_max": self._largest}
        return row
