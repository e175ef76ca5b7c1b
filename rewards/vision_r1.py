"""Vision-R1's rewards (2503.18013) for a list of objects without tags; the paper adds the three up.

Predicted and true boxes are matched box first: one to one, so that the sum of their L1 distances in pixels - 1 where
the labels are the same - GIoU is least. As training goes on the bars rise (`SCHEDULE`). Unlike in the paper a pair with
different labels is worth 0, and precision is shared among all predicted boxes, so that surplus ones cost.
Nothing here raises on numbers. Source: github.com/jefferyZhan/Griffon, folder Vision-R1; differences in
docs/rewards.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rewards import parse
from rewards.boxes import Object
from rewards.matching import assign, gious, normal
from rewards.total import total

Band = tuple[float, float]


@dataclass(frozen=True)
class Stage:
    """The bars in one part of a training: the GIoU that is a `hit`; bands, below which all is 0 and above which 1."""

    hit: float = 0.5
    recall_band: Band | None = None
    precision_band: Band | None = None


STATIC = Stage()  # without a schedule, as the published script runs
SCHEDULE: Mapping[int, Stage] = {
    0: Stage(0.5, (0.5, 0.75), (0.5, 0.75)),
    1500: Stage(0.75, (0.5, 0.75), (0.75, 0.9)),
}  # training step from which on -> its bars


def stage(step: int | None, schedule: Mapping[int, Stage] = SCHEDULE) -> Stage:
    """The bars at a training step; `STATIC` without one or before the first."""
    begun = [first for first in schedule if step is not None and first <= step]
    return schedule[max(begun)] if begun else STATIC


@total()
def dual_format(completion: str, instances: int) -> float:
    """0 or 1: the completion is a list of labelled boxes; where there are no `instances`, an empty list or None."""
    read = parse.objects(completion)
    return float(read.reason is None and (instances > 0 or not read.value))


@total()
def recall(
    predicted: Sequence[Object], truths: Sequence[Object], hit: float = 0.5, band: Sequence[float] | None = None
) -> float:
    """Share of the truths whose pair has a GIoU above `hit`, in [0, 1], then put through the band.

    A pair at exactly `hit` counts `hit`, not 1, as published. Two empty lists are worth 1, one is worth 0.
    """
    if not predicted or not truths:
        return float(not predicted and not truths)
    return _banded(sum(_banded(value, (hit, hit)) for value in pairs(predicted, truths)) / len(truths), band)


@total()
def precision(predicted: Sequence[Object], truths: Sequence[Object], band: Sequence[float] | None = None) -> float:
    """Mean over the predicted boxes of their pairs' GIoUs, in [0, 1], each put through the band; 0 without a pair.

    Two empty lists are worth 1, one is worth 0.
    """
    if not predicted or not truths:
        return float(not predicted and not truths)
    return sum(_banded(value, band) for value in pairs(predicted, truths)) / len(predicted)


def pairs(predicted: Sequence[Object], truths: Sequence[Object]) -> list[float]:
    """GIoU in [-1, 1] of each matched pair, as many as the shorter list has; -1 where the labels differ.

    The order of the lists says nothing: of matchings that cost the same, one is chosen by the boxes themselves.
    """
    first, second = (sorted(objects, key=lambda o: (o.box, o.label)) for objects in (predicted, truths))
    a, b = (np.array([o.box for o in objects], dtype=float) for objects in (first, second))
    names = [normal(truth.label) for truth in second]
    same = np.array([[normal(each.label) == name for name in names] for each in first])
    overlap = gious(a, b)
    with np.errstate(all="ignore"):
        apart = np.nan_to_num(np.abs(a[:, None] - b[None]).sum(axis=-1), nan=np.inf)
    rows, columns = assign(same + overlap - np.minimum(apart, 1e300))
    return np.where(same, overlap, -1.0)[rows, columns].tolist()


def _banded(value: float, band: Sequence[float] | None) -> float:
    """0 below the band, 1 above it, itself within, cut off to [0, 1]."""
    if band is not None and value < band[0]:
        return 0.0
    return 1.0 if band is not None and value > band[1] else min(max(value, 0.0), 1.0)
