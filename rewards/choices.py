"""Reward for a choice: one option, by its letter, by its text or by both. Two options, or all, are no choice."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rewards.texts import normal
from rewards.total import total

MAX_CHOICE = 500  # characters
# each takes linear time: it starts at a fixed place and nothing can be split in two ways
_LEAD = re.compile(r"(?:the )?(?:correct |final |best )?(?:answer|option|choice)(?: is)?:? ?(?=\S)", re.IGNORECASE)
_LETTER = re.compile(r"\(?([A-Za-z])\)?[.:]?")
_BOTH = re.compile(r"(?:\(([A-Z])\)|([A-Z])[.:)]) ?(.+)")


@total()
def chosen(predicted: str, truth: str, options: Sequence[str] = ()) -> float:
    """0 or 1: both choose the same option. A truth that chooses none is worth 0 to all. Never raises."""
    right = place(truth, options)
    return float(right is not None and place(predicted, options) == right)


def place(text: str, options: Sequence[str] = ()) -> int | None:
    """The place of the option that a text chooses, from 0; None where it chooses none or several.

    `B`, `(b)`, `B.`, `The answer is B`; the option's whole text (`rewards.texts.normal`); `B. cat` where both agree.
    A lone letter is an option's letter, whatever the options' texts are. Without `options` any letter is one and
    nothing may stand behind it.
    """
    if len(text) > MAX_CHOICE:
        return None
    written = " ".join(text.split())
    lead = _LEAD.match(written)
    for said in dict.fromkeys((written, written[lead.end() :] if lead else written)):
        found = _said(said, options)
        if found is not None:
            return found
    return None


def _said(written: str, options: Sequence[str]) -> int | None:
    if lone := _LETTER.fullmatch(written):
        index = ord(lone[1].upper()) - ord("A")
        return index if index < (len(options) or 26) else _named(written, options)
    both = _BOTH.fullmatch(written)
    if both and options:
        index = ord(both[1] or both[2]) - ord("A")
        if index < len(options):
            return index if normal(options[index]) in (normal(both[3]), normal(written)) else None
    return _named(written, options)


def _named(written: str, options: Sequence[str]) -> int | None:
    """The only option whose text this is."""
    told = normal(written)
    same = [index for index, option in enumerate(options) if told and normal(option) == told]
    return same[0] if len(same) == 1 else None
