"""Questions about a picture that is drawn, and what keeps training and test pictures apart: their content.

What a picture shows (values, times, counts; `content`) is dealt to the splits by a hash, one part in SHARE to the test.
A content of one split is never drawn in the other, in whatever colours or place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from vlrl.types import Split

SHARE = 5  # one content in so many is the test's
TRIES = 1000
Rng = np.random.Generator
RGB = tuple[int, int, int]
Size = tuple[int, int]


@dataclass(frozen=True)
class Asked:
    """A question and its answer."""

    topic: str  # what is drawn / what is asked: bars/tallest
    text: str
    kind: str  # choice, number or text
    answer: str
    options: tuple[str, ...] = ()  # of a choice; the answer is one of them
    absolute: float = 0.0  # error of a number that is allowed


class Quiz(NamedTuple):
    """A picture, what may be asked about it, and the same in words, from which every answer follows as well."""

    image: Image.Image
    asked: list[Asked]
    told: str


def dealt[C](split: Split, content: Callable[[], C]) -> C:
    """A content of the split: made anew until it is one. RuntimeError where it has none."""
    for _ in range(TRIES):
        made = content()
        if held_out(made) == (split == "test"):
            return made
    raise RuntimeError(f"no content for {split} in {TRIES} tries")


def held_out(content: object) -> bool:
    """Whether a content, by what `repr` writes of it, is the test's."""
    return blake2b(repr(content).encode(), digest_size=4).digest()[0] % SHARE == 0


def one[T](rng: Rng, options: Sequence[T]) -> T:
    return options[int(rng.integers(len(options)))]


def some[T](rng: Rng, options: Sequence[T], count: int) -> tuple[T, ...]:
    """Different ones, in random order."""
    return tuple(options[int(i)] for i in rng.permutation(len(options))[:count])


def whole(rng: Rng, low: int, high: int) -> int:
    """An integer in low..high."""
    return int(rng.integers(low, high + 1))


def paper(rng: Rng, size: Size) -> tuple[Image.Image, ImageDraw.ImageDraw, RGB]:
    """A light or dark ground, the pen for it and a colour that can be read on it."""
    light = rng.random() < 0.7
    shade = whole(rng, 225, 255) if light else whole(rng, 0, 40)
    tint = [min(255, max(0, shade + whole(rng, -8, 8))) for _ in range(3)]
    image = Image.new("RGB", size, tuple(tint))
    return image, ImageDraw.Draw(image), (20, 20, 24) if light else (235, 235, 230)


@lru_cache(maxsize=64)
def font(height: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(max(7, height))


def write(pen: ImageDraw.ImageDraw, xy: tuple[float, float], text: str, height: float, ink: RGB, anchor="mm") -> None:
    """Text of about `height` pixels; the anchor is Pillow's, by default its middle."""
    pen.text(xy, text, fill=ink, font=font(round(height)), anchor=anchor)
