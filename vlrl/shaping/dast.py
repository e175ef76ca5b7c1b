"""Brevity among the completions of a prompt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from vlrl.methods import method
from vlrl.shaping.outcomes import lengths, members
from vlrl.types import Rollouts

if TYPE_CHECKING:
    from torch import Tensor


@method(needs=("group",), source="UI-R1-E (DAST), arXiv 2503.21620; github.com/lll6gg/UI-R1")
def dast(rollouts: Rollouts, *, full: float = 3.0, slope: float = -0.5, offset: float = 0.5) -> Tensor:
    """Adds what each completion gains for brevity among its group, see `brevity`.

    A length is the number of tokens that the policy wrote in the whole episode. The published trainer takes the padded
    row's, so that all are equal and nothing is learned about length.

    Args:
        full: the reward from which a completion counts as right; UI-R1's three parts add up to 3.

    Returns:
        [N]
    """
    reward = rollouts.reward
    tokens, shaped = lengths(rollouts), reward.clone()
    for chosen in members(rollouts):
        right = (reward[chosen] >= full).tolist()
        shaped[chosen] += reward.new_tensor(brevity(right, tokens[chosen].tolist(), slope=slope, offset=offset))
    return shaped


def brevity(right: Sequence[bool], tokens: Sequence[int], slope: float = -0.5, offset: float = 0.5) -> list[float]:
    """What each completion of a group gains for brevity: 0.1 to 1 if it is `right`, else -1 to -0.1.

    The budget mixes the mean length of the right ones and the longest: the more are right, the shorter. With
    d = (length - budget) / budget a right one gains max(slope * d + offset, 0.1), a wrong one min(0.9 d - 0.1, -0.1).

    Raises:
        ValueError: no completion, or another number of lengths.
    """
    if not right or len(right) != len(tokens):
        raise ValueError(f"{len(right)} completions, {len(tokens)} lengths: one length each, at least one")
    own = [length for good, length in zip(right, tokens, strict=True) if good]
    share = len(own) / len(right)
    budget = (share * sum(own) / len(own) if own else 0.0) + (1 - share) * max(tokens)
    terms = []
    for good, length in zip(right, tokens, strict=True):
        over = (length - budget) / budget if budget > 0 else 0.0
        term = max(slope * over + offset, 0.1) if good else min(0.9 * over - 0.1, -0.1)
        terms.append(min(max(term, -1.0), 1.0))
    return terms
