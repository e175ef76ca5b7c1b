"""Rewards for putting the pieces of a jigsaw back. Pieces are numbered 1..mn, row by row.

`predicted` and `truth` give, for every place of the shuffled image, the piece's place in the original.
Source: Jigsaw-R1 (github.com/zifuwanggg/Jigsaw-R1, utils/reward.py).
"""

from __future__ import annotations

from collections.abc import Sequence

from rewards import parse
from rewards.parse import total


def named(text: str, names: Sequence[str]) -> parse.Parsed:
    """Places in words, as `top left, bottom left` -> tuple of their numbers in `names`, from 1.

    Comma, semicolon and newline stand between places; case and surrounding white space do not matter. Never raises.
    Reasons: too_long, unknown_place.
    """
    if len(text) > parse.MAX_LITERAL_CHARS:
        return parse.Parsed(reason="too_long")
    number = {name: i for i, name in enumerate(names, 1)}
    words = [word.strip().lower() for word in text.replace(";", ",").replace("\n", ",").split(",")]
    order = tuple(number.get(word, 0) for word in words)
    return parse.Parsed(order) if all(order) else parse.Parsed(reason="unknown_place")


@total()
def index_accuracy(predicted: Sequence[int], truth: Sequence[int]) -> float:
    """Share of right indices, in [0, 1]; 0 when the lengths differ. Never raises.

    As in the paper an index may be repeated; n equal indices earn 1/n, what guessing earns.
    """
    if len(predicted) != len(truth) or not truth:
        return 0.0
    return sum(p == t for p, t in zip(predicted, truth, strict=True)) / len(truth)


@total()
def permutation_accuracy(predicted: Sequence[int], truth: Sequence[int]) -> float:
    """`index_accuracy` of a prediction that names every index once, in [0, 1]; else 0. Never raises.

    Unlike in the paper an index cannot be repeated, so that guessing one index for all places earns nothing.
    """
    return index_accuracy(predicted, truth) if sorted(predicted) == sorted(truth) else 0.0


def inverse(places: Sequence[int]) -> list[int]:
    """From the original's place for each place of the shuffled image to the reverse, and back; places from 1 on.

    The truth of Jigsaw-R1's backward questions. Of an answer to one, `adjacencies` takes the inverse, and of its truth:
    on the answers themselves, as in the published code, a perfect one does not score 1. An answer that is no
    permutation has no inverse and gives an empty list. Never raises.
    """
    where = {place: i for i, place in enumerate(places, 1)}
    return [where[i] for i in range(1, len(places) + 1)] if where.keys() == {*range(1, len(places) + 1)} else []


@total()
def exact(predicted: Sequence[int], truth: Sequence[int]) -> float:
    """0 or 1: every index is right. Never raises."""
    return float(len(truth) > 0 and list(predicted) == list(truth))


@total()
def adjacencies(predicted: Sequence[int], truth: Sequence[int], rows: int, columns: int) -> float:
    """Share of the truth's neighbouring pairs (side by side, one above the other) that the prediction holds too.

    In [0, 1]: right pairs / (2mn - m - n); 0 when a length is not rows * columns. Never raises. A shifted order earns
    credit here without a single right index (4 x 1: 2/3), so it complements `index_accuracy`, not replaces it.
    """
    if min(rows, columns) < 1 or not len(predicted) == len(truth) == rows * columns or rows * columns < 2:
        return 0.0
    right = _neighbours(predicted, rows, columns) & _neighbours(truth, rows, columns)
    return len(right) / (2 * rows * columns - rows - columns)


def _neighbours(grid: Sequence[int], rows: int, columns: int) -> set[tuple[int, int, str]]:
    beside = {(grid[i], grid[i + 1], "beside") for i in range(rows * columns) if (i + 1) % columns}
    below = {(grid[i], grid[i + columns], "below") for i in range((rows - 1) * columns)}
    return beside | below
