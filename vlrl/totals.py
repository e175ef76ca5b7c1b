"""What a step's updates add up to, and what of it is reported."""

from __future__ import annotations

from dataclasses import dataclass, field

from vlrl.losses import clip_fraction, log_ratio
from vlrl.types import Batch, Evaluation


@dataclass
class Found:
    """What the micro-batches of an optimizer step add up to."""

    loss: float = 0.0
    clipped: float = 0.0  # units
    gap: float = 0.0  # sum of |log p now - log p sampled|
    k3: float = 0.0
    units: float = 0.0
    bad: float = 0.0  # objectives that are not finite

    def add(self, loss: float, now: Evaluation, batch: Batch, clip_range: tuple[float, float]) -> None:
        moved = log_ratio(now, batch).detach()[batch.mask]
        self.loss += loss
        self.clipped += clip_fraction(now, batch, *clip_range) * int(batch.mask.sum())
        self.gap += float(moved.abs().sum())
        self.k3 += float((moved.expm1() - moved).sum())
        self.units += len(moved)


@dataclass
class Totals:
    """What a step's updates report."""

    loss: float = 0.0
    grad_norm: float = 0.0
    clip_fraction: float = 0.0  # of the units that were evaluated
    gap: float = 0.0  # mean |log p now - log p sampled| before the first update: how far engine and trainer differ
    kl: float = 0.0  # of the latest epoch: k3 from the law that sampled, mean over units, each before its own update
    epochs: int = 0  # passes over the rollouts
    left_out: float = 0.0  # share of rows that had no gradient to give and were not evaluated
    updates: int = 0
    measured: int = 0  # updates that evaluated anything
    skipped: int = 0  # non-finite updates
    skipped_ids: list[str] = field(default_factory=list)
    drift: list[float] = field(default_factory=lambda: [0.0, 0.0])  # of the epoch under way: sum of k3, units

    def end_epoch(self) -> None:
        """Takes the epoch's KL."""
        self.kl, self.epochs, self.drift = self.drift[0] / max(1.0, self.drift[1]), self.epochs + 1, [0.0, 0.0]

    def count(self, found: Found, norm: float, units: float | None) -> None:
        """One more update into the means; units: that carry credit; None: nothing was evaluated."""
        first = self.updates + self.skipped == 0
        self.updates += 1
        self.loss += (found.loss - self.loss) / self.updates
        self.grad_norm += (norm - self.grad_norm) / self.updates
        if units is None:
            return
        self.measured += 1
        self.clip_fraction += (found.clipped / units - self.clip_fraction) / self.measured
        self.gap = found.gap / units if first else self.gap
        self.drift = [self.drift[0] + found.k3, self.drift[1] + found.units]
