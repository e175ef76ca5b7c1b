"""Rewards for short answers: the text inside the answer tags against the truth, both as they are written.

Nothing is searched for inside other words, and contradictions are worth 0. An empty truth is worth 0 to all. None of
these raises on any text; all take linear time but `default`, whose texts are bounded. Source: VLM-R1
(github.com/om-ai-lab/VLM-R1, grpo_jsonl.py); differences in docs/rewards.md.
"""

from __future__ import annotations

import re
from fractions import Fraction

from rewards.alignment import common
from rewards.text import MAX_EDITED
from rewards.total import total

MAX_ANSWER = 2_000  # characters; longer ones are no short answers
# each takes linear time: a match starts at a fixed place and nothing can be split in two ways
_LEAD = re.compile(r"(?:THE )?(?:CORRECT )?(?:ANSWER|OPTION|CHOICE)(?: IS)?:? ")
_CHOICE = re.compile(r"([A-Z])(?:[.,:;?!]|[.,:;?!] .*)?")
_LONE_LETTERS = re.compile(r"(?<![A-Z])[A-Z](?=[.,:;?!]|$)")
_NUMBER = re.compile(r"[+-]?[0-9]{1,18}(?:\.[0-9]{1,18})?(?:[eE][+-]?[0-9]{1,2})?\.?")
_THOUSANDS = re.compile(r"[+-]?[0-9]{1,3}(?:,[0-9]{3}){1,5}")


@total()
def all_match(predicted: str, truth: str) -> float:
    """0 or 1: the same text; neither case, line breaks, outer spaces nor final dots count."""
    return float(_plain(predicted) == _plain(truth) != "")


@total()
def multiple_choice(predicted: str, truth: str) -> float:
    """0 or 1: the same letter, alone or before the option's text: `B`, `b.`, `B. cat`, `The answer is B`."""
    return float(choice(truth) is not None and choice(predicted) == choice(truth))


@total()
def yes_no(predicted: str, truth: str) -> float:
    """0 or 1: both begin with the same one of the words yes and no, and do not hold the other."""
    return float(_verdict(truth) is not None and _verdict(predicted) == _verdict(truth))


@total()
def numeric(predicted: str, truth: str) -> float:
    """0 or 1: the same decimal number, and nothing but it (`3`, `3.0`, `1e3`)."""
    right = _number(truth)
    return float(right is not None and _number(predicted) == right)


@total()
def default(predicted: str, truth: str) -> float:
    """The same number or letter where the truth is one, else how similar the texts are, in [0, 1].

    Numbers may be fractions, have thousands marked by commas, or stand in $ $ or \\boxed{ }. Similar is twice the
    longest common subsequence over the sum of the lengths, without case; texts over MAX_EDITED characters are similar
    to themselves only.
    """
    right = _value(truth)
    if right is not None:
        return float(_value(predicted) == right)
    if choice(truth) is not None:
        return multiple_choice(predicted, truth)
    first, second = _plain(predicted), _plain(truth)
    if not first or not second or max(len(first), len(second)) > MAX_EDITED:
        return float(first == second != "")
    return 2 * common(first, second) / (len(first) + len(second))


def _plain(text: str) -> str:
    return " ".join(line.strip() for line in text[: MAX_ANSWER + 1].strip().split("\n")).rstrip(".").strip().lower()


def choice(text: str) -> str | None:
    """The letter that a text chooses, as a capital; None where it chooses none or names several."""
    written = " ".join(text[:MAX_ANSWER].upper().split())
    lead = _LEAD.match(written)
    found = _CHOICE.fullmatch(written, lead.end() if lead else 0)
    return found[1] if found and len(_LONE_LETTERS.findall(written)) == 1 else None


def _verdict(text: str) -> str | None:
    written = " ".join(text[:MAX_ANSWER].upper().split())
    lead = _LEAD.match(written)
    words = re.findall(r"\w+", written[lead.end() if lead else 0 :])
    said = {"YES", "NO"} & set(words)
    return words[0] if len(said) == 1 and words[0] in said else None


def _number(text: str) -> Fraction | None:
    written = text.strip()
    return Fraction(written.rstrip(".")) if _NUMBER.fullmatch(written) else None


def _value(text: str) -> Fraction | None:
    written = text.strip()
    for start, end in (("$", "$"), ("\\boxed{", "}")):
        if len(written) > len(start) and written.startswith(start) and written.endswith(end):
            written = written[len(start) : -len(end)].strip()
    if _THOUSANDS.fullmatch(written):
        written = written.replace(",", "")
    above, _, below = written.partition("/")
    whole, share = _number(above), _number(below or "1")
    return whole / share if whole is not None and share else None
