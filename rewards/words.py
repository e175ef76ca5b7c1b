"""Rewards for longer texts, word by word: word accuracy for text that is read, ROUGE for free answers.

Both are bounded: a text of more than MAX_WORDS words is worth 0. None of these raises on any text.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from rewards.alignment import common, edits
from rewards.stemming import stem
from rewards.total import total

MAX_WORDS = 300
MAX_WORD = 40  # characters of a word that is stemmed
_WORD = re.compile(r"[a-z0-9]+")


@total()
def accuracy(predicted: str, truth: str) -> float:
    """1 - word error rate (edits of words / words of the truth), in [0, 1]; case and punctuation count.

    An empty truth is worth 0.
    """
    first, second = predicted.split(), truth.split()
    if not second or max(len(first), len(second)) > MAX_WORDS:
        return 0.0
    return max(0.0, 1.0 - edits(first, second) / len(second))


@total()
def rouge(predicted: str, truth: str) -> float:
    """Mean of the F1 of ROUGE-1, ROUGE-2 and ROUGE-L over Porter's stems, in [0, 1]; neither case nor punctuation.

    Letters and digits of ASCII only: other scripts are worth 0. Equal to the package rouge-score with stemming.
    Source: Lin 2004, `ROUGE: A Package for Automatic Evaluation of Summaries`.
    """
    first, second = _stems(predicted), _stems(truth)
    if not first or not second or max(len(first), len(second)) > MAX_WORDS:
        return 0.0
    longest = 2 * common(first, second) / (len(first) + len(second))
    return (_overlap(first, second, 1) + _overlap(first, second, 2) + longest) / 3


def _stems(text: str) -> list[str]:
    found = _WORD.findall(text.lower())
    return [stem(word) if 3 < len(word) <= MAX_WORD else word for word in found[: MAX_WORDS + 1]]


def _overlap(first: Sequence[str], second: Sequence[str], size: int) -> float:
    """F1 of the runs of `size` words, as often as they are written."""
    a, b = (Counter(tuple(words[i : i + size]) for i in range(len(words) - size + 1)) for words in (first, second))
    return 2 * (a & b).total() / (a.total() + b.total()) if a and b else 0.0
