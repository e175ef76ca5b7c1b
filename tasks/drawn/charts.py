"""Bar, line and pie charts. Content, which splits never share: the values in order.

Level 1 has three values of 1 to 9 on a scale of ten lines without figures; 2 more values, figures at the scale,
sums and differences; 3 values up to 90 and bars that lie or stand.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from PIL import ImageDraw

from tasks.drawn.quiz import RGB, Asked, Quiz, Rng, Size, dealt, one, paper, some, whole, write
from tasks.drawn.screens import COLORS
from vlrl.types import Split

NAMES = tuple(COLORS)
COUNTS = {1: (3, 3), 2: (3, 5), 3: (4, 6)}  # level -> least and most values
UNITS = {1: 1, 2: 1, 3: 10}  # of the scale's ten lines
FAINT = (140, 140, 146)


@dataclass(frozen=True)
class Frame:
    """Where a chart lies, in pixels, and what a line of its scale is worth."""

    left: float
    top: float
    right: float
    bottom: float
    unit: int

    def y(self, value: float) -> float:
        return self.bottom - (self.bottom - self.top) * value / (10 * self.unit)

    def x(self, value: float) -> float:
        return self.left + (self.right - self.left) * value / (10 * self.unit)


def _values(rng: Rng, split: Split, level: int, topic: str) -> tuple[str, ...]:
    unit = UNITS[level]

    def content() -> tuple[str, tuple[int, ...]]:
        count = whole(rng, *COUNTS[level])
        return topic, tuple(unit * v for v in some(rng, range(1, 10), count))

    return dealt(split, content)[1]


def _frame(rng: Rng, size: Size, level: int) -> Frame:
    width, height = size
    margin = 0.04 if level == 1 else 0.14
    return Frame(
        margin * width,
        0.04 * height,
        (0.97 if level < 3 else 0.93) * width,
        (0.97 if level == 1 else 0.92) * height,
        UNITS[level],
    )


def _scale(pen: ImageDraw.ImageDraw, frame: Frame, ink: RGB, level: int, lying: bool = False) -> None:
    """Ten lines, the fifth and tenth dark; figures from level 2 on."""
    height = max(7, (frame.bottom - frame.top) / 13)
    for line in range(11):
        value, color = line * frame.unit, ink if line % 5 == 0 else FAINT
        if lying:
            pen.line((frame.x(value), frame.top, frame.x(value), frame.bottom), fill=color)
        else:
            pen.line((frame.left, frame.y(value), frame.right, frame.y(value)), fill=color)
        if level > 1 and line % 5 == 0:
            spot = (frame.x(value), frame.bottom + height / 2) if lying else (frame.left * 0.5, frame.y(value))
            write(pen, spot, str(value), height, ink)


def bars(rng: Rng, split: Split, size: Size, level: int) -> Quiz:
    values = _values(rng, split, level, "bars")
    names = some(rng, NAMES, len(values))
    image, pen, ink = paper(rng, size)
    frame, lying = _frame(rng, size, level), level == 3 and rng.random() < 0.5
    _scale(pen, frame, ink, level, lying)
    start, end = (frame.top, frame.bottom) if lying else (frame.left, frame.right)
    room = (end - start) / len(values)
    for i, (value, name) in enumerate(zip(values, names, strict=True)):
        low, high = start + room * (i + 0.18), start + room * (i + 0.82)
        box = (frame.left, low, frame.x(value), high) if lying else (low, frame.y(value), high, frame.bottom)
        pen.rectangle(box, fill=COLORS[name])
    told = "Bars: " + ", ".join(f"{name} {value}" for name, value in zip(names, values, strict=True)) + "."
    return Quiz(image, [*_compared("bars", "bar", values, names), *_read(rng, "bars", values, names, level)], told)


def _compared(topic: str, thing: str, values: Sequence[int], names: Sequence[str]) -> list[Asked]:
    order = tuple(sorted(names))
    extremes = (("largest", max(values)), ("smallest", min(values)))
    return [
        Asked(f"{topic}/{word}", f"Which {thing} is {word}?", "choice", names[values.index(value)], order)
        for word, value in extremes
    ]


def _read(rng: Rng, topic: str, values: Sequence[int], names: Sequence[str], level: int) -> list[Asked]:
    """A value; from level 2 on a difference and a sum. Off by a third of a line is right where values are large."""
    loose = {"absolute": UNITS[level] / 3} if UNITS[level] > 1 else {}
    at, other = some(rng, range(len(values)), 2)
    asked = [Asked(f"{topic}/value", f"Value of {names[at]}?", "number", str(values[at]), **loose)]
    if level > 1:
        high, low = sorted((at, other), key=lambda i: -values[i])
        more = f"How much more is {names[high]} than {names[low]}?"
        both = f"Sum of {names[at]} and {names[other]}?"
        asked += [
            Asked(f"{topic}/difference", more, "number", str(values[high] - values[low]), **loose),
            Asked(f"{topic}/sum", both, "number", str(values[at] + values[other]), **loose),
        ]
    return asked


def lines(rng: Rng, split: Split, size: Size, level: int) -> Quiz:
    values = _values(rng, split, level, "lines")
    image, pen, ink = paper(rng, size)
    frame = _frame(rng, size, level)
    _scale(pen, frame, ink, level)
    room, radius = (frame.right - frame.left) / len(values), max(2, size[0] / 32)
    points = [(frame.left + room * (i + 0.5), frame.y(value)) for i, value in enumerate(values)]
    color = COLORS[one(rng, NAMES)]
    pen.line(points, fill=color, width=max(2, size[0] // 40))
    for x, y in points:
        pen.ellipse((x - radius, y - radius, x + radius, y + radius), fill=color)
    numbers = tuple(str(i + 1) for i in range(len(values)))
    trend = "up" if values[-1] > values[0] else "down"
    asked = [
        Asked("lines/trend", "From first to last: up or down?", "choice", trend, ("up", "down")),
        Asked("lines/highest", "Which point is highest?", "number", numbers[values.index(max(values))]),
        *_read(rng, "lines", values, [f"point {i}" for i in numbers], level),
    ]
    return Quiz(image, asked, f"Points of a line: {', '.join(map(str, values))}.")


def pies(rng: Rng, split: Split, size: Size, level: int) -> Quiz:
    """Shares are different multiples of ten (level 1, 2) or five per cent; they are read at level 2 and 3."""
    step = 10 if level < 3 else 5
    shares = dealt(split, lambda: ("pies", _shares(rng, whole(rng, *COUNTS[level] if level == 1 else (3, 4)), step)))[1]
    names = some(rng, NAMES, len(shares))
    image, pen, ink = paper(rng, size)
    radius = rng.uniform(0.36, 0.46) * min(size)
    box = (size[0] / 2 - radius, size[1] / 2 - radius, size[0] / 2 + radius, size[1] / 2 + radius)
    angle = 360 * rng.random()
    for share, name in zip(shares, names, strict=True):
        pen.pieslice(box, angle, angle + 3.6 * share, fill=COLORS[name], outline=ink)
        angle += 3.6 * share
    asked = _compared("pies", "part", shares, names)
    if level > 1:
        at = whole(rng, 0, len(shares) - 1)
        asked.append(Asked("pies/share", f"Per cent of {names[at]}?", "number", f"{shares[at]}%", absolute=step / 2))
    told = "Parts: " + ", ".join(f"{name} {share}%" for name, share in zip(names, shares, strict=True)) + "."
    return Quiz(image, asked, told)


def _shares(rng: Rng, count: int, step: int) -> tuple[int, ...]:
    """Different shares of 100."""
    while True:
        cuts = sorted(some(rng, range(1, 100 // step), count - 1))
        shares = [b - a for a, b in zip((0, *cuts), (*cuts, 100 // step), strict=True)]
        if len(set(shares)) == count:
            return tuple(step * share for share in shares)


TOPICS = {"bars": bars, "lines": lines, "pies": pies}
