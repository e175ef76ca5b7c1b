"""Rewards for putting the pieces of a jigsaw back. Pieces are numbered 1..mn, row by row.

`predicted` and `truth` give, for every place of the shuffled image, the piece's place in the original.
Source: Jigsaw-R1 (github.com/zifuwanggg/Jigsaw-R1, utils/reward.py).
"""

from __future__ import annotations

from collections.abc import Sequence


def index_accuracy(predicted: Sequence[int], truth: Sequence[int]) -> float:
    """Share of right indices, in [0, 1]; 0 when the lengths differ. Never raises.

    As in the paper an index may be repeated; n equal indices earn 1/n, what guessing earns.
    """
    if len(predicted) != len(truth) or not truth:
        return 0.0
    return sum(p == t for p, t in zip(predicted, truth, strict=True)) / len(truth)


def exact(predicted: Sequence[int], truth: Sequence[int]) -> float:
    """0 or 1: every index is right. Never raises."""
    return float(len(truth) > 0 and list(predicted) == list(truth))


def adjacencies(predicted: Sequence[int], truth: Sequence[int], rows: int, columns: int) -> float:
    """Share of the truth's neighbouring pairs (side by side, one above the other) that the prediction holds too.

    In [0, 1]: right pairs / (2mn - m - n); 0 when a length is not rows * columns. Never raises. A shifted order earns
    credit here without a single right index (4 x 1: 2/3), so it complements `index_accuracy`, not replaces it.
    """
    if not len(predicted) == len(truth) == rows * columns or rows * columns < 2:
        return 0.0
    right = _neighbours(predicted, rows, columns) & _neighbours(truth, rows, columns)
    return len(right) / (2 * rows * columns - rows - columns)


def _neighbours(grid: Sequence[int], rows: int, columns: int) -> set[tuple[int, int, str]]:
    beside = {(grid[i], grid[i + 1], "beside") for i in range(rows * columns) if (i + 1) % columns}
    below = {(grid[i], grid[i + columns], "below") for i in range((rows - 1) * columns)}
    return beside | below
