"""Observe-R1: prompts of middling difficulty count most."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vlrl.advantages.statistics import group_means
from vlrl.methods import method
from vlrl.strict import Rate
from vlrl.types import Rollouts

if TYPE_CHECKING:
    from torch import Tensor


@method(needs=("group",), source="Observe-R1, arXiv 2505.12432; github.com/zrguo/Observe-R1, experience_maker.py")
def middling(rollouts: Rollouts, advantage: Tensor, *, sigma: Rate = 1.8) -> Tensor:
    """Times `4 sigma d (1 - d)`, d the share of the group's completions that are right: sigma at a half, 0 at the ends.

    Comes after `group`. Right is what the task's accuracy counts. The published code takes d as the mean of the rewards
    cut to whole numbers, which is the same for its rewards of accuracy + 0.5 form + 0.2 brevity.

    Returns:
        [B]
    """
    share = group_means(rollouts.is_correct.to(rollouts.reward.dtype), rollouts.group)
    return advantage * (4 * sigma * share * (1 - share))[rollouts.episode]
