"""Draws scenes for detection, referring and counting: shapes in plain colours or patterns, over real photographs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from tasks.drawn import photos
from tasks.drawn.screens import COLORS, RGB, SHAPES
from vlrl.types import Data, Split

PATTERNS = ("plain", "stripes", "checks", "dots")
Look = tuple[Sequence[str], Sequence[str]]
TRIES = 60  # places that are tried for an object
NIGHT = 0.55  # what photographs keep of their contrast: objects should be seen


@dataclass(frozen=True)
class Thing:
    """One object of a scene; `box` is the smallest that holds its pixels: x1, y1, x2, y2, edges after the last."""

    shape: str
    color: str
    pattern: str
    box: tuple[int, int, int, int]

    @property
    def side(self) -> int:
        return max(self.box[2] - self.box[0], self.box[3] - self.box[1])


def draw(
    rng: np.random.Generator,
    split: Split,
    *,
    size: tuple[int, int],
    looks: Sequence[Look],
    patterns: Sequence[str],
    side: tuple[float, float],
    photo_share: float,
) -> tuple[Image.Image, tuple[Thing, ...]]:
    """A scene of `size` (width, height) with an object for each of `looks`, as far as there is room; at least one.

    A look is the shapes and the colours to choose from, `patterns` are those of all objects, `side` the objects'
    smallest and largest side as a share of the scene's shorter one, `photo_share` how many scenes lie on a
    photograph (of the split's own) instead of a plain ground. Objects do not overlap.
    """
    image = _ground(rng, split, size, photo_share)
    things: list[Thing] = []
    for shapes, colors in looks:
        shape, color, pattern = (options[rng.integers(len(options))] for options in (shapes, colors, patterns))
        extent = _extent(rng, shape, side, min(size))
        place = _place(rng, size, extent, [thing.box for thing in things])
        if place:
            things.append(_drawn(image, rng, Thing(shape, color, pattern, place)))
    return image, tuple(things)


def _ground(rng: np.random.Generator, split: Split, size: tuple[int, int], photo_share: float) -> Image.Image:
    """A random crop of a photograph, with less contrast; or a plain grey."""
    if rng.random() >= photo_share:
        return Image.new("RGB", size, (int(rng.integers(20, 236)),) * 3)
    files = _photographs(split)
    photo = photos.load(files[rng.integers(len(files))], 4 * max(size))
    edge = rng.uniform(0.3, 1.0) * min(photo.size)
    width, height = (edge * side / max(size) for side in size)
    x, y = rng.uniform(0, photo.width - width), rng.uniform(0, photo.height - height)
    crop = photo.resize(size, Image.Resampling.BILINEAR, box=(x, y, x + width, y + height), reducing_gap=1.5)
    if rng.random() < 0.5:
        crop = crop.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return Image.blend(Image.new("RGB", size, (int(rng.integers(60, 196)),) * 3), crop, NIGHT)


@lru_cache(maxsize=2)
def _photographs(split: Split) -> tuple[Path, ...]:
    return photos.find(Data()).of(split)


def _extent(rng: np.random.Generator, shape: str, side: tuple[float, float], shorter: int) -> tuple[int, int]:
    """Width and height in pixels: a square but for bars."""
    longest = max(4, round(rng.uniform(*side) * shorter))
    return (longest, max(3, longest // 2)) if shape == "bar" else (longest, longest)


def _place(
    rng: np.random.Generator, size: tuple[int, int], extent: tuple[int, int], taken: Sequence[tuple[int, ...]]
) -> tuple[int, int, int, int] | None:
    """A random box that touches no other; the first is always placed."""
    for _ in range(TRIES):
        x, y = (int(rng.integers(0, max(1, size[i] - extent[i] + 1))) for i in (0, 1))
        right, low = x + extent[0], y + extent[1]
        if all(right < a or c < x or low < b or d < y for a, b, c, d in taken):
            return x, y, right, low
    return None


def _drawn(image: Image.Image, rng: np.random.Generator, thing: Thing) -> Thing:
    """Draws the thing on the image; its box is what its pixels fill."""
    x1, y1, x2, y2 = thing.box
    mask = Image.new("L", (x2 - x1, y2 - y1), 0)
    _shape(ImageDraw.Draw(mask), thing.shape, mask.size)
    image.paste(_surface(rng, thing, mask.size), thing.box, mask)
    a, b, c, d = mask.getbbox()
    return Thing(thing.shape, thing.color, thing.pattern, (x1 + a, y1 + b, x1 + c, y1 + d))


def _shape(draw: ImageDraw.ImageDraw, shape: str, size: tuple[int, int]) -> None:
    width, height = size[0] - 1, size[1] - 1
    third = (width + 1) // 3
    if shape == "circle":
        draw.ellipse((0, 0, width, height), fill=255)
    elif shape == "triangle":
        draw.polygon(((0, height), (width, height), (width / 2, 0)), fill=255)
    elif shape == "ring":
        draw.ellipse((0, 0, width, height), outline=255, width=max(2, third * 2 // 3))
    elif shape == "cross":
        draw.rectangle((third, 0, width - third, height), fill=255)
        draw.rectangle((0, third, width, height - third), fill=255)
    else:  # square and bar fill their extent
        draw.rectangle((0, 0, width, height), fill=255)


def _surface(rng: np.random.Generator, thing: Thing, size: tuple[int, int]) -> Image.Image:
    """The thing's colour in its pattern; the other tone is the colour darkened."""
    color = np.asarray(COLORS[thing.color])
    y, x = np.mgrid[: size[1], : size[0]] + int(rng.integers(8))
    period = max(4, max(size) // 4)
    dark = {
        "plain": np.zeros_like(x, dtype=bool),
        "stripes": (x + y) % period < period // 2,
        "checks": (x // (period // 2) + y // (period // 2)) % 2 == 0,
        "dots": (x % period - period / 2) ** 2 + (y % period - period / 2) ** 2 < (period / 3) ** 2,
    }[thing.pattern]
    return Image.fromarray(np.where(dark[..., None], color * 0.45, color).astype(np.uint8))


__all__ = ["COLORS", "PATTERNS", "RGB", "SHAPES", "Look", "Thing", "draw"]
