"""Cuts an image into pieces and pastes them back in another order. Places are numbered from 1, row by row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from PIL import Image, ImageDraw


@dataclass(frozen=True)
class Grid:
    """`rows` x `columns` equal pieces on an image of `size` (width, height) pixels, both divisible."""

    rows: int
    columns: int
    size: tuple[int, int]

    def cell(self, place: int) -> tuple[int, int, int, int]:
        """x1, y1, x2, y2 of a place in pixels."""
        width, height = self.size[0] // self.columns, self.size[1] // self.rows
        row, column = divmod(place - 1, self.columns)
        return column * width, row * height, (column + 1) * width, (row + 1) * height

    def direction(self, first: int, second: int) -> tuple[int, int]:
        """Signs of (down, right) from the second place to the first."""
        (row, column), (row2, column2) = divmod(first - 1, self.columns), divmod(second - 1, self.columns)
        return (row > row2) - (row < row2), (column > column2) - (column < column2)


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
