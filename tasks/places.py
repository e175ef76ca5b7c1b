"""Places as a model can write them: what its coordinates can express, and in which numbers."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from rewards import points
from vlrl.types import Frame


def expressible(frame: Frame, box: Sequence[float]) -> tuple[float, float]:
    """The box's centre in the frame's coordinates; where rounding leaves the box, a neighbour that does not."""
    x, y = frame.from_original((box[0] + box[2]) / 2, (box[1] + box[3]) / 2)
    step = 1e-4 if frame.space == "rel1" else 1.0
    around = sorted(itertools.product((0, -1, 1, -2, 2), repeat=2), key=lambda move: abs(move[0]) + abs(move[1]))
    for dx, dy in around:
        candidate = round(x + dx * step, 4), round(y + dy * step, 4)
        if points.in_box(frame.to_original(*candidate), box):
            return candidate
    return x, y


def written(frame: Frame, numbers: Sequence[float]) -> list[float]:
    """The numbers as the frame's models write them: whole, but for shares of the image."""
    return list(numbers) if frame.space == "rel1" else [int(number) for number in numbers]


def nearest(frame: Frame, given: Sequence[float], truth: Sequence[float]) -> tuple[float, ...]:
    """`given` (x, y) in pixels of the image, or `truth` where the frame cannot write anything nearer to the truth.

    So a box whose corners are as exact as the model's coordinates allow is worth the full reward.
    """
    return tuple(truth) if frame.from_original(*given) == frame.from_original(*truth) else tuple(given)


def located(frame: Frame, box: Sequence[float]) -> tuple[float, float, float, float]:
    """A box in the frame's coordinates -> pixels of the image, cut off at its borders."""
    width, height = frame.original
    (left, top), (right, bottom) = frame.to_original(*box[:2]), frame.to_original(*box[2:])
    return _within(left, width), _within(top, height), _within(right, width), _within(bottom, height)


def _within(value: float, most: float) -> float:
    return min(max(value, 0.0), most)


def corners(frame: Frame, box: Sequence[float]) -> list[float]:
    """A box in pixels of the image as the frame's models write it; never without area."""
    step = 1e-4 if frame.space == "rel1" else 1
    x1, y1, x2, y2 = written(frame, (*frame.from_original(*box[:2]), *frame.from_original(*box[2:])))
    if x2 <= x1:
        x1, x2 = (x1, x1 + step) if x1 < 1 else (x1 - step, x1)
    if y2 <= y1:
        y1, y2 = (y1, y1 + step) if y1 < 1 else (y1 - step, y1)
    return [x1, y1, x2, y2]


def as_exact(
    frame: Frame, boxes: Sequence[Sequence[float]], truths: Sequence[Sequence[float]]
) -> list[tuple[float, ...]]:
    """Boxes in pixels of the image; in place of each one the truth that the frame's models cannot write any nearer."""
    written_alike = {tuple(corners(frame, truth)): tuple(truth) for truth in truths}
    return [written_alike.get(tuple(corners(frame, box)), tuple(box)) for box in boxes]
