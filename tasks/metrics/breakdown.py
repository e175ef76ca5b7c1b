"""Accuracy by category, and the best that one constant click would do: what benchmarks report beside the headline."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import numpy as np

from rewards.boxes import Box
from rewards.matching import ious
from vlrl.types import Episode

Values = Iterable[tuple[str, float]]  # (category, value) of each sample
GRID = 20  # candidate points along each side
CANDIDATES = 1000  # boxes that are tried
CHUNK = 256  # candidates compared with all targets at once


def mean(values: Sequence[float]) -> float:
    """0 for no values."""
    return sum(values) / len(values) if values else 0.0


def by_category(values: Values) -> dict[str, float]:
    """Mean by category, sorted; one without a single hit stays, as 0. Samples without a category are left out."""
    sums: dict[str, list[float]] = defaultdict(list)
    for category, value in values:
        if category:
            sums[category].append(value)
    return {category: mean(listed) for category, listed in sorted(sums.items())}


def accuracy_by(episodes: Sequence[Episode], *keys: str) -> dict[str, float]:
    """Accuracy by what the tags say, as `mobile/text`; samples that lack one of the tags are left out."""
    return by_category(
        ("/".join(e.sample.tags[key] for key in keys), e.score.correct)
        for e in episodes
        if all(key in e.sample.tags for key in keys)
    )


def parse_failures(episodes: Sequence[Episode]) -> float:
    """The share of completions that could not be read."""
    return mean([float(e.score.reason is not None) for e in episodes])


def best_constant_click(
    boxes: Sequence[Sequence[float]], sizes: Sequence[Sequence[float]]
) -> tuple[float, float, float]:
    """(accuracy, x, y): the one point, in shares of the image, that would hit the most targets without looking.

    Args:
        boxes: n targets, corners in pixels.
        sizes: width and height of each target's image.

    Candidates are the middles of a GRID x GRID raster and the targets' centres; borders count as hits.
    """
    scale = np.tile(np.asarray(sizes, dtype=np.float64).reshape(-1, 2), 2)
    low, high = np.split(np.asarray(boxes, dtype=np.float64).reshape(-1, 4) / scale, 2, axis=1)
    if not len(low):
        return 0.0, 0.5, 0.5
    raster = (np.arange(GRID) + 0.5) / GRID
    points = np.concatenate([np.stack(np.meshgrid(raster, raster), -1).reshape(-1, 2), (low + high) / 2])
    hits = np.concatenate([
        ((chunk[:, None] >= low) & (chunk[:, None] <= high)).all(-1).mean(1)
        for chunk in np.split(points, range(CHUNK, len(points), CHUNK))
    ])  # fmt: skip
    best = int(hits.argmax())
    return float(hits[best]), float(points[best, 0]), float(points[best, 1])


def best_constant_box(boxes: Sequence[Sequence[float]], sizes: Sequence[Sequence[float]], least: float) -> float:
    """The share of targets that the best single box, in shares of the image, overlaps with an IoU of at least `least`.

    Candidates are up to CANDIDATES of the targets, evenly spread. Arguments as for `best_constant_click`.
    """
    scale = np.tile(np.asarray(sizes, dtype=np.float64).reshape(-1, 2), 2)
    shares = np.asarray(boxes, dtype=np.float64).reshape(-1, 4) / scale
    candidates = shares[:: max(1, -(-len(shares) // CANDIDATES))]
    return max((float((ious([box], shares) >= least).mean()) for box in candidates), default=0.0)


def best_constant_list(truths: Sequence[Sequence[Box]], sizes: Sequence[Sequence[float]], least: float) -> float:
    """The F1 over all images that the best single box, in shares of the image and the same for all, would have.

    Args:
        truths: the boxes of each image, corners in pixels.
        sizes: width and height of each image.
        least: the IoU from which on a box is found.
    """
    number = [i for i, boxes in enumerate(truths) for _ in boxes]
    scale = np.tile(np.asarray(sizes, dtype=np.float64).reshape(-1, 2), 2)
    shares = np.asarray([box for boxes in truths for box in boxes], dtype=np.float64).reshape(-1, 4) / scale[number]
    best = 0
    for candidate in shares[:: max(1, -(-len(shares) // CANDIDATES))]:
        hit = ious([candidate], shares)[0] >= least
        best = max(best, len(set(np.asarray(number)[hit].tolist())))
    return 2 * best / (len(truths) + len(shares)) if len(shares) else 0.0
