"""Penalties and bonuses for how long completions are, one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vlrl.methods import method
from vlrl.shaping.outcomes import lengths
from vlrl.strict import Count, Rate
from vlrl.types import Rollouts

if TYPE_CHECKING:
    from torch import Tensor


@method(source="DAPO, arXiv 2503.14476, equation 13; verl workers/reward_manager/dapo.py")
def overlong(rollouts: Rollouts, *, longest: Count, cache: Count, factor: Rate = 1.0) -> Tensor:
    """Takes up to `factor` from completions that come near the length limit: softly over the last `cache` tokens.

    `r - factor * clip((n - (longest - cache)) / cache, 0, 1)` for n tokens in the whole episode. Clipped beyond
    `longest` as in the paper; the released code goes on, but there generation stops at the limit.

    Args:
        longest: where the penalty is complete: policy.max_tokens, of one turn.
        cache: so many tokens before it begins (the paper: 4096 of 20480).

    Returns:
        [N]
    """
    over = (lengths(rollouts) - (longest - cache)).to(rollouts.reward.dtype) / cache
    return rollouts.reward - factor * over.clamp(0, 1)


@method(source="LASER, arXiv 2505.15612; github.com/hkust-nlp/Laser, length_penalty.py")
def laser(rollouts: Rollouts, *, target: Count, bonus: Rate = 0.5, wrong: float = -0.5) -> Tensor:
    """Adds `bonus` to right completions of at most `target` tokens: a step, where other methods have a slope.

    With a reward of 1 or 0 this gives the published 1.5, 1 and -0.5. What is wrong gains `wrong` whatever its form; in
    the released code completions without a form, or cut off, keep a score of their own.

    Args:
        target: in tokens of the whole episode; one for all prompts (`laser_d` chooses it).

    Returns:
        [N]
    """
    solved = rollouts.is_correct
    gained = solved.to(rollouts.reward.dtype) * bonus * (lengths(rollouts) <= target)
    return rollouts.reward + gained.where(solved, wrong)
