"""Pictures with labelled objects, drawn without a download: one function per source, all called alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from PIL import Image

from rewards.boxes import Object
from tasks.base import check
from tasks.drawn import digits, robot_scenes, scenes
from vlrl.types import Split

COLORS = tuple(scenes.COLORS)
Drawn = tuple[Image.Image, tuple[Object, ...]]


@dataclass(frozen=True)
class Source:
    """`draw(rng, split, labels, size, side)` shows an object of each label, as far as there is room."""

    labels: tuple[str, ...]
    draw: Callable[[np.random.Generator, Split, Sequence[str], tuple[int, int], tuple[float, float]], Drawn]


def _by_shape(rng, split, labels, size, side, *, patterns=scenes.PATTERNS) -> Drawn:
    looks = [((label,), COLORS) for label in labels]
    image, things = scenes.draw(rng, split, size=size, looks=looks, patterns=patterns, side=side, photo_share=0.8)
    return image, tuple(Object(thing.shape, tuple(map(float, thing.box))) for thing in things)


def _by_color(rng, split, labels, size, side) -> Drawn:
    looks = [(scenes.SHAPES, (label,)) for label in labels]
    image, things = scenes.draw(
        rng, split, size=size, looks=looks, patterns=scenes.PATTERNS, side=side, photo_share=0.8
    )
    return image, tuple(Object(thing.color, tuple(map(float, thing.box))) for thing in things)


SOURCES: Mapping[str, Source] = {
    "scenes": Source(scenes.SHAPES, _by_shape),
    "plain": Source(scenes.SHAPES, partial(_by_shape, patterns=("plain",))),
    "colors": Source(COLORS, _by_color),
    "digits": Source(digits.LABELS, digits.mosaic),
    "robot": Source(robot_scenes.LABELS, robot_scenes.draw),
}


def check_drawing(
    source: str, pool: int, held_out: int, size: tuple[int, int], objects: tuple[int, int], side: tuple[float, float]
) -> None:
    """UserError where an option of a task that draws pictures is out of range."""
    check(source in SOURCES, "source", source, f"one of {', '.join(SOURCES)}")
    check(pool > 0, "pool", pool, "at least 1")
    check(held_out > 0, "held_out", held_out, "at least 1")
    check(min(size) >= 32, "size", size, "at least 32 x 32 pixels")
    check(1 <= objects[0] <= objects[1] <= 50, "objects", objects, "a least and a largest number in 1 to 50")
    check(0.02 <= side[0] <= side[1] <= 1, "side", side, "a smallest and a largest share in 0.02 to 1")


def asked(
    rng: np.random.Generator, labels: Sequence[str], objects: tuple[int, int], negatives: float
) -> tuple[str, list[str]]:
    """The label that is asked for, and the labels to draw: `objects` (least, most) in all, in random order.

    With the chance `negatives` none of them has the asked label; otherwise between one and all have.
    """
    label = labels[rng.integers(len(labels))]
    total = int(rng.integers(objects[0], objects[1] + 1))
    count = 0 if rng.random() < negatives else int(rng.integers(1, total + 1))
    others = [other for other in labels if other != label]
    drawn = [label] * count + [others[rng.integers(len(others))] for _ in range(total - count)]
    return label, [drawn[i] for i in rng.permutation(total)]
