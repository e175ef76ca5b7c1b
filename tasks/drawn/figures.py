"""Geometric figures: angles, lines with marks, rectangles and triangles with labels. Splits never share a content.

Contents: an angle and its direction; a length and its direction; the sides of a rectangle; the angles of a triangle.
Level 1 asks for the kind of an angle and counts the units of a line; 2 for degrees (off by 5 at most), area and
perimeter; 3 for what is not written: the third angle, a side from the area.
"""

from __future__ import annotations

import math

from PIL import ImageDraw

from tasks.drawn.quiz import Asked, Quiz, Rng, Size, dealt, one, paper, whole, write
from tasks.drawn.screens import COLORS
from vlrl.types import Split

KINDS = ("acute", "right", "obtuse")
STEP = 5  # degrees
Point = tuple[float, float]


def figures(rng: Rng, split: Split, size: Size, level: int) -> Quiz:
    return one(rng, {1: (_angle, _line), 2: (_angle, _rectangle), 3: (_rectangle, _triangle)}[level])(
        rng, split, size, level
    )


def _towards(start: Point, degrees: float, length: float) -> Point:
    return start[0] + length * math.cos(math.radians(degrees)), start[1] - length * math.sin(math.radians(degrees))


def _angle(rng: Rng, split: Split, size: Size, level: int) -> Quiz:
    def content() -> tuple[str, int, int]:
        kind = one(rng, KINDS) if level == 1 else ""
        low, high = {"acute": (20, 70), "right": (90, 90), "obtuse": (110, 165), "": (15, 165)}[kind]
        return "angle", STEP * whole(rng, low // STEP, high // STEP), STEP * whole(rng, 0, 360 // STEP - 1)

    _, opening, turn = dealt(split, content)
    image, pen, ink = paper(rng, size)
    length, thick = 0.55 * min(size), max(2, min(size) // 28)
    middle = _towards((size[0] / 2, size[1] / 2), turn + opening / 2 + 180, 0.22 * min(size))
    for way in (turn, turn + opening):
        pen.line((middle, _towards(middle, way, length)), fill=ink, width=thick)
    if level > 1:
        _arc(pen, middle, turn, opening, 0.2 * min(size), COLORS[one(rng, tuple(COLORS))])
        asked = Asked("figures/degrees", "Degrees of the angle?", "number", f"{opening}°", absolute=STEP)
    else:
        kind = KINDS[(opening >= 90) + (opening > 90)]
        asked = Asked("figures/angle", "Acute, right or obtuse?", "choice", kind, KINDS)
    return Quiz(image, [asked], f"An angle opens from {turn}° to {turn + opening}°.")


def _arc(pen: ImageDraw.ImageDraw, middle: Point, turn: float, opening: float, radius: float, color) -> None:
    x, y = middle
    pen.arc((x - radius, y - radius, x + radius, y + radius), -turn - opening, -turn, fill=color, width=2)


def _line(rng: Rng, split: Split, size: Size, level: int) -> Quiz:
    """Upright or lying, with a mark at each unit; thick, in a colour."""
    _, units, down, shift = dealt(
        split, lambda: ("line", whole(rng, 1, 8), rng.random() < 0.5, whole(rng, 1, 14))
    )  # fmt: skip
    image, pen, ink = paper(rng, size)
    unit, across = (size[1] if down else size[0]) / 9, (size[0] if down else size[1]) * (shift + 1) / 17
    start, half, thick = unit * whole(rng, 1, 17 - 2 * units) / 2, min(size) / 18, max(2, min(size) // 26)
    flip = (lambda a, b: (b, a)) if down else (lambda a, b: (a, b))
    pen.line(
        (flip(start, across), flip(start + units * unit, across)), fill=COLORS[one(rng, tuple(COLORS))], width=thick
    )
    for mark in range(units + 1):
        at = start + mark * unit
        pen.line((flip(at, across - half), flip(at, across + half)), fill=ink, width=max(1, thick // 2))
    asked = [Asked("figures/length", "How long is the line?", "number", str(units))]
    begin = start / unit
    return Quiz(image, asked, f"A line from {begin:g} to {begin + units:g}.")


def _rectangle(rng: Rng, split: Split, size: Size, level: int) -> Quiz:
    _, a, b = dealt(split, lambda: ("rectangle", whole(rng, 2, 12), whole(rng, 2, 12)))
    image, pen, ink = paper(rng, size)
    scale = 0.6 * min(size) / max(a, b, 4)
    width, height = max(a * scale, 10), max(b * scale, 10)
    left, top = (size[0] - width) * rng.uniform(0.05, 0.2), (size[1] - height) * rng.uniform(0.2, 0.45)
    color = COLORS[one(rng, tuple(COLORS))]
    pen.rectangle((left, top, left + width, top + height), outline=color, width=max(2, min(size) // 40))
    letter = max(8, min(size) / 9)
    write(pen, (left + width / 2, top + height + 0.7 * letter), f"{a} cm", letter, ink)
    if level == 2:
        write(pen, (left + width + 0.3 * letter, top + height / 2), f"{b} cm", letter, ink, "lm")
        asked = [
            Asked("figures/area", "Area of the rectangle?", "number", f"{a * b} cm^2"),
            Asked("figures/perimeter", "Perimeter of the rectangle?", "number", f"{2 * (a + b)} cm"),
        ]
        return Quiz(image, asked, f"A rectangle of {a} cm by {b} cm.")
    write(pen, (left + width / 2, top + height / 2), f"{a * b}", letter, ink)
    text = "The number inside is the area in cm^2. How long is the other side?"
    told = f"A rectangle with a side of {a} cm. Inside stands {a * b}."
    return Quiz(image, [Asked("figures/side", text, "number", f"{b} cm")], told)


def _triangle(rng: Rng, split: Split, size: Size, level: int) -> Quiz:
    """Drawn to its angles, two of them written."""
    _, left, right = dealt(split, lambda: ("triangle", 5 * whole(rng, 6, 14), 5 * whole(rng, 6, 14)))
    image, pen, ink = paper(rng, size)
    top = 180 - left - right
    base = 0.8 * size[0]
    reach = base * math.sin(math.radians(right)) / math.sin(math.radians(top))
    scale = min(1.0, 0.75 * size[1] / (reach * math.sin(math.radians(left))))
    corner = (size[0] / 2 - base * scale / 2, 0.88 * size[1])
    peak, end = _towards(corner, left, reach * scale), (corner[0] + base * scale, corner[1])
    pen.polygon((corner, peak, end), outline=ink, width=max(2, min(size) // 60))
    letter = max(8, min(size) / 13)
    write(pen, _towards(corner, left / 2, 0.22 * base * scale), f"{left}°", letter, ink)
    write(pen, _towards(end, 180 - right / 2, 0.22 * base * scale), f"{right}°", letter, ink)
    asked = [Asked("figures/third_angle", "Degrees of the angle at the top?", "number", f"{top}°")]
    return Quiz(image, asked, f"A triangle with angles of {left}° and {right}° at its base.")


TOPICS = {"figures": figures}
