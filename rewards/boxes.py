"""Rewards for boxes (x1, y1, x2, y2)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rewards.total import total

Box = tuple[float, float, float, float]


@dataclass(frozen=True)
class Object:
    """A labelled box (x1, y1, x2, y2)."""

    label: str
    box: Box


@total(first=4, second=4)
def iou(first: Sequence[float], second: Sequence[float], least: float = 0.0) -> float:
    """Intersection over union, in [0, 1]; 0 unless both boxes have an area and overlap by more than `least` each way.

    Never raises on numbers. With `least` 1 a seam of one pixel is no overlap, as in sources that count whole pixels.
    """
    if not all(map(math.isfinite, (*first, *second))):
        return 0.0
    areas = [max(box[2] - box[0], 0.0) * max(box[3] - box[1], 0.0) for box in (first, second)]
    width = min(first[2], second[2]) - max(first[0], second[0])
    height = min(first[3], second[3]) - max(first[1], second[1])
    if min(areas) <= 0 or min(width, height) <= least:
        return 0.0
    shared = width * height
    union = sum(areas) - shared
    return min(shared / union, 1.0) if math.isfinite(union) and union > 0 else 0.0


@total(box=4, truth=4, size=2)
def edges(box: Sequence[float], truth: Sequence[float], size: Sequence[float]) -> float:
    """How near the four edges lie: the harmonic mean of 1 - |distance| / (width or height of the image), in [0, 1].

    An edge that is off by the image's side or more makes it 0 (each share is cut off to [0, 1]); so does a size of 0
    or less. Never raises on numbers. Source: GUI-G1 (2505.15810), which does not cut off and leaves [0, 1].
    """
    if not (size[0] > 0 and size[1] > 0):
        return 0.0
    shares = [1.0 - abs(box[i] - truth[i]) / size[i % 2] for i in range(4)]
    return 4.0 / sum(1.0 / share for share in shares) if all(0.0 < share <= 1.0 for share in shares) else 0.0
