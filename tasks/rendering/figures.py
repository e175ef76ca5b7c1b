"""Synthetic figures: charts, clocks, digits, documents, tables, and the questions about them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from rewards.boxes import Box
from rewards.parse import Object
from tasks.rendering.screens import COLORS
from vlrl.types import Split

# Real handwritten digits (UCI Optical Recognition, as scikit-learn ships them), single and in mosaics.

LABELS = tuple("0123456789")
TEST_SHARE = 3  # every third image of a class is a test image: 1,195 to train on, 602 to test on


@lru_cache(maxsize=1)
def _bundled() -> tuple[np.ndarray, np.ndarray]:
    """Ink uint8 [1797, 8, 8] in 0..255 and labels int64 [1797]."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    return (digits.images * (255 / 16)).round().astype(np.uint8), digits.target


@lru_cache(maxsize=2)
def digits_of(split: Split) -> tuple[np.ndarray, np.ndarray]:
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
    positions, targets = digits_of(split)
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


# Questions about a picture that is drawn, and what keeps training and test pictures apart: their content.
#
# What a picture shows (values, times, counts; `content`) is dealt to the splits by a hash, one part in SHARE to the
# test.
# A content of one split is never drawn in the other, in whatever colours or place.

SHARE = 5  # one content in so many is the test's
TRIES = 1000
Rng = np.random.Generator
RGB = tuple[int, int, int]
Size = tuple[int, int]


@dataclass(frozen=True)
class QuestionAnswer:
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
    asked: list[QuestionAnswer]
    caption: str


def dealt[C](split: Split, content: Callable[[], C]) -> C:
    """A content of the split: made anew until it is one. RuntimeError where it has none."""
    for _ in range(TRIES):
        figure = content()
        if held_out(figure) == (split == "test"):
            return figure
    raise RuntimeError(f"no content for {split} in {TRIES} tries")


def held_out(content: object) -> bool:
    """Whether a content, by what `repr` writes of it, is the test's."""
    return blake2b(repr(content).encode(), digest_size=4).digest()[0] % SHARE == 0


def one[T](rng: Rng, options: Sequence[T]) -> T:
    return options[int(rng.integers(len(options)))]


def some[T](rng: Rng, options: Sequence[T], count: int) -> tuple[T, ...]:
    """Different ones, in random order."""
    return tuple(options[int(i)] for i in rng.permutation(len(options))[:count])


def draw_integer(rng: Rng, low: int, high: int) -> int:
    """An integer in low..high."""
    return int(rng.integers(low, high + 1))


def paper(rng: Rng, size: Size) -> tuple[Image.Image, ImageDraw.ImageDraw, RGB]:
    """A light or dark ground, the pen for it and a colour that can be read on it."""
    light = rng.random() < 0.7
    shade = draw_integer(rng, 225, 255) if light else draw_integer(rng, 0, 40)
    tint = [min(255, max(0, shade + draw_integer(rng, -8, 8))) for _ in range(3)]
    image = Image.new("RGB", size, tuple(tint))
    return image, ImageDraw.Draw(image), (20, 20, 24) if light else (235, 235, 230)


