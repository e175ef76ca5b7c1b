"""Small rewards that count only where the large one was earned."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vlrl.methods import method
from vlrl.strict import Rate
from vlrl.types import Rollouts, UserError

if TYPE_CHECKING:
    from torch import Tensor


@method(source="G-RA, gated reward accumulation: arXiv 2508.10548 (abstract); the form is a reconstruction")
def g_ra(rollouts: Rollouts, *, high: str, threshold: float, weight: Rate = 1.0) -> Tensor:
    """The whole reward where the part `high` reaches `threshold`, else that part alone.

    Published: immediate rewards are accumulated only where the long-term reward meets a threshold, so that a policy
    cannot live on them. Ours: immediate rewards are all other parts of the task's reward, of the whole episode; the
    paper's several levels are several of these in a row, the lowest first.

    Args:
        high: name of the part, as `reward/NAME` in the log.
        threshold: least value of it, without its weight.
        weight: its weight in the task's reward.

    Returns:
        [N]

    Raises:
        UserError: the task's reward has no such part.
    """
    if high not in rollouts.parts:
        raise UserError(f"shaping: g_ra: the reward has no part {high!r} (one of: {', '.join(sorted(rollouts.parts))})")
    part = rollouts.parts[high].to(rollouts.reward.dtype)
    return rollouts.reward.where(part >= threshold, weight * part)
