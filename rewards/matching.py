"""The default reward for detection: one-to-one matching within each label, paid by overlap.

Boxes are (x1, y1, x2, y2), labels compared without case and outer spaces. Nothing here raises on numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from rewards import boxes
from rewards.boxes import Object
from rewards.total import total

THRESHOLDS = (0.5, 0.95)  # COCO's lowest and highest IoU
Boxes = Sequence[Sequence[float]] | np.ndarray  # [N, 4]
FEW = 9  # pairs up to which a loop is faster than arrays


@total()
def f1(predicted: Sequence[Object], truths: Sequence[Object], thresholds: Sequence[float] = THRESHOLDS) -> float:
    """Twice the credit of the best one-to-one matching, over the number of all boxes, in [0, 1].

    A box is matched to one truth of its label at most and paid `credit` of their IoU, so that duplicates, phantoms and
    wrong labels only add to the denominator, and the order says nothing. Two empty lists are worth 1, one is worth 0.
    """
    if not predicted or not truths:
        return float(not predicted and not truths)
    return 2 * math.fsum(credits(predicted, truths, thresholds)) / (len(predicted) + len(truths))


def credits(predicted: Sequence[Object], truths: Sequence[Object], thresholds: Sequence[float]) -> list[float]:
    """What each matched pair is paid, in the matching whose sum is largest; pairs that are paid nothing left out."""
    paid: list[float] = []
    found, right = _by_label(predicted), _by_label(truths)
    for label in right:
        if label in found:
            gain = credit(ious(found[label], right[label]), thresholds)
            paid += gain[assign(gain)].tolist()
    return [value for value in paid if value > 0]


def _by_label(objects: Sequence[Object]) -> dict[str, list[boxes.Box]]:
    listed: dict[str, list[boxes.Box]] = {}
    for each in objects:
        listed.setdefault(normal(each.label), []).append(each.box)
    return listed


def credit(iou: np.ndarray, thresholds: Sequence[float]) -> np.ndarray:
    """0 below the lowest threshold, 1 from the highest on, in between as many equal steps as there are, linearly.

    One threshold makes it 0 or 1. `thresholds` rise and lie in (0, 1].
    """
    if len(thresholds) == 1:
        return (iou >= thresholds[0]).astype(float)
    return np.interp(iou, thresholds, np.linspace(0.0, 1.0, len(thresholds)))


def assign(gain: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows and columns of the one-to-one matching with the largest sum of finite gains [N, M]; min(N, M) pairs."""
    if 1 in gain.shape:  # the one row or column takes its best
        best = np.unravel_index(np.argmax(gain), gain.shape)
        return best[0].reshape(1), best[1].reshape(1)
    from scipy.optimize import linear_sum_assignment  # takes half a second to load

    return linear_sum_assignment(gain, maximize=True)


def ious(first: Boxes, second: Boxes) -> np.ndarray:
    """Intersection over union of every pair -> float64 [N, M] in [0, 1]; 0 where a box has no area."""
    if 0 < len(first) * len(second) <= FEW:
        return np.array([[boxes.iou(a, b) for b in second] for a in first])
    a, b = _columns(first, second)
    with np.errstate(all="ignore"):
        shared, union = _overlaps(a, b)
        return np.where((shared > 0) & np.isfinite(union), np.minimum(shared / union, 1.0), 0.0)


def gious(first: Boxes, second: Boxes) -> np.ndarray:
    """Generalized IoU of every pair -> float64 [N, M] in [-1, 1]: IoU minus the share of the hull that neither covers.

    -1 where a box has no area. Source: Rezatofighi et al. (1902.09630).
    """
    a, b = _columns(first, second)
    with np.errstate(all="ignore"):
        shared, union = _overlaps(a, b)
        hull = (np.maximum(a[2], b[2]) - np.minimum(a[0], b[0])) * (np.maximum(a[3], b[3]) - np.minimum(a[1], b[1]))
        whole = (a[2] > a[0]) & (a[3] > a[1]) & (b[2] > b[0]) & (b[3] > b[1]) & np.isfinite(hull) & (union > 0)
        return np.where(whole, np.clip(shared / union - (hull - union) / hull, -1.0, 1.0), -1.0)


def _columns(first: Boxes, second: Boxes) -> tuple[np.ndarray, np.ndarray]:
    """x1, y1, x2, y2 of both, to be combined pair by pair: [4, N, 1] and [4, 1, M]."""
    a, b = (np.array(boxes, dtype=np.float64).reshape(-1, 4).T for boxes in (first, second))
    return a[:, :, None], b[:, None, :]


def _overlaps(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Areas [N, M] of intersection and union."""
    widths = np.minimum(a[2], b[2]) - np.maximum(a[0], b[0])
    heights = np.minimum(a[3], b[3]) - np.maximum(a[1], b[1])
    shared = np.maximum(widths, 0.0) * np.maximum(heights, 0.0)
    areas = [np.maximum(c[2] - c[0], 0.0) * np.maximum(c[3] - c[1], 0.0) for c in (a, b)]
    return shared, areas[0] + areas[1] - shared


def normal(label: str) -> str:
    return label.strip().casefold()