@lru_cache(maxsize=64)
def font(height: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(max(7, height))


def write_quiz(
    pen: ImageDraw.ImageDraw, xy: tuple[float, float], text: str, height: float, ink: RGB, anchor="mm"
) -> None:
    """Text of about `height` pixels; the anchor is Pillow's, by default its middle."""
    pen.text(xy, text, fill=ink, font=font(round(height)), anchor=anchor)


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
        return (
            "angle",
            STEP * draw_integer(rng, low // STEP, high // STEP),
            STEP * draw_integer(rng, 0, 360 // STEP - 1),
        )

    _, opening, turn = dealt(split, content)
    image, pen, ink = paper(rng, size)
    length, thick = 0.55 * min(size), max(2, min(size) // 28)
    middle = _towards((size[0] / 2, size[1] / 2), turn + opening / 2 + 180, 0.22 * min(size))
    for way in (turn, turn + opening):
        pen.line((middle, _towards(middle, way, length)), fill=ink, width=thick)
    if level > 1:
        _arc(pen, middle, turn, opening, 0.2 * min(size), COLORS[one(rng, tuple(COLORS))])
        question = QuestionAnswer("figures/degrees", "Degrees of the angle?", "number", f"{opening}°", absolute=STEP)
    else:
        kind = KINDS[(opening >= 90) + (opening > 90)]
        question = QuestionAnswer("figures/angle", "Acute, right or obtuse?", "choice", kind, KINDS)
    return Quiz(image, [question], f"An angle opens from {turn}° to {turn + opening}°.")


def _arc(pen: ImageDraw.ImageDraw, middle: Point, turn: float, opening: float, radius: float, color) -> None:
    x, y = middle
    pen.arc((x - radius, y - radius, x + radius, y + radius), -turn - opening, -turn, fill=color, width=2)


def _line(rng: Rng, split: Split, size: Size, level: int) -> Quiz:
    """Upright or lying, with a mark at each unit; thick, in a colour."""
    _, units, down, shift = dealt(
        split, lambda: ("line", draw_integer(rng, 1, 8), rng.random() < 0.5, draw_integer(rng, 1, 14))
    )  # fmt: skip
    image, pen, ink = paper(rng, size)
    unit, across = (size[1] if down else size[0]) / 9, (size[0] if down else size[1]) * (shift + 1) / 17
    start, half, thick = unit * draw_integer(rng, 1, 17 - 2 * units) / 2, min(size) / 18, max(2, min(size) // 26)
    flip = (lambda a, b: (b, a)) if down else (lambda a, b: (a, b))
    pen.line(
        (flip(start, across), flip(start + units * unit, across)), fill=COLORS[one(rng, tuple(COLORS))], width=thick
    )
    for mark in range(units + 1):
        at = start + mark * unit
        pen.line((flip(at, across - half), flip(at, across + half)), fill=ink, width=max(1, thick // 2))
    questions = [QuestionAnswer("figures/length", "How long is the line?", "number", str(units))]
    begin = start / unit
    return Quiz(image, questions, f"A line from {begin:g} to {begin + units:g}.")


def _rectangle(rng: Rng, split: Split, size: Size, level: int) -> Quiz:
    _, a, b = dealt(split, lambda: ("rectangle", draw_integer(rng, 2, 12), draw_integer(rng, 2, 12)))
    image, pen, ink = paper(rng, size)
    scale = 0.6 * min(size) / max(a, b, 4)
    width, height = max(a * scale, 10), max(b * scale, 10)
    left, top = (size[0] - width) * rng.uniform(0.05, 0.2), (size[1] - height) * rng.uniform(0.2, 0.45)
    color = COLORS[one(rng, tuple(COLORS))]
    pen.rectangle((left, top, left + width, top + height), outline=color, width=max(2, min(size) // 40))
    letter = max(8, min(size) / 9)
    write_quiz(pen, (left + width / 2, top + height + 0.7 * letter), f"{a} cm", letter, ink)
    if level == 2:
        write_quiz(pen, (left + width + 0.3 * letter, top + height / 2), f"{b} cm", letter, ink, "lm")
        questions = [
            QuestionAnswer("figures/area", "Area of the rectangle?", "number", f"{a * b} cm^2"),
            QuestionAnswer("figures/perimeter", "Perimeter of the rectangle?", "number", f"{2 * (a + b)} cm"),
        ]
        return Quiz(image, questions, f"A rectangle of {a} cm by {b} cm.")
    write_quiz(pen, (left + width / 2, top + height / 2), f"{a * b}", letter, ink)
    text = "The number inside is the area in cm^2. How long is the other side?"
    caption = f"A rectangle with a side of {a} cm. Inside stands {a * b}."
    return Quiz(image, [QuestionAnswer("figures/side", text, "number", f"{b} cm")], caption)


def _triangle(rng: Rng, split: Split, size: Size, level: int) -> Quiz:
    """Drawn to its angles, two of them written."""
    _, left, right = dealt(split, lambda: ("triangle", 5 * draw_integer(rng, 6, 14), 5 * draw_integer(rng, 6, 14)))
    image, pen, ink = paper(rng, size)
    top = 180 - left - right
    base = 0.8 * size[0]
    reach = base * math.sin(math.radians(right)) / math.sin(math.radians(top))
    scale = min(1.0, 0.75 * size[1] / (reach * math.sin(math.radians(left))))
    corner = (size[0] / 2 - base * scale / 2, 0.88 * size[1])
    peak, end = _towards(corner, left, reach * scale), (corner[0] + base * scale, corner[1])
    pen.polygon((corner, peak, end), outline=ink, width=max(2, min(size) // 60))
    letter = max(8, min(size) / 13)
    write_quiz(pen, _towards(corner, left / 2, 0.22 * base * scale), f"{left}°", letter, ink)
    write_quiz(pen, _towards(end, 180 - right / 2, 0.22 * base * scale), f"{right}°", letter, ink)
    questions = [QuestionAnswer("figures/third_angle", "Degrees of the angle at the top?", "number", f"{top}°")]
    return Quiz(image, questions, f"A triangle with angles of {left}° and {right}° at its base.")


TOPICS = {"figures": figures}


# Bar, line and pie charts. Content, which splits never share: the values in order.
#
# Level 1 has three values of 1 to 9 on a scale of ten lines without figures; 2 more values, figures at the scale,
# sums and differences; 3 values up to 90 and bars that lie or stand.

NAMES = tuple(COLORS)
COUNTS = {1: (3, 3), 2: (3, 5), 3: (4, 6)}  # level -> least and most values
UNITS = {1: 1, 2: 1, 3: 10}  # of the scale's ten lines
FAINT = (140, 140, 146)


@dataclass(frozen=True)
class ChartArea:
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


def _values(rng: Rng, split: Split, level: int, topic: str) -> tuple[int, ...]:
    unit = UNITS[level]

    def content() -> tuple[str, tuple[int, ...]]:
        count = draw_integer(rng, *COUNTS[level])
        return topic, tuple(unit * v for v in some(rng, range(1, 10), count))

    return dealt(split, content)[1]


def _frame(rng: Rng, size: Size, level: int) -> ChartArea:
    width, height = size
    margin = 0.04 if level == 1 else 0.14
    return ChartArea(
        margin * width,
        0.04 * height,
        (0.97 if level < 3 else 0.93) * width,
        (0.97 if level == 1 else 0.92) * height,
        UNITS[level],
    )


def _scale(pen: ImageDraw.ImageDraw, frame: ChartArea, ink: RGB, level: int, lying: bool = False) -> None:
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
            write_quiz(pen, spot, str(value), height, ink)


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
    caption = "Bars: " + ", ".join(f"{name} {value}" for name, value in zip(names, values, strict=True)) + "."
    return Quiz(image, [*_compared("bars", "bar", values, names), *_read(rng, "bars", values, names, level)], caption)


def _compared(topic: str, thing: str, values: Sequence[int], names: Sequence[str]) -> list[QuestionAnswer]:
    order = tuple(sorted(names))
    extremes = (("largest", max(values)), ("smallest", min(values)))
    return [
        QuestionAnswer(f"{topic}/{word}", f"Which {thing} is {word}?", "choice", names[values.index(value)], order)
        for word, value in extremes
    ]


def _read(rng: Rng, topic: str, values: Sequence[int], names: Sequence[str], level: int) -> list[QuestionAnswer]:
    """A value; from level 2 on a difference and a sum. Off by a third of a line is right where values are large."""
    loose = UNITS[level] / 3 if UNITS[level] > 1 else 0.0
    at, other = some(rng, range(len(values)), 2)
    questions = [QuestionAnswer(f"{topic}/value", f"Value of {names[at]}?", "number", str(values[at]), absolute=loose)]
    if level > 1:
        high, low = sorted((at, other), key=lambda i: -values[i])
        more = f"How much more is {names[high]} than {names[low]}?"
        both = f"Sum of {names[at]} and {names[other]}?"
        questions += [
            QuestionAnswer(f"{topic}/difference", more, "number", str(values[high] - values[low]), absolute=loose),
            QuestionAnswer(f"{topic}/sum", both, "number", str(values[at] + values[other]), absolute=loose),
        ]
    return questions


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
    questions = [
        QuestionAnswer("lines/trend", "From first to last: up or down?", "choice", trend, ("up", "down")),
        QuestionAnswer("lines/highest", "Which point is highest?", "number", numbers[values.index(max(values))]),
        *_read(rng, "lines", values, [f"point {i}" for i in numbers], level),
    ]
    return Quiz(image, questions, f"Points of a line: {', '.join(map(str, values))}.")


def pies(rng: Rng, split: Split, size: Size, level: int) -> Quiz:
    """Shares are different multiples of ten (level 1, 2) or five per cent; they are read at level 2 and 3."""
    step = 10 if level < 3 else 5
    shares = dealt(
        split, lambda: ("pies", _shares(rng, draw_integer(rng, *COUNTS[level] if level == 1 else (3, 4)), step))
    )[1]
    names = some(rng, NAMES, len(shares))
    image, pen, ink = paper(rng, size)
    radius = rng.uniform(0.36, 0.46) * min(size)
    box = (size[0] / 2 - radius, size[1] / 2 - radius, size[0] / 2 + radius, size[1] / 2 + radius)
    angle = 360 * rng.random()
    for share, name in zip(shares, names, strict=True):
        pen.pieslice(box, angle, angle + 3.6 * share, fill=COLORS[name], outline=ink)
        angle += 3.6 * share
    questions = _compared("pies", "part", shares, names)
    if level > 1:
        at = draw_integer(rng, 0, len(shares) - 1)
        questions.append(
            QuestionAnswer("pies/share", f"Per cent of {names[at]}?", "number", f"{shares[at]}%", absolute=step / 2)
        )
    caption = "Parts: " + ", ".join(f"{name} {share}%" for name, share in zip(names, shares, strict=True)) + "."
    return Quiz(image, questions, caption)


def _shares(rng: Rng, count: int, step: int) -> tuple[int, ...]:
    """Different shares of 100."""
    while True:
        cuts = sorted(some(rng, range(1, 100 // step), count - 1))
        shares = [b - a for a, b in zip((0, *cuts), (*cuts, 100 // step), strict=True)]
        if len(set(shares)) == count:
            return tuple(step * share for share in shares)


CHARTS_TOPICS = {"bars": bars, "lines": lines, "pies": pies}


# Clocks with hands. Content, which splits never share: the time and the colour of the dial.
#
# Level 1 has full hours; 2 quarters; 3 steps of five minutes, and asks for the time some minutes later.

STEPS = {1: 60, 2: 15, 3: 5}  # level -> minutes
HOUR, MINUTE = (0.5, 0.09), (0.8, 0.05)  # length and width of a hand, as shares of the dial's radius


def clocks(rng: Rng, split: Split, size: Size, level: int) -> Quiz:
    step = STEPS[level]
    names = tuple(COLORS)
    hour, minute, color = dealt(
        split, lambda: (draw_integer(rng, 1, 12), step * draw_integer(rng, 0, 60 // step - 1), one(rng, names))
    )
    image, pen, ink = paper(rng, size)
    radius = rng.uniform(0.4, 0.47) * min(size)
    x, y = (side / 2 + rng.uniform(-0.03, 0.03) * side for side in size)
    pen.ellipse((x - radius, y - radius, x + radius, y + radius), outline=COLORS[color], width=max(2, int(radius / 10)))
    for mark in range(12):
        turn = math.radians(30 * mark)
        if level > 1 and min(size) >= 96 and mark % 3 == 0:
            spot = x + 0.74 * radius * math.sin(turn), y - 0.74 * radius * math.cos(turn)
            write_quiz(pen, spot, str(mark or 12), radius / 5, ink)
        ends = [(x + r * radius * math.sin(turn), y - r * radius * math.cos(turn)) for r in (0.82, 0.92)]
        pen.line(ends, fill=ink)
    for (length, width), degrees in ((HOUR, 30 * hour + minute / 2), (MINUTE, 6 * minute)):
        turn = math.radians(degrees)
        tip = x + length * radius * math.sin(turn), y - length * radius * math.cos(turn)
        pen.line(((x, y), tip), fill=ink, width=max(1, round(2 * width * radius)))
    return Quiz(image, _make_clock_questions(rng, hour, minute, level), _describe_hands(hour, minute))


def _describe_hands(hour: int, minute: int) -> str:
    """Where the hands point to, by the figures of the dial."""
    short = f"at {hour}" if minute == 0 else f"between {hour} and {hour % 12 + 1}"
    return f"The short hand points {short}, the long one at {minute // 5 or 12}."


def _make_clock_questions(rng: Rng, hour: int, minute: int, level: int) -> list[QuestionAnswer]:
    if level == 1:
        return [QuestionAnswer("clocks/hour", "What hour is it?", "number", str(hour))]
    questions = [QuestionAnswer("clocks/time", "What time is it?", "text", format_time(hour, minute))]
    if level == 3:
        more = 5 * draw_integer(rng, 2, 11)
        questions.append(
            QuestionAnswer(
                "clocks/later", f"What time is it {more} minutes later?", "text", format_time(hour, minute + more)
            )
        )
    return questions


def format_time(hour: int, minute: int) -> str:
    """`3:05`; minutes may go beyond the hour."""
    return f"{(hour - 1 + minute // 60) % 12 + 1}:{minute % 60:02}"


CLOCKS_TOPICS = {"clocks": clocks}


# Receipts and forms. Content, which splits never share: prices, or the name, place and number on a form.
#
# Level 1 has two lines of a letter and a digit; 2 receipts with a total; 3 forms as well, longer receipts and sums.

LETTERS = ("A", "B", "C", "D")
GOODS = ("Tea", "Milk", "Bread", "Rice", "Soap", "Eggs", "Cake", "Salt")
FIRST = ("Ada", "Bo", "Cem", "Dora", "Emil", "Fay", "Gus", "Hana")
LAST = ("Abel", "Berg", "Cole", "Diaz", "Ekman", "Fox", "Gray", "Hahn")
CITIES = ("Rome", "Oslo", "Lima", "Cairo", "Delhi", "Quito", "Paris", "Kyoto")
LINES = {2: (2, 3), 3: (3, 5)}  # level -> least and most goods


def documents(rng: Rng, split: Split, size: Size, level: int) -> Quiz:
    if level == 1:
        return _list(rng, split, size)
    return (_form if level == 3 and rng.random() < 0.5 else _receipt)(rng, split, size, level)


def _list(rng: Rng, split: Split, size: Size) -> Quiz:
    names = some(rng, LETTERS, 2)
    values = dealt(split, lambda: ("list", draw_integer(rng, 0, 9), draw_integer(rng, 0, 9), one(rng, range(4))))[1:3]
    image, pen, ink = paper(rng, size)
    lines = [(name, str(value)) for name, value in zip(names, values, strict=True)]
    _lines(pen, size, ink, lines, 0.5)
    questions = [QuestionAnswer("documents/value", f"What is {name}?", "number", value) for name, value in lines]
    return Quiz(image, questions, _describe_document(lines))


def _describe_document(lines: list[tuple[str, str]]) -> str:
    return f"{', '.join(f'{name} {value}' for name, value in lines)}."


def _lines(pen: ImageDraw.ImageDraw, size: Size, ink: RGB, lines: list[tuple[str, str]], share: float) -> None:
    """A name at the left and a value at the right of each line, as high as `share` of it."""
    height = size[1] / len(lines)
    longest = max(len(name) + len(value) + 1 for name, value in lines)
    letter = min(share * height, 1.6 * size[0] / longest)
    for i, (name, value) in enumerate(lines):
        write_quiz(pen, (0.06 * size[0], (i + 0.5) * height), name, letter, ink, "lm")
        write_quiz(pen, (0.94 * size[0], (i + 0.5) * height), value, letter, ink, "rm")


def _receipt(rng: Rng, split: Split, size: Size, level: int) -> Quiz:
    cents = dealt(split, lambda: tuple(10 * v for v in some(rng, range(5, 96), draw_integer(rng, *LINES[level]))))
    goods = some(rng, GOODS, len(cents))
    image, pen, ink = paper(rng, size)
    lines = [(name, money(value)) for name, value in zip(goods, cents, strict=True)]
    _lines(pen, size, ink, [*lines, ("Total", money(sum(cents)))], 0.55)
    at, other = some(rng, range(len(cents)), 2)
    dearest = goods[cents.index(max(cents))]
    questions = [
        QuestionAnswer("documents/price", f"Price of {goods[at]}?", "number", money(cents[at])),
        QuestionAnswer("documents/total", "What is the total?", "number", money(sum(cents))),
        QuestionAnswer("documents/dearest", "What costs most?", "choice", dearest, tuple(sorted(goods))),
    ]
    if level == 3:
        both = f"What do {goods[at]} and {goods[other]} cost together?"
        questions.append(QuestionAnswer("documents/sum", both, "number", money(cents[at] + cents[other])))
    return Quiz(image, questions, _describe_document([*lines, ("Total", money(sum(cents)))]))


def _form(rng: Rng, split: Split, size: Size, level: int) -> Quiz:
    first, last, city, number = dealt(
        split, lambda: (one(rng, FIRST), one(rng, LAST), one(rng, CITIES), draw_integer(rng, 1000, 9999))
    )
    lines = [
        ("Name", f"{first} {last}"),
        ("City", city),
        ("No.", str(number)),
        ("Year", str(draw_integer(rng, 1990, 2030))),
    ]
    image, pen, ink = paper(rng, size)
    order = [lines[int(i)] for i in rng.permutation(len(lines))]
    _lines(pen, size, ink, order, 0.5)
    questions = [
        QuestionAnswer("documents/name", "Whose form is it?", "text", f"{first} {last}"),
        QuestionAnswer("documents/city", "Which city?", "text", city),
        QuestionAnswer("documents/number", "Which number?", "text", str(number)),
        QuestionAnswer("documents/year", "Which year?", "number", lines[3][1]),
    ]
    return Quiz(image, questions, _describe_document(order))


def money(cents: int) -> str:
    return f"{cents // 100}.{cents % 100:02}"


DOCUMENTS_TOPICS = {"documents": documents}


# Tables of numbers. Content, which splits never share: the numbers row by row.
#
# Level 1 has 2 x 2 digits; 2 up to 3 x 3 numbers below 100 and sums; 3 named rows and columns up to 4 x 4.

ROWS = ("Ann", "Ben", "Cleo", "Dan", "Eva", "Finn")
COLUMNS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat")
SIDES = {1: (2, 2), 2: (2, 3), 3: (3, 4)}  # level -> least and most rows and columns
MOST = {1: 9, 2: 99, 3: 99}
Cells = tuple[tuple[int, ...], ...]


def tables(rng: Rng, split: Split, size: Size, level: int) -> Quiz:
    def content() -> Cells:
        height, width = draw_integer(rng, *SIDES[level]), draw_integer(rng, *SIDES[level])
        return tuple(tuple(draw_integer(rng, 0, MOST[level]) for _ in range(width)) for _ in range(height))

    cells = dealt(split, content)
    rows = some(rng, ROWS, len(cells)) if level == 3 else tuple(f"row {i + 1}" for i in range(len(cells)))
    columns = (
        some(rng, COLUMNS, len(cells[0])) if level == 3 else tuple(f"column {i + 1}" for i in range(len(cells[0])))
    )
    image, pen, ink = paper(rng, size)
    _draw(rng, pen, size, ink, _format_cells(cells, rows, columns, level))
    return Quiz(
        image, _make_table_questions(rng, cells, rows, columns, level), _describe_table(cells, rows, columns, level)
    )


def _describe_table(cells: Cells, rows: Sequence[str], columns: Sequence[str], level: int) -> str:
    head = f"{', '.join(columns)}. " if level == 3 else ""
    lines = [f"{name}: {', '.join(map(str, row))}" for name, row in zip(rows, cells, strict=True)]
    return f"{head}{'; '.join(lines)}.".capitalize() if level < 3 else f"{head}{'; '.join(lines)}."


def _format_cells(cells: Cells, rows: Sequence[str], columns: Sequence[str], level: int) -> list[list[str]]:
    plain = [[str(value) for value in row] for row in cells]
    return [["", *columns], *([name, *row] for name, row in zip(rows, plain, strict=True))] if level == 3 else plain


def _draw(rng: Rng, pen: ImageDraw.ImageDraw, size: Size, ink: RGB, texts: list[list[str]]) -> None:
    width, height = size[0] / len(texts[0]), size[1] / len(texts)
    longest = max(len(text) for row in texts for text in row)
    letter = min(0.72 * height, 1.55 * width / max(longest, 1.6)) * rng.uniform(0.9, 1.05)
    for i, row in enumerate(texts):
        for j, text in enumerate(row):
            write_quiz(pen, ((j + 0.5) * width, (i + 0.5) * height), text, letter, ink)
    for j in range(1, len(texts[0])):
        pen.line((j * width, 0, j * width, size[1]), fill=ink)
    for i in range(1, len(texts)):
        pen.line((0, i * height, size[0], i * height), fill=ink)


def _make_table_questions(
    rng: Rng, cells: Cells, rows: Sequence[str], columns: Sequence[str], level: int
) -> list[QuestionAnswer]:
    i, j = draw_integer(rng, 0, len(rows) - 1), draw_integer(rng, 0, len(columns) - 1)
    numbers = [value for row in cells for value in row]
    questions = [
        QuestionAnswer(
            "tables/cell", f"{rows[i]}, {columns[j]}?".capitalize() if level < 3 else f"{rows[i]} on {columns[j]}?",
              "number", str(cells[i][j])),
        QuestionAnswer("tables/largest", "Largest number?", "number", str(max(numbers))),
    ]  # fmt: skip
    if cells[0][j] != cells[1][j]:
        higher = rows[0] if cells[0][j] > cells[1][j] else rows[1]
        text = f"Which is larger in {columns[j]}?" if level < 3 else f"Who has more on {columns[j]}?"
        questions.append(QuestionAnswer("tables/compare", text, "choice", higher, tuple(rows[:2])))
    if level > 1:
        total = sum(row[j] for row in cells) if (down := rng.random() < 0.5) else sum(cells[i])
        questions.append(
            QuestionAnswer("tables/sum", f"Sum of {columns[j] if down else rows[i]}?", "number", str(total))
        )
    if level == 3:
        best = max(range(len(rows)), key=lambda k: cells[k][j])
        if [row[j] for row in cells].count(cells[best][j]) == 1:
            questions.append(
                QuestionAnswer("tables/best", f"Who has most on {columns[j]}?", "choice", rows[best], tuple(rows))
            )
    return questions


TABLES_TOPICS = {"tables": tables}
