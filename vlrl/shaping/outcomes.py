"""What shapings read of a step's episodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vlrl.types import Rollouts

if TYPE_CHECKING:
    from torch import Tensor

RIGHT = 0.5  # `correct` above which an episode counts as right


def lengths(rollouts: Rollouts) -> Tensor:
    """int64 [N]: units that the policy wrote in all turns of each episode."""
    return rollouts.group.new_zeros(len(rollouts.reward)).index_add(0, rollouts.episode, rollouts.mask.sum(1))


def right(rollouts: Rollouts) -> Tensor:
    """bool [N]: solved, as accuracy counts it; the reward may say other things as well."""
    return (rollouts.reward if rollouts.correct is None else rollouts.correct) > RIGHT


def members(rollouts: Rollouts) -> list[Tensor]:
    """Positions of each group's episodes."""
    return [(rollouts.group == number).nonzero().flatten() for number in rollouts.group.unique()]
