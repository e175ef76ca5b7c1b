"""Shuffled epochs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from vlrl.methods import method


@method(source="shuffled epochs")
class Shuffled:
    """Every sample once per epoch, in a new random order each time.

    Args:
        n: samples in the training split.
        seed: of the run.
        limit: use only the first so many samples (a pool that recurs, for methods with per-prompt state).
    """

    def __init__(self, n: int, seed: int, *, limit: int | None = None):
        self.n = min(n, limit) if limit else n
        self.seed, self.epoch, self.position = seed, 0, 0

    @property
    def positions(self) -> Sequence[int]:
        """All that are ever drawn."""
        return range(self.n)

    def draw(self, count: int) -> list[int]:
        """The next positions. A draw may run over the end of an epoch; none repeats within an epoch."""
        drawn: list[int] = []
        while len(drawn) < count:
            order = self._order()
            part = order[self.position : self.position + count - len(drawn)].tolist()
            drawn += part
            self.position += len(part)
            if self.position >= self.n:
                self.epoch, self.position = self.epoch + 1, 0
        return drawn

    def _order(self) -> np.ndarray:
        if getattr(self, "_cached", (None,))[0] != self.epoch:
            rng = np.random.default_rng([self.seed, self.epoch])
            self._cached = (self.epoch, rng.permutation(self.n))
        return self._cached[1]

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "position": self.position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch, self.position = state["epoch"], state["position"]


shuffled = Shuffled
