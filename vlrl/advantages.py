"""Advantage estimators: pure functions `(rollouts, advantage, *, options) -> advantage`, applied in the YAML's order.

The list starts from the reward of each decision, [B]. Estimators keep [B] until one works token by token, [B, T].
Written with tensor methods only, so that reading a configuration needs no torch. State lives in vlrl/mssr.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from vlrl.methods import method
from vlrl.types import Rollouts

if TYPE_CHECKING:
    from torch import Tensor


def group_means(values: Tensor, group: Tensor) -> Tensor:
    """Mean of each member's group [N], for values [N] and group numbers [N]."""
    _, index, sizes = group.unique(return_inverse=True, return_counts=True)
    sums = values.new_zeros(len(sizes)).index_add(0, index, values)
    return (sums / sizes)[index]


def group_deviations(values: Tensor, group: Tensor) -> Tensor:
    """Bessel-corrected standard deviation of each member's group [N]; exactly 0 where all members are equal."""
    _, index, sizes = group.unique(return_inverse=True, return_counts=True)
    squares = (values - group_means(values, group)) ** 2
    low = values.new_full((len(sizes),), float("inf")).scatter_reduce(0, index, values, "amin")
    high = values.new_full((len(sizes),), float("-inf")).scatter_reduce(0, index, values, "amax")
    variance = values.new_zeros(len(sizes)).index_add(0, index, squares) / (sizes - 1).clamp(min=1)
    return variance.sqrt().masked_fill(low == high, 0.0)[index]


@method(needs=("group",), source="GRPO, arXiv 2402.03300; Dr. GRPO (std: none), 2503.20783; Lite PPO (std: batch)")
def group(
    rollouts: Rollouts, advantage: Tensor, *, std: Literal["group", "batch", "none"] = "group", eps: float = 1e-6
) -> Tensor:
    """Reward minus the mean of its group, over the standard deviation (ddof 1) of the group or of the whole batch.

    A group whose rewards are all equal gives exactly 0.

    Returns:
        [B]
    """
    reward = rollouts.reward
    deviation, means = group_deviations(reward, rollouts.group), group_means(reward, rollouts.group)
    whole = reward.new_zeros(len(reward), dtype=rollouts.group.dtype)
    scale = {"group": deviation, "batch": group_deviations(reward, whole), "none": 0 * deviation + 1 - eps}[std]
    # Rounding of the mean must not turn into an advantage where there is nothing to compare.
    centred = (reward - means).masked_fill(deviation == 0, 0.0)
    return (centred / (scale + eps))[rollouts.episode]


@method(source="MSSR, arXiv 2512.18215, released code: whitening over all sequences of the step")
def batch_norm(rollouts: Rollouts, advantage: Tensor, *, ddof: int = 0, var_floor: float = 1e-6) -> Tensor:
    """Mean 0 and variance 1 over the step's decisions: `(A - mean) * rsqrt(max(var, var_floor))`.

    Returns:
        [B]
    """
    if advantage.ndim != 1:
        raise ValueError("batch_norm works on one value per decision: place it before token-level shaping")
    centred = advantage - advantage.mean()
    variance = (centred**2).sum() / max(len(advantage) - ddof, 1)
    return centred * variance.clamp(min=var_floor).rsqrt()


@method(source="GUI-G1, arXiv 2505.15810: `rate`, by the target's size")
def weighted(rollouts: Rollouts, advantage: Tensor) -> Tensor:
    """Times how much the decision's sample counts (`Sample.weight`), so that hard samples can move more.

    For a weight of 0 or more this is the weight of the sample's policy loss, as published.

    Returns:
        [B]
    """
    return advantage if rollouts.weight is None else advantage * rollouts.weight[rollouts.episode]


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
    sampled = -rollouts.logprobs.exp() * rollouts.logprobs
    measure = (sampled if entropy == "sampled_plogp" else rollouts.entropy).to(advantage.dtype)
    return advantage + (alpha * measure).minimum(advantage.abs() / kappa) * rollouts.mask
