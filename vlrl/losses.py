"""Loss terms: pure functions `(now, batch, *, options) -> [b, T]`, to be minimised.

The trainer weighs every unit with one weight that sums to 1 over the optimizer step (vlrl/weighing.py) and adds the
terms, each times its `coef`. Written with tensor methods only, so that reading a configuration needs no torch.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

from vlrl.methods import method
from vlrl.types import Batch, Evaluation

if TYPE_CHECKING:
    from torch import Tensor


@method(level="token", source="PPO, arXiv 1707.06347; clip-higher: DAPO, 2503.14476; dual clip: 1912.09729")
def ppo_clip(
    now: Evaluation, batch: Batch, *, low: float = 0.2, high: float = 0.2, dual: float | None = None, coef: float = 1.0
) -> Tensor:
    """`max(-A r, -A clip(r, 1 - low, 1 + high))` per token; for A < 0 at most `-A dual`. r is the probability ratio."""
    ratio = log_ratio(now, batch).exp()
    loss = (-batch.advantage * ratio).maximum(-batch.advantage * ratio.clamp(1 - low, 1 + high))
    if dual is not None:
        loss = loss.minimum(-batch.advantage * dual).where(batch.advantage < 0, loss)
    return coef * loss


@method(needs=("reference",), level="token", source="estimators: joschu.net/blog/kl-approx.html; k3 as in GRPO")
def kl(now: Evaluation, batch: Batch, *, kind: Literal["k1", "k2", "k3"] = "k3", coef: float = 0.01) -> Tensor:
    """KL(policy || reference) per token: k1 = log p/q, k2 = (log p/q)^2 / 2, k3 = q/p - log(q/p) - 1."""
    gap = (batch.reference - now.logprobs).masked_fill(~batch.mask, 0.0)
    if kind == "k1":
        return coef * -gap
    if kind == "k2":
        return coef * 0.5 * gap**2
    return coef * (gap.clamp(-20, 20).exp() - gap - 1)


@method(level="token", source="maximum-entropy bonus, arXiv 1602.01783")
def entropy(now: Evaluation, batch: Batch, *, coef: float = 0.01) -> Tensor:
    """Minus the entropy of the distribution at each token: a positive coefficient keeps the policy exploring."""
    return -coef * now.entropy


@method(level="token", source="imitation weighted by advantages: DigiRL, arXiv 2406.11896; AWR, 1910.00177")
def likelihood(now: Evaluation, batch: Batch, *, coef: float = 1.0) -> Tensor:
    """`-A log p` per token, without a ratio to the policy that sampled: what was right then is right still."""
    return -coef * batch.advantage * now.logprobs


def log_ratio(now: Evaluation, batch: Batch) -> Tensor:
    """log(p_now / p_old) [b, T], 0 outside the mask, clamped to [-20, 20] before anyone takes its exponential."""
    return (now.logprobs - batch.old).masked_fill(~batch.mask, 0.0).clamp(-20.0, 20.0)


def clip_fraction(now: Evaluation, batch: Batch, low: float, high: float) -> float:
    """Share of units whose ratio lies outside [1 - low, 1 + high]."""
    outside = log_ratio(now, batch)
    least = math.log1p(-low) if low < 1 else -math.inf  # no ratio lies below 0
    hit = (outside < least) | (outside > math.log1p(high))
    return float(hit[batch.mask].float().mean())
