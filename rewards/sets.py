"""Reward for lists whose order does not count. What is named twice is surplus the second time."""

from __future__ import annotations

import re
from collections import Counter
from fractions import Fraction

from rewards import numbers, parse
from rewards.parse import MAX_LITERAL_CHARS
from rewards.texts import normal
from rewards.total import total

MAX_ITEMS = 100
_BETWEEN = re.compile(r"[;\n]|,(?![0-9]{3}(?![0-9]))|\band\b")  # a comma before three digits marks thousands
Item = str | tuple[Fraction, str]


@total()
def f1(predicted: str, truth: str) -> float:
    """F1 of two lists of items, in [0, 1]: twice those in common over all that both name.

    A JSON list, or items between commas, semicolons, line breaks or `and`. Items are the same number (`3.0`, `3`) or
    the same text (`rewards.texts.normal`). An empty truth is worth 0. Never raises; linear in the texts.
    """
    found, right = items(predicted), items(truth)
    if not found or not right:
        return 0.0
    return 2 * (Counter(found) & Counter(right)).total() / (len(found) + len(right))


def items(text: str) -> list[Item]:
    """The items that a text lists, repeats included; none where they are more than MAX_ITEMS or too long."""
    written = text.strip()
    if len(written) > MAX_LITERAL_CHARS:
        return []
    listed = parse.literal(written).value if written.startswith("[") else None
    plain = isinstance(listed, list) and all(isinstance(each, str | int | float) for each in listed)
    parts = [str(each)[:MAX_LITERAL_CHARS] for each in listed] if plain else _BETWEEN.split(_inside(written))
    found = [item for part in parts[: MAX_ITEMS + 1] if (item := _item(part)) != ""]
    return found if len(found) <= MAX_ITEMS else []


def _inside(written: str) -> str:
    return written[1:-1] if written[:1] + written[-1:] in ("{}", "[]", "()") else written


def _item(text: str) -> Item:
    number = numbers.read(text).value
    return (number.value, number.unit) if number else normal(text)
