"""Samples of which it is not yet known whether they are solved."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from vlrl.methods import method
from vlrl.strict import Count
from vlrl.types import Sample, UserError

Share = Annotated[float, Field(gt=0)]
Power = Annotated[float, Field(ge=0)]


@method(source="SPO, arXiv 2509.13232; github.com/volcengine/verl, recipe/spo")
class Uncertainty:
    """Samples by the spread of their outcome: `w = sqrt(v (1 - v)) / N^gamma + eps`, none twice in a step.

    v is what the run's tracker (`spo_tracker`, `beta_tracker`) takes for the sample's success rate at the moment of the
    draw, N the observations it rests on. A value outside [0, 1] counts as the nearest inside.

    Args:
        n: samples in the training split.
        seed: of the run.
        eps: what every sample weighs at least: the share of exploration, so that none is given up. At most 0.5 comes
            of the spread, so 0.05 draws a sample that is always solved about a tenth as often as an even one.
        gamma: power of N; above 0, seldom seen samples are drawn more often. Published code: 0.
        limit: use only the first so many samples (a pool that recurs).
    """

    def __init__(self, n: int, seed: int, *, eps: Share = 0.05, gamma: Power = 0.0, limit: Count | None = None):
        self.n, self.seed, self.eps, self.gamma = min(n, limit) if limit else n, seed, eps, gamma
        self.draws = 0

    def follow(self, samples: Sequence[Sample], estimators: Sequence[Any]) -> None:
        """Tells the sampler whose values it goes by.

        Raises:
            UserError: no estimator keeps any.
        """
        trackers = [e for e in estimators if hasattr(e, "value") and hasattr(e, "weight")]
        if not trackers:
            raise UserError(
                "sampler: uncertainty draws by what a tracker knows: add spo_tracker or beta_tracker to advantages"
            )
        self._samples, self._tracker, self._keys = samples, trackers[0], None

    @property
    def positions(self) -> Sequence[int]:
        """All that are ever drawn."""
        return range(self.n)

    def draw(self, count: int) -> list[int]:
        """`count` positions, none twice; where there are fewer samples, all of them over and over."""
        rng = np.random.default_rng([self.seed, self.draws])
        self.draws += 1
        share = self.shares()
        drawn: list[int] = []
        while len(drawn) < count:
            drawn += rng.choice(self.n, min(self.n, count - len(drawn)), replace=False, p=share).tolist()
        return drawn

    def shares(self) -> np.ndarray:
        """float64 [n]: the chance of each sample to be drawn first."""
        if self._keys is None:  # not before it is needed: making a sample may mean decoding a video
            self._keys = [self._samples[i].key for i in self.positions]
        value = np.clip([self._tracker.value(key) for key in self._keys], 0.0, 1.0)
        seen = np.array([self._tracker.weight(key) for key in self._keys])
        weight = np.sqrt(value * (1 - value)) / seen**self.gamma + self.eps
        return weight / weight.sum()

    def state_dict(self) -> dict[str, Any]:
        return {"draws": self.draws}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.draws = state["draws"]


uncertainty = Uncertainty
