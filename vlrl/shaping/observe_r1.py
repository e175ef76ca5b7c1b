"""Observe-R1: a bonus for the shortest right completion."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vlrl.methods import method
from vlrl.shaping.outcomes import lengths, members
from vlrl.types import Rollouts

if TYPE_CHECKING:
    from torch import Tensor


@method(needs=("group",), source="Observe-R1, arXiv 2505.12432; github.com/zrguo/Observe-R1, experience_maker.py")
def shortest_bonus(rollouts: Rollouts, *, bonus: float = 0.2, longer_than: int = 100) -> Tensor:
    """Adds `bonus` to the shortest right completion of each group, if it has more than `longer_than` tokens.

    Below that, brevity is no longer paid. Of equally short ones the first is paid. Lengths are those of the whole
    episode; right is what the task's accuracy counts.

    Returns:
        [N]
    """
    tokens, solved, shaped = lengths(rollouts), rollouts.is_correct, rollouts.reward.clone()
    for chosen in members(rollouts):
        able = chosen[solved[chosen]]
        if len(able):
            first = able[tokens[able].argmin()]
            shaped[first] += bonus * (tokens[first] > longer_than)
    return shaped
