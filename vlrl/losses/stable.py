"""A clipped surrogate whose log-ratio is bounded before its exponential is taken."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from vlrl.losses.ratios import log_ratio
from vlrl.methods import method
from vlrl.strict import Rate
from vlrl.types import Batch, Evaluation

if TYPE_CHECKING:
    from torch import Tensor


@method(
    level="token", source="StableReinforce: R1-Reward, arXiv 2505.02835; github.com/yfzhang114/r1_reward", vanishes=True
)
def stable_clip(
    now: Evaluation,
    batch: Batch,
    *,
    low: float = 0.2,
    high: float = 0.2,
    least: Rate = 1e-3,
    most: Rate = 1e3,
    coef: float = 1.0,
) -> Tensor:
    """`max(-A r, -A clip(r, 1 - low, 1 + high))` per token with `r = exp(clip(log r, ln least, ln most))`.

    Where it differs from `ppo_clip`: a token with A < 0 whose ratio passed `most` costs at most `-A most` and has no
    gradient, where the plain surrogate is unbounded there. `dual` of `ppo_clip` does the same at 3.
    """
    ratio = log_ratio(now, batch).clamp(math.log(least), math.log(most)).exp()
    loss = (-batch.advantage * ratio).maximum(-batch.advantage * ratio.clamp(1 - low, 1 + high))
    return coef * loss
