"""Advantages token by token."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from vlrl.methods import method
from vlrl.types import Rollouts

if TYPE_CHECKING:
    from torch import Tensor


@method(level="token", source="MSSR, arXiv 2512.18215; Reasoning with Exploration, 2506.14758 (alpha 0.4, kappa 2)")
def entropy_shaping(
    rollouts: Rollouts,
    advantage: Tensor,
    *,
    alpha: float = 0.4,
    kappa: float = 2.0,
    entropy: Literal["sampled_plogp", "full"] = "sampled_plogp",
) -> Tensor:
    """Adds `min(alpha * H_t, |A_t| / kappa)` to each token, without gradient; never flips a sign for kappa >= 1.

    Args:
        entropy: H_t is `-p log p` of the sampled token (what the released code measures, at most 1/e) or the full
            entropy of the sampling distribution (what the paper writes).

    Returns:
        [B, T]
    """
    advantage = advantage[:, None] * rollouts.mask if advantage.ndim == 1 else advantage
    logprobs = rollouts.logprobs.masked_fill(~rollouts.mask, 0.0)
    measure = (-logprobs.exp() * logprobs if entropy == "sampled_plogp" else rollouts.entropy).to(advantage.dtype)
    return advantage + (alpha * measure).minimum(advantage.abs() / kappa) * rollouts.mask
