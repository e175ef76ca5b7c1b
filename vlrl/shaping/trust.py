"""Trust-GRPO (SophiaVL-R1): a judge's reward for the thinking, as far as it agrees with the answers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from vlrl.methods import method
from vlrl.shaping.outcomes import members
from vlrl.strict import Rate
from vlrl.types import Rollouts, UserError

if TYPE_CHECKING:
    from torch import Tensor


@method(needs=("group",), source="Trust-GRPO: SophiaVL-R1, arXiv 2505.17018; github.com/kxfan2002/SophiaVL-R1")
def trust(
    rollouts: Rollouts, *, thinking: str, amount: float = 0.3, period: Rate = 500.0, least: float = 0.0
) -> Tensor:
    """Adds `amount exp(-step / period) gamma t` to each reward, t the part of the score that judges the thinking.

    gamma, per group, is 1 where the right answers' thinking is judged at least as good on average as the wrong ones',
    else exp of the difference, below 1: the judge contradicts the answers and is believed less. An answer counts as the
    task's accuracy does, in [0, 1], and is right from 0.5 on; without right ones, or wrong ones, gamma is 1. A group
    whose answers are all at least 0.9 or all at most 0.1 gains nothing. Give the thinking a weight of 0 in
    `task.weights`, or it counts twice.

    Args:
        thinking: the part that judges the thinking, in [0, 1].
        period: steps until the term has fallen to 1 / e; 500 in the class, 12000 in the published run.
        least: thinking of answers below it counts as 0. The published code has 0.2, with which answers of 0 and 1
            never lower gamma.

    Returns:
        [N]

    Raises:
        UserError: the task's score has no such part.
    """
    if thinking not in rollouts.parts:
        raise UserError(f"shaping: trust: the score has no part {thinking!r}, only: {', '.join(rollouts.parts)}")
    answers = rollouts.correctness
    thoughts = rollouts.parts[thinking].to(rollouts.reward.dtype).where(answers >= least, 0.0)
    shaped, weight = rollouts.reward.clone(), amount * math.exp(-rollouts.step / period)
    for chosen in members(rollouts):
        own = answers[chosen]
        if not ((own >= 0.9).all() or (own <= 0.1).all()):
            shaped[chosen] += weight * _belief(own >= 0.5, thoughts[chosen]) * thoughts[chosen]
    return shaped


def _belief(right: Tensor, thoughts: Tensor) -> float:
    """gamma of one group, for right bool [G] and thoughts [G]."""
    if right.all() or not right.any():
        return 1.0
    return math.exp(min(float(thoughts[right].mean() - thoughts[~right].mean()), 0.0))
