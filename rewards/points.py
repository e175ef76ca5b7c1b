"""Rewards for points."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rewards.total import total


@total(point=2, box=4)
def in_box(point: Sequence[float], box: Sequence[float], borders: bool = True) -> float:
    """0 or 1: the point (x, y) lies in the box (x1, y1, x2, y2); `borders` count, as ScreenSpot has it, or do not.

    A box without area holds no point. Never raises on numbers, NaN included.
    """
    x, y = point
    x1, y1, x2, y2 = box
    if not (x1 < x2 and y1 < y2):
        return 0.0
    return float(x1 <= x <= x2 and y1 <= y <= y2 if borders else x1 < x < x2 and y1 < y < y2)


@total(point=2, target=2, size=2)
def near(
    point: Sequence[float],
    target: Sequence[float],
    size: Sequence[float] = (1.0, 1.0),
    radius: float = 0.14,
    border: bool = True,
) -> float:
    """0 or 1: the point is at most `radius` away (under it without `border`), both measured in shares of `size` (w, h).

    With size (1, 1) the radius is in the unit of the points. Never raises on numbers; a size of 0 or less is worth 0.
    Source: GUI-Odyssey and OS-Atlas (14 % of the screen; on a screen that is not square, an ellipse in pixels).
    """
    if not (size[0] > 0 and size[1] > 0):
        return 0.0
    dx, dy = (point[i] / size[i] - target[i] / size[i] for i in (0, 1))
    distance = math.sqrt(dx * dx + dy * dy)
    return float(distance <= radius if border else distance < radius)
