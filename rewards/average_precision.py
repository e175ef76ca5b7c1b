"""COCO's average precision of one image, for boxes that a model lists without scores."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rewards.boxes import Object
from rewards.matching import ious
from rewards.total import total

COCO = tuple(np.linspace(0.5, 0.95, 10).tolist())  # IoUs from which on a box counts as found
MOST = 100  # boxes of a label that count
RECALLS = np.linspace(0.0, 1.0, 101)  # at which the precision is read off


@total()
def average_precision(
    predicted: Sequence[Object], truths: Sequence[Object], thresholds: Sequence[float] = COCO
) -> float:
    """Mean over the truths' labels and the thresholds of the area under precision and recall, in [0, 1].

    Every score is 1, so that earlier boxes rank higher; labels are compared with their case; other labels do not count,
    nor do boxes after the last right one: as a reward it needs a term against surplus boxes (`vlm_r1.od_length`). Two
    empty lists are worth 1, one is worth 0. Equals pycocotools 2.0.11 to 1e-9. Never raises on numbers.
    """
    if not predicted or not truths:
        return float(not predicted and not truths)
    labels = dict.fromkeys(truth.label for truth in truths)
    return float(np.mean([_of_label(label, predicted, truths, thresholds) for label in labels]))


def _of_label(label: str, predicted: Sequence[Object], truths: Sequence[Object], thresholds: Sequence[float]) -> float:
    boxes, right = ([o.box for o in objects if o.label == label] for objects in (predicted, truths))
    if not boxes:
        return 0.0
    found = _found(ious(boxes[:MOST], right), thresholds)
    return float(np.mean([_area(row, len(right)) for row in found]))


def _found(overlaps: np.ndarray, thresholds: Sequence[float]) -> np.ndarray:
    """IoUs [boxes, truths] -> bool [thresholds, boxes]: which box takes a truth, each the best that is left to it.

    Of equally good truths the last is taken, as in pycocotools.
    """
    least = np.minimum(thresholds, 1 - 1e-10)  # a perfect box may miss 1 by rounding
    free = np.ones((len(least), overlaps.shape[1]), dtype=bool)
    found = np.zeros((len(least), overlaps.shape[0]), dtype=bool)
    for box in np.flatnonzero(overlaps.max(axis=1) >= least.min()):
        left = np.where(free, overlaps[box], -1.0)
        best = left.shape[1] - 1 - left[:, ::-1].argmax(axis=1)
        hits = np.flatnonzero(left[np.arange(len(least)), best] >= least)
        found[hits, box] = True
        free[hits, best[hits]] = False
    return found


def _area(found: np.ndarray, truths: int) -> float:
    """Which boxes are right, in their order -> mean over RECALLS of the best precision at that recall or more."""
    right = np.cumsum(found)
    precision = right / np.arange(1, len(found) + 1)
    best = np.maximum.accumulate(precision[::-1])[::-1]
    reached = np.searchsorted(right / truths, RECALLS)
    return float(np.append(best, 0.0)[reached].mean())
