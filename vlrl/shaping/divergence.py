"""The KL to the reference as part of the reward."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from vlrl.methods import method
from vlrl.strict import Rate
from vlrl.types import Rollouts

if TYPE_CHECKING:
    from torch import Tensor


@method(needs=("reference",), source="RLOO, arXiv 2402.14740; estimators: joschu.net/blog/kl-approx.html")
def kl_in_reward(rollouts: Rollouts, *, kind: Literal["k1", "k2", "k3"] = "k1", coef: Rate = 1e-3) -> Tensor:
    """Takes `coef` times the KL(policy || reference) of each episode, summed over its tokens, from its reward.

    Per token, for policy p and reference q: k1 = log p/q, k2 = (log p/q)^2 / 2, k3 = q/p - log(q/p) - 1. p is the law
    that sampled. k1 is unbiased and may be negative; of it alone the policy gradient is that of the KL. In the loss
    (`kl`) it is the other way round: there k1 has no gradient in expectation, k2 has the KL's.

    Returns:
        [N]
    """
    gap = (rollouts.reference - rollouts.logprobs).masked_fill(~rollouts.mask, 0.0).to(rollouts.reward.dtype)
    per_token = {"k1": -gap, "k2": 0.5 * gap**2, "k3": gap.clamp(-20, 20).exp() - gap - 1}[kind]
    total = rollouts.reward.new_zeros(len(rollouts.reward)).index_add(0, rollouts.episode, per_token.sum(1))
    return rollouts.reward - coef * total
