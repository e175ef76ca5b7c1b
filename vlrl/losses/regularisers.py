"""What keeps a policy near another one, or open."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from vlrl.methods import method
from vlrl.strict import Rate
from vlrl.types import Batch, Evaluation

if TYPE_CHECKING:
    from torch import Tensor


@method(needs=("reference",), level="token", source="estimators: joschu.net/blog/kl-approx.html; k3 as in GRPO")
def kl(now: Evaluation, batch: Batch, *, kind: Literal["k1", "k2", "k3"] = "k3", coef: float = 0.01) -> Tensor:
    """KL(policy || reference) per token: k1 = log p/q, k2 = (log p/q)^2 / 2, k3 = q/p - log(q/p) - 1.

    As values, k1 and k3 are unbiased. As loss terms, on tokens that the policy has just sampled, only k2 has the
    gradient of the KL itself in expectation; k1 has none at all, k3 that of KL(reference || policy). With k1 use
    `kl_in_reward`.
    """
    gap = (batch.reference - now.logprobs).masked_fill(~batch.mask, 0.0)
    if kind == "k1":
        return coef * -gap
    if kind == "k2":
        return coef * 0.5 * gap**2
    return coef * (gap.clamp(-20, 20).exp() - gap - 1)


@method(level="token", source="maximum-entropy bonus, arXiv 1602.01783")
def entropy(now: Evaluation, batch: Batch, *, coef: float = 0.01, target: Rate | None = None) -> Tensor:
    """Minus the entropy of the distribution at each token: a positive coefficient keeps the policy exploring.

    Args:
        target: in nats; tokens that have as much or more are left alone, so that the bonus cannot make noise of what
            is open enough. None: no bound.
    """
    return -coef * (now.entropy if target is None else now.entropy.clamp(max=target))
