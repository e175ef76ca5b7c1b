"""Rewards for open answers in words: the same text, words in common, errors of reading. See `rewards.words` for ROUGE.

Case, outer punctuation and a leading article do not count; punctuation inside words does (12.50 is not 1250). Bounded:
a text of more than MAX_WORDS words, or MAX_EDITED characters where characters are compared, is worth 0. An empty truth
is worth 0. None of these raises on any text.
"""

from __future__ import annotations

import unicodedata
from collections import Counter

from rewards.alignment import common, edits
from rewards.text import MAX_EDITED
from rewards.total import total
from rewards.words import MAX_WORDS

MAX_TEXT = 4_000  # characters
_OPENING, _CLOSING = "\"'([{“‘«`*", "\"')]}”’»`*.,;:!?…"
_ARTICLES = ("a", "an", "the")


@total()
def exact(predicted: str, truth: str) -> float:
    """0 or 1: the same words in the same order."""
    return float(_told(predicted) == _told(truth) != [])


@total()
def token_f1(predicted: str, truth: str) -> float:
    """F1 of the words as often as they are written, in [0, 1]; their order does not count.

    Source: SQuAD (1606.05250), which also takes punctuation out of words.
    """
    found, right = _told(predicted), _told(truth)
    if not found or not right:
        return 0.0
    return 2 * (Counter(found) & Counter(right)).total() / (len(found) + len(right))


@total()
def rouge_l(predicted: str, truth: str) -> float:
    """F1 of the longest common subsequence of words, in [0, 1]; any script, no stems.

    Source: Lin 2004, `ROUGE: A Package for Automatic Evaluation of Summaries`.
    """
    found, right = _told(predicted), _told(truth)
    return 2 * common(found, right) / (len(found) + len(right)) if found and right else 0.0


@total()
def word_accuracy(predicted: str, truth: str) -> float:
    """1 - word error rate (edits of words / words of the truth), in [0, 1]."""
    found, right = _told(predicted), _told(truth)
    return max(0.0, 1.0 - edits(found, right) / len(right)) if right else 0.0


@total()
def anls(predicted: str, truth: str) -> float:
    """1 - edits of characters / length of the longer text, in [0.5, 1], else 0.

    Source: the average normalised Levenshtein similarity of ST-VQA and DocVQA (1905.13648), threshold 0.5.
    """
    found, right = " ".join(_told(predicted)), " ".join(_told(truth))
    longer, shorter = max(len(found), len(right)), min(len(found), len(right))
    if not right or longer > MAX_EDITED or 2 * shorter < longer:  # so many edits that it is below the threshold
        return float(found == right != "")
    similar = 1.0 - edits(found, right) / longer
    return similar if similar >= 0.5 else 0.0


def normal(text: str) -> str:
    """A text in normal form and case, its words without punctuation around; '' for a too long one."""
    return " ".join(_words(text))


def _told(text: str) -> list[str]:
    """The words without a leading article."""
    words = _words(text)
    return words[1:] if len(words) > 1 and words[0] in _ARTICLES else words


def _words(text: str) -> list[str]:
    if len(text) > MAX_TEXT:
        return []
    written = unicodedata.normalize("NFKC", text).casefold().split()
    words = [word.lstrip(_OPENING).rstrip(_CLOSING) for word in written]
    words = [word for word in words if word]
    return words if len(words) <= MAX_WORDS else []
