"""Rewards for how long a completion is, relative to its group."""

from __future__ import annotations

from collections.abc import Sequence


def dast(
    rewards: Sequence[float], lengths: Sequence[int], best: float = 3.0, slope: float = -0.5, offset: float = 0.5
) -> list[float]:
    """What each completion of a group gains for brevity, in [-1, 1]: to be added to its reward.

    `lengths` are the completions' own numbers of tokens, without padding. The budget mixes the mean length of the right
    ones (reward equal to `best`) and the longest: the more are right, the shorter. With d = (length - budget) / budget
    a right one gains max(slope * d + offset, 0.1), a wrong one min(0.9 d - 0.1, -0.1).
    Source: UI-R1-E (DAST, github.com/lll6gg/UI-R1), whose lengths are those of padded rows, all equal.

    Raises:
        ValueError: no completion, or another number of lengths than of rewards.
    """
    if not rewards or len(rewards) != len(lengths):
        raise ValueError(f"{len(rewards)} rewards, {len(lengths)} lengths: one length a reward, at least one")
    right = [length for reward, length in zip(rewards, lengths, strict=True) if reward == best]
    share = len(right) / len(rewards)
    budget = (share * sum(right) / len(right) if right else 0.0) + (1 - share) * max(lengths)
    terms = []
    for reward, length in zip(rewards, lengths, strict=True):
        over = (length - budget) / budget if budget > 0 else 0.0
        term = max(slope * over + offset, 0.1) if reward == best else min(0.9 * over - 0.1, -0.1)
        terms.append(min(max(term, -1.0), 1.0))
    return terms
