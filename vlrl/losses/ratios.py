"""How likely an action is now, against when it was sampled."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from vlrl.types import Batch, Evaluation

if TYPE_CHECKING:
    from torch import Tensor


def log_ratio(now: Evaluation, batch: Batch) -> Tensor:
    """log(p_now / p_old) [b, T], 0 outside the mask, clamped to [-20, 20] before anyone takes its exponential."""
    return (now.logprobs - batch.old).masked_fill(~batch.mask, 0.0).clamp(-20.0, 20.0)


def clip_fraction(now: Evaluation, batch: Batch, low: float, high: float) -> float:
    """Share of units whose ratio lies outside [1 - low, 1 + high]."""
    outside = log_ratio(now, batch)
    least = math.log1p(-low) if low < 1 else -math.inf  # no ratio lies below 0
    hit = (outside < least) | (outside > math.log1p(high))
    return float(hit[batch.mask].float().mean())
