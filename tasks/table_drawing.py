"""Draws a table that was read, with Pillow: its texts, alignments, spans, rules and bars. No LaTeX is needed.

Formulas are drawn as the plain text that `rewards.latex` makes of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageDraw

from rewards.table import Cell, Table
from tasks.drawn.quiz import RGB, font

LETTER = 16  # pixels
MOST = 1536  # pixels of a side; what lies beyond is cut off
MARGIN = 0.4  # of a letter, around the table
PAD = 0.45  # of a letter, left and right of a text
LINE = 1.5  # letters a row
ANCHORS = {"l": "lm", "c": "mm", "r": "rm"}
HEAVY = ("toprule", "bottomrule")


@dataclass(frozen=True)
class Layout:
    """Edges in pixels: `across` (columns + 1) and `down` (rows + 1)."""

    across: np.ndarray
    down: np.ndarray
    letter: int

    @property
    def size(self) -> tuple[int, int]:
        """Width and height with the margins."""
        margin = 2 * MARGIN * self.letter
        return int(self.across[-1] + margin) + 1, int(self.down[-1] + margin) + 1


def layout(table: Table, letter: int = LETTER) -> Layout:
    """Columns as wide as their widest text; the last column under a wide spanning text is widened."""
    widths = np.full(len(table.aligns), letter * 0.8)
    for cell in sorted(table.cells, key=lambda cell: cell.columns):
        last = cell.column + cell.columns
        lacking = _length(cell.text, letter) + 2 * PAD * letter - widths[cell.column : last].sum()
        widths[last - 1] += max(0.0, lacking)
    heights = np.full(table.height, LINE * letter)
    return Layout(np.concatenate([[0], widths.cumsum()]), np.concatenate([[0], heights.cumsum()]), letter)


def _length(text: str, letter: int) -> float:
    return font(letter).getlength(text) if text else 0.0


def drawn(table: Table) -> Image.Image:
    """Black on white, in its natural size, mode L; at most MOST pixels a side."""
    made = layout(table)
    image = Image.new("L", (min(made.size[0], MOST), min(made.size[1], MOST)), 255)
    draw(ImageDraw.Draw(image), table, made, (MARGIN * made.letter, MARGIN * made.letter), 0)
    return image


def fitted(table: Table, size: tuple[int, int]) -> Layout:
    """The layout with the largest letters that fits a picture's size, LETTER * 2 at most; of 7 pixels at least."""
    shares = np.divide(size, layout(table).size)  # widths grow nearly as the letters do
    most = min(2 * LETTER, int(LETTER * shares.min()) + 2)
    fits = (layout(table, letter) for letter in range(most, 7, -1))
    return next((made for made in fits if np.less_equal(made.size, size).all()), layout(table, 7))


def draw(pen: ImageDraw.ImageDraw, table: Table, made: Layout, corner: tuple[float, float], ink: RGB | int) -> None:
    """Draws a table whose upper left corner is at `corner`."""
    place = _shifted(made, corner)
    for cell in table.cells:
        _write(pen, table, cell, made, place, ink)
    for rule in table.rules:
        trim = 0.2 * made.letter if rule.name == "cmidrule" else 0.0
        (x1, y), (x2, _) = place(rule.first, rule.row), place(rule.last, rule.row)
        pen.line((x1 + trim, y, x2 - trim, y), fill=ink, width=_thickness(rule.name, made.letter))
    inside = _crossed(table)
    for column, count in enumerate(table.bars):
        for row in range(table.height if count else 0):
            if (row, column) not in inside:
                _bar(pen, place(column, row), place(column, row + 1), ink, count)


def _shifted(made: Layout, corner: tuple[float, float]) -> Callable[[int, int], tuple[float, float]]:
    return lambda column, row: (corner[0] + made.across[column], corner[1] + made.down[row])


def _thickness(name: str, letter: int) -> int:
    return max(2, round(letter / 7)) if name in HEAVY else max(1, round(letter / 16))


def _write(pen, table: Table, cell: Cell, made: Layout, place, ink: RGB | int) -> None:
    (left, top), (right, bottom) = (
        place(cell.column, cell.row), place(cell.column + cell.columns, cell.row + cell.rows)
    )  # fmt: skip
    align = cell.align or table.aligns[cell.column]
    pad = PAD * made.letter
    x = {"l": left + pad, "c": (left + right) / 2, "r": right - pad}[align]
    if cell.text:
        pen.text((x, (top + bottom) / 2), cell.text, fill=ink, font=font(made.letter), anchor=ANCHORS[align])


def _bar(pen, upper: tuple[float, float], lower: tuple[float, float], ink: RGB | int, count: int) -> None:
    """A piece of a vertical line, or of two, one row high."""
    for i in range(count):
        pen.line((upper[0] + 2 * i, upper[1], lower[0] + 2 * i, lower[1]), fill=ink)


def _crossed(table: Table) -> set[tuple[int, int]]:
    """(row, column) of which the left border lies inside a cell."""
    return {(i, j) for cell in table.cells if cell.columns > 1 for i, j in cell.slots if j > cell.column}
