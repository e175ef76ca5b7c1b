"""Boxes, points and counts: overlap, matching within a label, average precision, and the rewards made of them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from rewards.parse import Object, total

Box = tuple[float, float, float, float]


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


# Rewards for how many there are. `rewards.parse.count` reads the number.


@total()
def exact_count(predicted: int, truth: int) -> float:
    """0 or 1: the right number. Never raises."""
    return float(predicted == truth)


@total()
def closeness(predicted: int, truth: int) -> float:
    """1 - |predicted - truth| / truth, in [0, 1]: off by the truth itself or more is worth 0. Never raises.

    A truth of 0 is worth 1 for 0 only; a truth below 0 is worth 0 to all.
    """
    most = max(truth, 1)
    return 0.0 if truth < 0 else 1.0 - min(abs(predicted - truth), most) / most


# Rewards for points.


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


# The default reward for detection: one-to-one matching within each label, paid by overlap.
#
# Boxes are (x1, y1, x2, y2), labels compared without case and outer spaces. Nothing here raises on numbers.

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
    return 2 * math.fsum(matched_credits(predicted, truths, thresholds)) / (len(predicted) + len(truths))


def matched_credits(predicted: Sequence[Object], truths: Sequence[Object], thresholds: Sequence[float]) -> list[float]:
    """What each matched pair is paid, in the matching whose sum is largest; pairs that are paid nothing left out."""
    paid: list[float] = []
    predictions, right = _by_label(predicted), _by_label(truths)
    for label in right:
        if label in predictions:
            gain = credit(ious(predictions[label], right[label]), thresholds)
            paid += gain[assign(gain)].tolist()
    return [value for value in paid if value > 0]


def _by_label(objects: Sequence[Object]) -> dict[str, list[tuple[float, ...]]]:
    listed: dict[str, list[tuple[float, ...]]] = {}
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
        return np.array([[iou(a, b) for b in second] for a in first])
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


# COCO's average precision of one image, for boxes that a model lists without scores.

COCO = tuple(np.linspace(0.5, 0.95, 10).tolist())  # IoUs from which on a box counts as found
MOST = 100  # boxes of a label that count
RECALLS = np.linspace(0.0, 1.0, 101)  # at which the precision is read off


@total()
def average_precision(
    predicted: Sequence[Object], truths: Sequence[Object], thresholds: Sequence[float] = COCO
) -> float:
    """Mean over the truths' labels and the thresholds of the area under precision and recall, in [0, 1].

    Every score is 1, so that earlier boxes rank higher; labels are compared with their case; other labels do not count,
    nor do boxes after the last right one: as a reward it needs a term against surplus boxes
    (`detection.vlm_r1_od_length`). Two
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
    matches = _match_truths(ious(boxes[:MOST], right), thresholds)
    return float(np.mean([_area(row, len(right)) for row in matches]))


def _match_truths(overlaps: np.ndarray, thresholds: Sequence[float]) -> np.ndarray:
    """IoUs [boxes, truths] -> bool [thresholds, boxes]: which box takes a truth, each the best that is left to it.

    Of equally good truths the last is taken, as in pycocotools.
    """
    least = np.minimum(thresholds, 1 - 1e-10)  # a perfect box may miss 1 by rounding
    free = np.ones((len(least), overlaps.shape[1]), dtype=bool)
    matches = np.zeros((len(least), overlaps.shape[0]), dtype=bool)
    for box in np.flatnonzero(overlaps.max(axis=1) >= least.min()):
        left = np.where(free, overlaps[box], -1.0)
        best = left.shape[1] - 1 - left[:, ::-1].argmax(axis=1)
        hits = np.flatnonzero(left[np.arange(len(least)), best] >= least)
        matches[hits, box] = True
        free[hits, best[hits]] = False
    return matches


def _area(found: np.ndarray, truths: int) -> float:
    """Which boxes are right, in their order -> mean over RECALLS of the best precision at that recall or more."""
    right = np.cumsum(found)
    precision = right / np.arange(1, len(found) + 1)
    best = np.maximum.accumulate(precision[::-1])[::-1]
    reached = np.searchsorted(right / truths, RECALLS)
    return float(np.append(best, 0.0)[reached].mean())
