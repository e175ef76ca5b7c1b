"""How two sequences of characters or words fit each other, in time and memory of the product of their lengths."""

from __future__ import annotations

from collections.abc import Hashable, Sequence


def edits(first: Sequence[Hashable], second: Sequence[Hashable]) -> int:
    """The least number of items to insert, delete or replace (Levenshtein)."""
    above = list(range(len(second) + 1))
    for i, a in enumerate(first, 1):
        row = [i]
        for j, b in enumerate(second, 1):
            row.append(min(above[j] + 1, row[j - 1] + 1, above[j - 1] + (a != b)))
        above = row
    return above[-1]


def common(first: Sequence[Hashable], second: Sequence[Hashable]) -> int:
    """Length of the longest common subsequence, one bit per item of the first (Hyyro 2004)."""
    places: dict[Hashable, int] = {}
    for i, item in enumerate(first):
        places[item] = places.get(item, 0) | 1 << i
    every = unmatched = (1 << len(first)) - 1
    for item in second:
        hits = unmatched & places.get(item, 0)
        unmatched = (unmatched + hits) | (unmatched - hits)
    return len(first) - (unmatched & every).bit_count()
