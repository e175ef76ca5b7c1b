"""Reward for writing the answer in the asked form."""

from __future__ import annotations

from collections.abc import Callable

from rewards import parse
from rewards.total import total


@total()
def tagged(completion: str, thinking: bool, read: Callable[[str], parse.Parsed] = parse.Parsed) -> float:
    """0 or 1: the tags are right (`parse.answer_text`) and `read` accepts what is inside them. Never raises."""
    return float(parse.answer(completion, thinking, read).reason is None)
