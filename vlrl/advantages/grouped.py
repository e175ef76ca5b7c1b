"""A completion against the others of its prompt."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from vlrl.advantages.statistics import group_deviations, group_means
from vlrl.methods import method
from vlrl.types import Rollouts

if TYPE_CHECKING:
    from torch import Tensor


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
