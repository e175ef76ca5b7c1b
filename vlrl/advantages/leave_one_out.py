"""A completion against the mean of the others of its prompt."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vlrl.advantages.statistics import group_centred, group_sizes
from vlrl.methods import method
from vlrl.types import Rollouts

if TYPE_CHECKING:
    from torch import Tensor


@method(needs=("group",), source="RLOO, arXiv 2402.14740; the estimator: Kool et al. 2019, Buy 4 REINFORCE Samples")
def leave_one_out(rollouts: Rollouts, advantage: Tensor) -> Tensor:
    """`A_i = r_i - mean of the other G - 1 rewards`, which is G / (G - 1) times the reward minus the group's mean.

    The baseline does not depend on the completion itself, so the policy gradient has no bias. The paper's KL is a k1
    penalty in the reward, here a loss term. A group of one, or of equal rewards, gives exactly 0.

    Returns:
        [B]
    """
    size = group_sizes(rollouts.group).to(rollouts.reward.dtype)
    return (group_centred(rollouts.reward, rollouts.group) * size / (size - 1).clamp(min=1))[rollouts.episode]
