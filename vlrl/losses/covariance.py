"""Entropy kept up where it is lost: at the tokens whose advantage and log-probability go together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from vlrl.losses.clipped import ppo_clip
from vlrl.losses.ratios import log_ratio
from vlrl.methods import method
from vlrl.strict import Rate
from vlrl.types import Batch, Evaluation

if TYPE_CHECKING:
    from torch import Tensor

Share = Annotated[float, Field(gt=0, le=1)]
SOURCE = "arXiv 2505.22617; github.com/PRIME-RL/Entropy-Mechanism-of-RL, core_algos.py"


def covariances(now: Evaluation, batch: Batch) -> Tensor:
    """`(A_t - mean A)(log p_t - mean log p)` [b, T] without gradient, means over all tokens; 0 outside the mask."""
    factors = []
    for column in (batch.advantage, now.logprobs.detach()):
        inside = column.masked_fill(~batch.mask, 0.0)
        factors.append((inside - inside.sum() / batch.mask.sum()) * batch.mask)
    return factors[0] * factors[1]


@method(needs=("one_forward",), level="token", source=f"Clip-Cov, {SOURCE}")
def clip_cov(
    now: Evaluation, batch: Batch, *, share: Share = 2e-4, least: float = 1.0, most: float = 5.0,
    low: float = 0.2, high: float = 0.2, coef: float = 1.0,
) -> Tensor:  # fmt: skip
    """`ppo_clip` without a few random tokens of high covariance: `max(1, floor(share N))` of those between the bounds.

    Raising a likely token that did well lowers the entropy, by as much as its covariance; these tokens are few. The
    dropped ones count as 0 and stay in the mean. Tokens that the ratio clips already are not drawn. The covariance and
    N are those of the optimizer step's tokens, so the step is forwarded at once (the published code takes what a
    micro-batch holds, so that its size changes the result). The draw hangs on the rollouts alone: a resumed run draws
    the same.

    Args:
        least, most: covariance below and above which a token is not drawn.

    Returns:
        [b, T]
    """
    loss = ppo_clip(now, batch, low=low, high=high)
    free = loss.detach() <= (-batch.advantage * log_ratio(now, batch).detach().exp())
    covariance = covariances(now, batch)
    able = batch.mask & free & (covariance > least) & (covariance < most)
    count = min(_count(share, batch), int(able.sum()))
    order = _draw(batch).to(loss.device).masked_fill(~able, -1.0).flatten()
    kept = loss.new_ones(order.shape).index_fill(0, order.topk(count).indices, 0.0)
    return coef * loss * kept.view(loss.shape)


@method(needs=("one_forward",), level="token", source=f"KL-Cov, {SOURCE}")
def kl_cov(now: Evaluation, batch: Batch, *, share: Share = 2e-3, beta: Rate = 1.0, coef: float = 1.0) -> Tensor:
    """`-A r`, unclipped, plus `beta |log r|` at the `max(1, floor(share N))` tokens of the largest covariance.

    The covariance and N are those of the optimizer step's tokens, so the step is forwarded at once. At the first update
    after sampling |log r| has no gradient: with one update a step this is the plain policy gradient. Take several
    (train.minibatches, train.epochs). The authors take share 2e-3 for a model of 7B, 2e-4 for one of 32B.

    Returns:
        [b, T]
    """
    gap = log_ratio(now, batch)
    covariance = covariances(now, batch).masked_fill(~batch.mask, float("-inf")).flatten()
    highest = covariance.topk(min(_count(share, batch), int(batch.mask.sum()))).indices
    held = gap.new_zeros(covariance.shape).index_fill(0, highest, beta).view(gap.shape)
    return coef * (-batch.advantage * gap.exp() + held * gap.abs())


def _count(share: float, batch: Batch) -> int:
    return max(1, int(share * int(batch.mask.sum())))


def _draw(batch: Batch) -> Tensor:
    """Uniform numbers [b, T] on the CPU, known from what was sampled."""
    import torch

    told = float(batch.old.masked_fill(~batch.mask, 0.0).double().sum())
    return torch.rand(batch.mask.shape, generator=torch.Generator().manual_seed(hash(told) & 0x7FFFFFFF))
