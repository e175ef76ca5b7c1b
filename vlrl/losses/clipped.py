"""Surrogates of the policy gradient with a clipped ratio."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vlrl.losses.ratios import log_ratio
from vlrl.methods import method
from vlrl.types import Batch, Evaluation

if TYPE_CHECKING:
    from torch import Tensor


@method(
    level="token", source="PPO, arXiv 1707.06347; clip-higher: DAPO, 2503.14476; dual clip: 1912.09729", vanishes=True
)
def ppo_clip(
    now: Evaluation, batch: Batch, *, low: float = 0.2, high: float = 0.2, dual: float | None = None, coef: float = 1.0
) -> Tensor:
    """`max(-A r, -A clip(r, 1 - low, 1 + high))` per token; for A < 0 at most `-A dual`. r is the probability ratio."""
    ratio = log_ratio(now, batch).exp()
    loss = (-batch.advantage * ratio).maximum(-batch.advantage * ratio.clamp(1 - low, 1 + high))
    if dual is not None:
        loss = loss.minimum(-batch.advantage * dual).where(batch.advantage < 0, loss)
    return coef * loss
