"""What shapings read of a step's episodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vlrl.methods import method
from vlrl.types import Rollouts

if TYPE_CHECKING:
    from torch import Tensor


@method(source="OpenVLThinker, arXiv 2503.17352: accuracy alone is paid")
def correctness(rollouts: Rollouts) -> Tensor:
    """Pays how correct an answer is, as the task's accuracy counts it, and nothing else, whatever the task's weights.

    Returns:
        [N]
    """
    return rollouts.correctness


def lengths(rollouts: Rollouts) -> Tensor:
    """int64 [N]: units that the policy wrote in all turns of each episode."""
    return rollouts.group.new_zeros(len(rollouts.reward)).index_add(0, rollouts.episode, rollouts.mask.sum(1))


def members(rollouts: Rollouts) -> list[Tensor]:
    """Positions of each group's episodes."""
    return [(rollouts.group == number).nonzero().flatten() for number in rollouts.group.unique()]
