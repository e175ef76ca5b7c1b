"""Pictures of tables and how alike they look. Two renderers of one interface: a table -> a grey picture, or None."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from PIL import Image

from rewards.ssim import LEAST, ms_ssim
from rewards.table import Table
from tasks.table_drawing import MOST, drawn
from tasks.table_typeset import engine, typeset

Renderer = Callable[[Table], Image.Image | None]
RENDERERS: dict[str, Renderer] = {"drawn": drawn, "latex": typeset}


def renderer(name: str) -> Renderer:
    """The renderer of a name. It is chosen, never guessed: a reward must not hang on what a machine has installed.

    Raises:
        UserError: `latex` where no LaTeX is installed.
    """
    if name == "latex":
        engine()
    return RENDERERS[name]


def looks(predicted: Table, truth: Table, render: Renderer) -> float:
    """MS-SSIM of the two tables' pictures, in [0, 1], laid over each other by their upper left corners.

    Both on white of the larger width and height, enlarged by one factor until the window of every scale fits.
    """
    pictures = [render(table) for table in (predicted, truth)]
    pictures = [picture for picture in pictures if picture is not None]
    if len(pictures) < 2:
        return 0.0
    width, height = (min(MOST, max(picture.size[side] for picture in pictures)) for side in (0, 1))
    times = -(-LEAST // min(width, height))
    first, second = (_laid(picture, (width, height), times) for picture in pictures)
    return ms_ssim(first, second)


def _laid(picture: Image.Image, size: tuple[int, int], times: int) -> np.ndarray:
    """(H, W) in 0 to 1: white paper with the picture in its corner, `times` as large."""
    paper = Image.new("L", size, 255)
    paper.paste(picture, (0, 0))
    paper = paper.resize((min(size[0] * times, 2 * MOST), min(size[1] * times, 2 * MOST)), Image.Resampling.BILINEAR)
    return np.asarray(paper, dtype=np.float64) / 255
