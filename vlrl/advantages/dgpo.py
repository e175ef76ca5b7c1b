"""DGPO (difficulty-aware group policy optimisation): every prompt moves the policy as much, hard ones a little more."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vlrl.advantages.statistics import group_centred, group_deviations, group_means, group_sizes
from vlrl.methods import method
from vlrl.strict import Rate
from vlrl.types import Rollouts

if TYPE_CHECKING:
    from torch import Tensor


@method(needs=("group",), source="DGPO: MathForge, arXiv 2601.20614; github.com/AMAP-ML/MathForge, grpo_trainer.py")
def dgpo(
    rollouts: Rollouts,
    advantage: Tensor,
    *,
    temperature: Rate | None = 2.0,
    fill: bool = True,
    eps: Rate = 1e-4,
) -> Tensor:
    """`(r - mean) / (MAD + eps / G)` times a weight for hard prompts, MAD the group's mean absolute deviation.

    Divided by the standard deviation, the advantages of a group with success rate p sum to 2 G sqrt(p (1 - p)) in
    absolute value: most for prompts of middling difficulty. Divided by the MAD they sum to G for each.

    Groups of equal rewards give exactly 0. The K others are weighed by K softmax(-m / temperature) over their mean
    accuracies m; a group that is all wrong, whose rewards differ in form alone, counts as all right, as in the
    published code. With `fill` all are multiplied by the step's tokens over those of the K groups, so that
    silent groups do not shrink the step.

    Args:
        temperature: null gives all prompts the same weight.

    Returns:
        [B]
    """
    reward, number = rollouts.reward, rollouts.group
    centred, size = group_centred(reward, number), group_sizes(number).to(reward.dtype)
    balanced = centred / (group_means(centred.abs(), number) + eps / size)
    taught = group_deviations(reward, number) > 0
    if temperature is not None:
        share = group_means(rollouts.correctness, number)
        hardness = (-share.where(share > 0, 1.0) / temperature).exp() * taught
        total = (hardness / size).sum()  # over groups
        balanced = balanced * hardness * (taught / size).sum() / total.where(total > 0, 1.0)
    scaled = balanced[rollouts.episode]
    tokens = rollouts.mask[taught[rollouts.episode]].sum()
    return scaled * (rollouts.mask.sum() / tokens.clamp(min=1)) if fill else scaled
