"""Real handwritten digits (UCI Optical Recognition, as scikit-learn ships them), single and in mosaics."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from PIL import Image

from rewards.boxes import Box, Object
from vlrl.types import Split

LABELS = tuple("0123456789")
TEST_SHARE = 3  # every third image of a class is a test image: 1,194 to train on, 603 to test on


@lru_cache(maxsize=1)
def _bundled() -> tuple[np.ndarray, np.ndarray]:
    """Ink uint8 [1797, 8, 8] in 0..255 and labels int64 [1797]."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    return (digits.images * (255 / 16)).round().astype(np.uint8), digits.target


@lru_cache(maxsize=2)
def of(split: Split) -> tuple[np.ndarray, np.ndarray]:
    """Positions of the split's digits in the data set, and their labels. No image is in both splits."""
    labels = _bundled()[1]
    rank = np.zeros_like(labels)
    for label in range(len(LABELS)):
        rank[labels == label] = np.arange((labels == label).sum())
    chosen = np.flatnonzero((rank % TEST_SHARE == 0) == (split == "test"))
    return chosen, labels[chosen]


def ink(position: int, side: int) -> Image.Image:
    """The digit as a grey image of side x side pixels, white ink on black."""
    return Image.fromarray(_bundled()[0][position]).resize((side, side), Image.Resampling.BICUBIC)


def single(position: int, size: tuple[int, int]) -> Image.Image:
    """One digit, as large as the image (width, height) lets it be."""
    side = min(size)
    image = Image.new("L", size, 0)
    image.paste(ink(position, side), ((size[0] - side) // 2, (size[1] - side) // 2))
    return image.convert("RGB")


def mosaic(
    rng: np.random.Generator, split: Split, labels: Sequence[str], size: tuple[int, int], side: tuple[float, float]
) -> tuple[Image.Image, tuple[Object, ...]]:
    """Digits of the given labels, scattered without overlap as far as there is room, and the boxes of their ink.

    `side` bounds a digit's side as a share of the image's shorter one.
    """
    positions, targets = of(split)
    canvas = np.zeros((size[1], size[0]), np.uint8)
    placed: list[Object] = []
    taken: list[Box] = []
    for label in labels:
        options = positions[targets == int(label)]
        extent = max(8, round(rng.uniform(*side) * min(size)))
        picture = np.asarray(ink(int(options[rng.integers(len(options))]), extent))
        spot = _spot(rng, size, extent, taken)
        if spot:
            x, y = spot
            canvas[y : y + extent, x : x + extent] = picture
            taken.append((x, y, x + extent, y + extent))
            placed.append(Object(label, _ink_box(picture, x, y)))
    return Image.fromarray(canvas).convert("RGB"), tuple(placed)


def _spot(rng: np.random.Generator, size: tuple[int, int], extent: int, taken: list[Box]) -> tuple[int, int] | None:
    for _ in range(60):
        x, y = (int(rng.integers(0, max(1, edge - extent + 1))) for edge in size)
        if all(x + extent <= a or c <= x or y + extent <= b or d <= y for a, b, c, d in taken):
            return x, y
    return None


def _ink_box(picture: np.ndarray, x: int, y: int) -> Box:
    """Under a quarter of full ink is no ink."""
    rows, columns = (np.flatnonzero((picture > 64).any(axis=axis)) for axis in (1, 0))
    return float(x + columns[0]), float(y + rows[0]), float(x + columns[-1] + 1), float(y + rows[-1] + 1)
