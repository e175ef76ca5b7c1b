"""Tables of numbers. Content, which splits never share: the numbers row by row.

Level 1 has 2 x 2 digits; 2 up to 3 x 3 numbers below 100 and sums; 3 named rows and columns up to 4 x 4.
"""

from __future__ import annotations

from collections.abc import Sequence

from PIL import ImageDraw

from tasks.drawn.quiz import RGB, Asked, Quiz, Rng, Size, dealt, paper, some, whole, write
from vlrl.types import Split

ROWS = ("Ann", "Ben", "Cleo", "Dan", "Eva", "Finn")
COLUMNS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat")
SIDES = {1: (2, 2), 2: (2, 3), 3: (3, 4)}  # level -> least and most rows and columns
MOST = {1: 9, 2: 99, 3: 99}
Cells = tuple[tuple[int, ...], ...]


def tables(rng: Rng, split: Split, size: Size, level: int) -> Quiz:
    def content() -> Cells:
        height, width = whole(rng, *SIDES[level]), whole(rng, *SIDES[level])
        return tuple(tuple(whole(rng, 0, MOST[level]) for _ in range(width)) for _ in range(height))

    cells = dealt(split, content)
    rows = some(rng, ROWS, len(cells)) if level == 3 else tuple(f"row {i + 1}" for i in range(len(cells)))
    columns = (
        some(rng, COLUMNS, len(cells[0])) if level == 3 else tuple(f"column {i + 1}" for i in range(len(cells[0])))
    )
    image, pen, ink = paper(rng, size)
    _draw(rng, pen, size, ink, _written(cells, rows, columns, level))
    return Quiz(image, _asked(rng, cells, rows, columns, level), _told(cells, rows, columns, level))


def _told(cells: Cells, rows: Sequence[str], columns: Sequence[str], level: int) -> str:
    head = f"{', '.join(columns)}. " if level == 3 else ""
    lines = [f"{name}: {', '.join(map(str, row))}" for name, row in zip(rows, cells, strict=True)]
    return f"{head}{'; '.join(lines)}.".capitalize() if level < 3 else f"{head}{'; '.join(lines)}."


def _written(cells: Cells, rows: Sequence[str], columns: Sequence[str], level: int) -> list[list[str]]:
    plain = [[str(value) for value in row] for row in cells]
    return [["", *columns], *([name, *row] for name, row in zip(rows, plain, strict=True))] if level == 3 else plain


def _draw(rng: Rng, pen: ImageDraw.ImageDraw, size: Size, ink: RGB, texts: list[list[str]]) -> None:
    width, height = size[0] / len(texts[0]), size[1] / len(texts)
    longest = max(len(text) for row in texts for text in row)
    letter = min(0.72 * height, 1.55 * width / max(longest, 1.6)) * rng.uniform(0.9, 1.05)
    for i, row in enumerate(texts):
        for j, text in enumerate(row):
            write(pen, ((j + 0.5) * width, (i + 0.5) * height), text, letter, ink)
    for j in range(1, len(texts[0])):
        pen.line((j * width, 0, j * width, size[1]), fill=ink)
    for i in range(1, len(texts)):
        pen.line((0, i * height, size[0], i * height), fill=ink)


def _asked(rng: Rng, cells: Cells, rows: Sequence[str], columns: Sequence[str], level: int) -> list[Asked]:
    i, j = whole(rng, 0, len(rows) - 1), whole(rng, 0, len(columns) - 1)
    numbers = [value for row in cells for value in row]
    asked = [
        Asked("tables/cell", f"{rows[i]}, {columns[j]}?".capitalize() if level < 3 else f"{rows[i]} on {columns[j]}?",
              "number", str(cells[i][j])),
        Asked("tables/largest", "Largest number?", "number", str(max(numbers))),
    ]  # fmt: skip
    if cells[0][j] != cells[1][j]:
        higher = rows[0] if cells[0][j] > cells[1][j] else rows[1]
        text = f"Which is larger in {columns[j]}?" if level < 3 else f"Who has more on {columns[j]}?"
        asked.append(Asked("tables/compare", text, "choice", higher, tuple(rows[:2])))
    if level > 1:
        total = sum(row[j] for row in cells) if (down := rng.random() < 0.5) else sum(cells[i])
        asked.append(Asked("tables/sum", f"Sum of {columns[j] if down else rows[i]}?", "number", str(total)))
    if level == 3:
        best = max(range(len(rows)), key=lambda k: cells[k][j])
        if [row[j] for row in cells].count(cells[best][j]) == 1:
            asked.append(Asked("tables/best", f"Who has most on {columns[j]}?", "choice", rows[best], tuple(rows)))
    return asked


TOPICS = {"tables": tables}
