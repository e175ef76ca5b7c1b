"""NGRPO (negative-enhanced GRPO): groups that are all wrong teach as well."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vlrl.advantages.statistics import group_means, group_sizes
from vlrl.methods import method
from vlrl.strict import Count, Rate
from vlrl.types import Rollouts, UserError

if TYPE_CHECKING:
    from torch import Tensor


@method(needs=("group",), source="NGRPO, arXiv 2509.18851; github.com/nangongrui-ngr/NGRPO, core_algos.py")
def ngrpo(rollouts: Rollouts, advantage: Tensor, *, best: float = 1.0, virtual: Count = 1, eps: Rate = 1e-6) -> Tensor:
    """GRPO's advantage, with mean and deviation (ddof 1) of the group and of `virtual` completions that earn `best`.

    The virtual ones are not trained on. A group that is all wrong becomes negative (-0.447 for 4 zeros) instead of
    silent, one whose rewards are all `best` stays exactly 0. Advantages no longer sum to 0 over a group: their mean is
    at most 0, so a policy with nothing right is pushed away from all it wrote. The published run therefore clips
    tighter (0.16, 0.24).

    Args:
        best: the largest reward that a completion can earn; rewards above it are refused.

    Returns:
        [B]

    Raises:
        UserError: a reward is above `best`.
    """
    reward, size = rollouts.reward, group_sizes(rollouts.group).to(rollouts.reward.dtype)
    highest = float(reward.max())
    if highest > best + 1e-6:  # float32 sums of parts
        raise UserError(f"advantages: ngrpo: a reward of {highest:g} is above best = {best:g}: set best to the largest")
    gap = reward - best  # of the virtual ones 0
    mean = group_means(gap, rollouts.group) * size / (size + virtual)
    squares = group_means((gap - mean) ** 2, rollouts.group) * size + virtual * mean**2
    deviation = (squares / (size + virtual - 1)).sqrt()
    return ((gap - mean) / (deviation + eps))[rollouts.episode]
