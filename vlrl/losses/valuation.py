"""ROVER: the policy is the value of acting at random."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vlrl.losses.ratios import log_ratio
from vlrl.methods import method
from vlrl.strict import Rate
from vlrl.types import Batch, Evaluation

if TYPE_CHECKING:
    from torch import Tensor


@method(level="token", source="ROVER, arXiv 2509.24981; github.com/yuxiaooye/ROVER; the next token's value is left out")
def rover(now: Evaluation, batch: Batch, *, scale: Rate = 1.0, coef: float = 1.0) -> Tensor:
    """`(Q_t - A)^2` per token with `Q_t = scale log(p_now / p_old)`: log-ratios are regressed onto centred rewards.

    Where every text has one path and rewards come at the end, acting greedily on the values of a policy that acts at
    random is optimal, and a softmax over them keeps all good answers in play. The policy's logits are those values,
    counted from the policy that sampled. A is the reward less its group's mean (`group` with std: none) at every token.

    The published target is A plus the mean, over the whole vocabulary, of the next token's Q. A policy here gives the
    log-probability of the written token alone, so that this mean is left out. At the first update after sampling it is
    0 and the loss is the published one, with the gradient `-2 scale A grad log p`: the policy gradient. So with one
    update a step (train.minibatches and train.epochs 1) nothing is missing; with several each is drawn towards A
    itself, and comes to rest at a ratio of exp(A / scale), which no clipping does.

    Returns:
        [b, T]
    """
    return coef * (scale * log_ratio(now, batch) - batch.advantage) ** 2 * batch.mask
