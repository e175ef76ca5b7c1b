"""Rewards for spans of time, (start, end) in seconds: temporal grounding and grounded question answering.

A span without length, inside out or not finite is worth 0. Nothing is cut off to the length of the video: time outside
it is wrong time. None of these raises on numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from rewards.total import total

Interval = tuple[float, float]
LONGEST = 1e300  # seconds; larger numbers could not be added


@total()
def tiou(predicted: Sequence[float], truth: Sequence[float]) -> float:
    """Temporal intersection over union, in [0, 1]."""
    return set_iou([predicted], [truth])


@total()
def iop(predicted: Sequence[float], truth: Sequence[float]) -> float:
    """Intersection over the predicted length, in [0, 1] (NExT-GQA, 2309.01327). To report, not to train on.

    Any short span inside the truth has 1; a point has 0, to which the official evaluation gives 1.
    """
    if not _sound([predicted, truth]):
        return 0.0
    return _share(_shared([predicted], [truth]), _length([predicted]))


@total()
def set_iou(predicted: Sequence[Sequence[float]], truths: Sequence[Sequence[float]]) -> float:
    """IoU of the times that two lists of spans cover, in [0, 1]; overlapping ones count once (VideoChat-R1).

    Two empty lists are worth 1; one, or one span that is not sound, is worth 0.
    """
    if not predicted or not truths:
        return float(len(predicted) == len(truths))
    if not _sound([*predicted, *truths]):
        return 0.0
    shared = _shared(predicted, truths)
    return _share(shared, _length(predicted) + _length(truths) - shared)


def merged(spans: Sequence[Sequence[float]]) -> list[Interval]:
    """The spans in order, those that overlap or touch made one."""
    joined: list[Interval] = []
    for start, end in sorted((float(start), float(end)) for start, end in spans):
        if joined and start <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(joined[-1][1], end)
        else:
            joined.append((start, end))
    return joined


def _sound(spans: Sequence[Sequence[float]]) -> bool:
    return all(len(span) == 2 and -LONGEST <= span[0] < span[1] <= LONGEST for span in spans)


def _length(spans: Sequence[Sequence[float]]) -> float:
    return math.fsum(end - start for start, end in merged(spans))


def _shared(first: Sequence[Sequence[float]], second: Sequence[Sequence[float]]) -> float:
    """The time that is in both; the spans are walked through once."""
    a, b = merged(first), merged(second)
    shared, i, j = [0.0], 0, 0
    while i < len(a) and j < len(b):
        shared.append(max(min(a[i][1], b[j][1]) - max(a[i][0], b[j][0]), 0.0))
        if a[i][1] < b[j][1]:
            i += 1
        else:
            j += 1
    return math.fsum(shared)


def _share(part: float, whole: float) -> float:
    return min(max(part / whole, 0.0), 1.0) if whole > 0 else 0.0
