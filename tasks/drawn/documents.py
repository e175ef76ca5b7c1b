"""Receipts and forms. Content, which splits never share: prices, or the name, place and number on a form.

Level 1 has two lines of a letter and a digit; 2 receipts with a total; 3 forms as well, longer receipts and sums.
"""

from __future__ import annotations

from PIL import ImageDraw

from tasks.drawn.quiz import RGB, Asked, Quiz, Rng, Size, dealt, one, paper, some, whole, write
from vlrl.types import Split

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
    values = dealt(split, lambda: ("list", whole(rng, 0, 9), whole(rng, 0, 9), one(rng, range(4))))[1:3]
    image, pen, ink = paper(rng, size)
    lines = [(name, str(value)) for name, value in zip(names, values, strict=True)]
    _lines(pen, size, ink, lines, 0.5)
    asked = [Asked("documents/value", f"What is {name}?", "number", value) for name, value in lines]
    return Quiz(image, asked, _told(lines))


def _told(lines: list[tuple[str, str]]) -> str:
    return f"{', '.join(f'{name} {value}' for name, value in lines)}."


def _lines(pen: ImageDraw.ImageDraw, size: Size, ink: RGB, lines: list[tuple[str, str]], share: float) -> None:
    """A name at the left and a value at the right of each line, as high as `share` of it."""
    height = size[1] / len(lines)
    longest = max(len(name) + len(value) + 1 for name, value in lines)
    letter = min(share * height, 1.6 * size[0] / longest)
    for i, (name, value) in enumerate(lines):
        write(pen, (0.06 * size[0], (i + 0.5) * height), name, letter, ink, "lm")
        write(pen, (0.94 * size[0], (i + 0.5) * height), value, letter, ink, "rm")


def _receipt(rng: Rng, split: Split, size: Size, level: int) -> Quiz:
    cents = dealt(split, lambda: tuple(10 * v for v in some(rng, range(5, 96), whole(rng, *LINES[level]))))
    goods = some(rng, GOODS, len(cents))
    image, pen, ink = paper(rng, size)
    lines = [(name, money(value)) for name, value in zip(goods, cents, strict=True)]
    _lines(pen, size, ink, [*lines, ("Total", money(sum(cents)))], 0.55)
    at, other = some(rng, range(len(cents)), 2)
    dearest = goods[cents.index(max(cents))]
    asked = [
        Asked("documents/price", f"Price of {goods[at]}?", "number", money(cents[at])),
        Asked("documents/total", "What is the total?", "number", money(sum(cents))),
        Asked("documents/dearest", "What costs most?", "choice", dearest, tuple(sorted(goods))),
    ]
    if level == 3:
        both = f"What do {goods[at]} and {goods[other]} cost together?"
        asked.append(Asked("documents/sum", both, "number", money(cents[at] + cents[other])))
    return Quiz(image, asked, _told([*lines, ("Total", money(sum(cents)))]))


def _form(rng: Rng, split: Split, size: Size, level: int) -> Quiz:
    first, last, city, number = dealt(
        split, lambda: (one(rng, FIRST), one(rng, LAST), one(rng, CITIES), whole(rng, 1000, 9999))
    )
    lines = [("Name", f"{first} {last}"), ("City", city), ("No.", str(number)), ("Year", str(whole(rng, 1990, 2030)))]
    image, pen, ink = paper(rng, size)
    shown = [lines[int(i)] for i in rng.permutation(len(lines))]
    _lines(pen, size, ink, shown, 0.5)
    asked = [
        Asked("documents/name", "Whose form is it?", "text", f"{first} {last}"),
        Asked("documents/city", "Which city?", "text", city),
        Asked("documents/number", "Which number?", "text", str(number)),
        Asked("documents/year", "Which year?", "number", lines[3][1]),
    ]
    return Quiz(image, asked, _told(shown))


def money(cents: int) -> str:
    return f"{cents // 100}.{cents % 100:02}"


TOPICS = {"documents": documents}
