"""Kimi k1.5: brevity among the completions of a prompt."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from vlrl.methods import method
from vlrl.shaping.outcomes import lengths, members
from vlrl.strict import Rate
from vlrl.types import Rollouts

if TYPE_CHECKING:
    from torch import Tensor


@method(needs=("group",), source="length penalty of Kimi k1.5, arXiv 2501.12599, section 2.3.3")
def kimi_length(rollouts: Rollouts, *, weight: Rate = 1.0, begin: Annotated[int, Field(ge=0)] = 0) -> Tensor:
    """Adds `weight lambda` to right completions and `weight min(0, lambda)` to wrong ones.

    `lambda = 1/2 - (n - min n) / (max n - min n)` for n tokens of the whole episode, over the prompt's completions,
    right and wrong ones: from 1/2 for the shortest to -1/2 for the longest. Nothing where all are equally long. The
    paper begins without it and adds it with a constant weight, which it does not give: here from the step `begin` on.

    Returns:
        [N]
    """
    if rollouts.step < begin:
        return rollouts.reward
    tokens, solved, shaped = lengths(rollouts).to(rollouts.reward.dtype), rollouts.is_correct, rollouts.reward.clone()
    for chosen in members(rollouts):
        own = tokens[chosen]
        span = own.max() - own.min()
        if span > 0:
            gain = 0.5 - (own - own.min()) / span
            shaped[chosen] += weight * gain.where(solved[chosen], gain.clamp(max=0.0))
    return shaped
