"""Cuts an image into pieces and pastes them back in another order. Places are numbered from 1, row by row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import factorial

from PIL import Image, ImageDraw

# (down, right) of the first piece as seen from the second -> words.
RELATIONS = {
    (-1, 0): "above",
    (1, 0): "below",
    (0, -1): "left",
    (0, 1): "right",
    (-1, -1): "above left",
    (-1, 1): "above right",
    (1, -1): "below left",
    (1, 1): "below right",
}
ROWS = {1: ("",), 2: ("top", "bottom"), 3: ("top", "middle", "bottom"), 4: ("top", "upper", "lower", "bottom")}
COLUMNS = {
    1: ("",),
    2: ("left", "right"),
    3: ("left", "centre", "right"),
    4: ("far left", "left", "right", "far right"),
}


@dataclass(frozen=True)
class Grid:
    """`rows` x `columns` equal pieces, 1 to 4 each, on an image of `size` (width, height) pixels, both divisible."""

    rows: int
    columns: int
    size: tuple[int, int]

    @classmethod
    def near(cls, rows: int, columns: int, side: int) -> Grid:
        """On an image of about `side` pixels a side. A remainder row would tell which piece was last: there is none."""
        return cls(rows, columns, (round(side / columns) * columns, round(side / rows) * rows))

    @property
    def turned(self) -> Grid:
        """Columns for rows."""
        return Grid(self.columns, self.rows, self.size[::-1])

    def __str__(self) -> str:
        return f"{self.rows}x{self.columns}"

    @property
    def pieces(self) -> int:
        return self.rows * self.columns

    @property
    def orders(self) -> int:
        """In how many orders the pieces may lie."""
        return factorial(self.pieces)

    @property
    def names(self) -> list[str]:
        """The places in words, as `top left`; no two alike."""
        return [f"{row} {column}".strip() for row in ROWS[self.rows] for column in COLUMNS[self.columns]]

    @property
    def relations(self) -> list[str]:
        """How one piece may lie to another."""
        if self.rows == 1:
            return ["left", "right"]
        return ["above", "below"] if self.columns == 1 else list(RELATIONS.values())

    def cell(self, place: int) -> tuple[int, int, int, int]:
        """x1, y1, x2, y2 of a place in pixels."""
        width, height = self.size[0] // self.columns, self.size[1] // self.rows
        row, column = divmod(place - 1, self.columns)
        return column * width, row * height, (column + 1) * width, (row + 1) * height

    def relation(self, first: int, second: int) -> str:
        """Where the first place is, seen from the second."""
        (row, column), (row2, column2) = divmod(first - 1, self.columns), divmod(second - 1, self.columns)
        return RELATIONS[(row > row2) - (row < row2), (column > column2) - (column < column2)]


def shuffle(image: Image.Image, grid: Grid, origins: Sequence[int], mask: float) -> Image.Image:
    """The image with, at each place, the piece from the place that `origins` gives; then masked (see `blacken`)."""
    shuffled = Image.new("RGB", grid.size)
    for place, origin in enumerate(origins, start=1):
        shuffled.paste(image.crop(grid.cell(origin)), grid.cell(place))
    if mask:
        blacken(shuffled, grid, mask)
    return shuffled


def blacken(image: Image.Image, grid: Grid, mask: float) -> None:
    """Hides the edges by which pieces could be matched, in place: `mask` times a piece's side at the image's border,
    half of that on either side of a seam (Jigsaw-R1)."""
    draw = ImageDraw.Draw(image)
    for axis, parts in ((0, grid.columns), (1, grid.rows)):
        side = grid.size[axis] // parts
        border = int(side * mask)
        for part in range(parts):
            start, end = part * side, (part + 1) * side
            before = border if part == 0 else border // 2
            after = border if part == parts - 1 else border // 2
            for low, high in ((start, start + before), (end - after, end)):
                if high > low:
                    band = (low, 0, high - 1, grid.size[1]) if axis == 0 else (0, low, grid.size[0], high - 1)
                    draw.rectangle(band, fill=0)
