"""Rewards for short texts: what is typed, directions, a judge's verdict. Whole words and whole texts, no substrings."""

from __future__ import annotations

from collections import Counter

from rewards.alignment import edits
from rewards.total import total

DIRECTIONS = ("up", "down", "left", "right")
MAX_EDITED = 500  # characters; the edit distance takes time in the product of the lengths


@total()
def token_f1(predicted: str, truth: str) -> float:
    """F1 of the words of two texts, in [0, 1]; neither case nor order counts; 0 when either has no word.

    The smaller of the F1 of the sets of words (GUI-R1, OS-Atlas) and of the words as often as they are written, so
    that repeating a word is not free. Never raises; linear in the texts.
    """
    words, right = Counter(predicted.lower().split()), Counter(truth.lower().split())
    if not words or not right:
        return 0.0
    as_sets = len(words.keys() & right.keys()) / (len(words) + len(right))
    as_written = (words & right).total() / (words.total() + right.total())
    return 2 * min(as_sets, as_written)


@total()
def direction(predicted: str, truth: str) -> float:
    """0 or 1: both are the same one of up, down, left, right; case does not count. Never raises."""
    return float(predicted.lower() == truth.lower() and truth.lower() in DIRECTIONS)


@total()
def similar(predicted: str, truth: str) -> float:
    """0 or 1: at least half of the longer text need not be edited (Levenshtein); case counts.

    An empty text is similar to the empty text only; texts over MAX_EDITED characters only to themselves. Never raises.
    Source: GUI-Odyssey, which also takes any text that contains the other, the empty one included.
    """
    longest = max(len(predicted), len(truth))
    if predicted == truth or longest > MAX_EDITED or not predicted or not truth:
        return float(predicted == truth)
    return float(1 - edits(predicted, truth) / longest >= 0.5)


@total()
def verdict(reply: str) -> float:
    """0 or 1: a judge's reply ends in its only `Status:`, followed by the one word `success`. Never raises.

    Source: DigiRL's evaluator, which takes the first status and any word that contains `success`.
    """
    _, _, status = reply.partition("Status:")
    return float(status.strip().lower() == "success")
