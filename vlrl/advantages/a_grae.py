"""A-GRAE (asymmetric group-relative advantage): easy prompts first, hard ones later; little reward for being right."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vlrl.advantages.grouped import group
from vlrl.advantages.statistics import group_means, group_sizes
from vlrl.methods import method
from vlrl.strict import Rate
from vlrl.types import Rollouts

if TYPE_CHECKING:
    from torch import Tensor


@method(needs=("group",), source="A-GRAE, arXiv 2602.05548; github.com/Yu7-code/A-GRAE, verl/trainer/ppo/core_algos.py")
def a_grae(rollouts: Rollouts, advantage: Tensor, *, alpha: Rate = 1.0, best: Rate = 1.0, eps: Rate = 1e-6) -> Tensor:
    """GRPO's advantage A0, weighed by how hard its prompt is and how far the policy has come.

    With m the group's mean reward as a share of `best` and M the mean of m over the step's groups:

        A = (1 - M) A0 / (2 (1 - sqrt(m) + eps)) + M A0 / (2 (sqrt(m) + eps)), times min(1, M / alpha) where A > 0.

    So a policy that solves little (M near 0) learns most from prompts that it nearly solves, a good one from those
    that it seldom solves, and right answers count less than wrong ones until M reaches alpha. Groups of equal rewards
    give exactly 0. Positive and negative advantages of a group no longer cancel.

    Args:
        alpha: 1 for mathematics, 0.5 for geometry and medicine in the published runs.
        best: the largest reward; m is clamped to [0, 1].

    Returns:
        [B]
    """
    plain = group(rollouts, advantage, eps=eps)
    share = (group_means(rollouts.reward, rollouts.group) / best).clamp(0, 1)
    size = group_sizes(rollouts.group).to(share.dtype)
    overall = (share / size).sum() / (1 / size).sum()
    root = share.sqrt()[rollouts.episode]
    mixed = plain * ((1 - overall) / (2 * (1 - root + eps)) + overall / (2 * (root + eps)))
    return mixed * (overall / alpha).clamp(max=1.0).where(mixed > 0, 1.0)
