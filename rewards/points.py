"""Rewards for points."""

from __future__ import annotations

from collections.abc import Sequence


def in_box(point: Sequence[float], box: Sequence[float]) -> float:
    """0 or 1: the point (x, y) lies in the box (x1, y1, x2, y2), borders included, as ScreenSpot counts.

    A box without area holds no point. Never raises on numbers, NaN included.
    """
    x, y = point
    x1, y1, x2, y2 = box
    return float(x1 < x2 and y1 < y2 and x1 <= x <= x2 and y1 <= y <= y2)
