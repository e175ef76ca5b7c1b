"""CISPO: the importance weight is clipped, the gradient never is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vlrl.losses.ratios import log_ratio
from vlrl.methods import method
from vlrl.strict import Rate
from vlrl.types import Batch, Evaluation

if TYPE_CHECKING:
    from torch import Tensor


@method(level="token", source="CISPO: MiniMax-M1, arXiv 2506.13585, Eq. 4-5", vanishes=True)
def cispo(now: Evaluation, batch: Batch, *, low: Rate = 1.0, high: Rate = 4.0, coef: float = 1.0) -> Tensor:
    """`-sg(clip(r, 1 - low, 1 + high)) A log p` per token: REINFORCE with a clipped importance weight.

    Where PPO's clipping silences a token, here it keeps learning with a bounded weight: rare tokens that start a
    change of mind are what a clipped ratio loses first. The paper sets no lower bound (low 1) and does not say its
    upper one; 1 + 4 is our choice, TRL's default. A stopped gradient: finite differences of the value are not the
    gradient.

    Returns:
        [b, T]
    """
    weight = log_ratio(now, batch).exp().clamp(1 - low, 1 + high).detach()
    return -coef * weight * batch.advantage * now.logprobs.masked_fill(~batch.mask, 0.0)
