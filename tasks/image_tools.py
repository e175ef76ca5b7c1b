"""The tools that come with vlrl: looking closer at an image, measuring in it, reading it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import cache
from typing import Annotated, Any, Literal

import numpy as np
from PIL import Image as PillowImage
from PIL.Image import Image
from pydantic import Field

from tasks.tools import Box, Point, ToolError
from vlrl.types import UserError

SMALLEST = 2  # pixels of a side that is worth a look
LARGEST = 4_096  # pixels of the longer side of what a tool shows
MAX_WAIT = 2.0  # seconds


def zoom(image: Image, box: Box) -> Image:
    """Enlarges a part of an image to the size of the whole.

    Args:
        image: the image
        box: the part, [x1, y1, x2, y2]
    """
    part, width, height = crop(image, box), box[2] - box[0], box[3] - box[1]  # before it was rounded to pixels
    scale = min(image.width / width, image.height / height, LARGEST / max(width, height))
    return part.resize((max(1, round(width * scale)), max(1, round(height * scale))), _BICUBIC)


def crop(image: Image, box: Box) -> Image:
    """Cuts a part out of an image, as it is.

    Args:
        image: the image
        box: the part, [x1, y1, x2, y2]
    """
    x1, y1, x2, y2 = box
    corners = math.floor(x1), math.floor(y1), math.ceil(x2), math.ceil(y2)
    if min(corners[2] - corners[0], corners[3] - corners[1]) < SMALLEST:
        raise ToolError("arguments.box: the part is too small to be seen")
    return _bounded(image.crop(corners))


def rotate(image: Image, degrees: Literal[90, 180, 270]) -> Image:
    """Turns an image clockwise.

    Args:
        image: the image
        degrees: 90, 180 or 270
    """
    return _bounded(image.transpose(_TURNS[degrees]))


def measure(image: Image, start: Point, end: Point) -> dict[str, Any]:
    """Measures the straight line between two points of an image in pixels.

    Args:
        image: the image
        start: where the line begins, [x, y]
        end: where it ends, [x, y]
    """
    across, down = end[0] - start[0], end[1] - start[1]
    angle = math.degrees(math.atan2(-down, across)) % 360
    return {"length": round(math.hypot(across, down), 1), "width": round(abs(across), 1),
            "height": round(abs(down), 1), "angle": round(angle, 1)}  # fmt: skip


def read_text(image: Image, box: Box | None = None) -> list[str]:
    """Reads the printed text in an image, line by line.

    Args:
        image: the image
        box: the part to read, [x1, y1, x2, y2]; all of it if left out
    """
    part = image if box is None else crop(image, box)
    readings = _reader()(np.asarray(part)[:, :, ::-1])  # BGR
    return [str(line) for line in readings.txts or ()]


def wait(seconds: Annotated[float, Field(gt=0, le=MAX_WAIT)]) -> str:
    """Waits.

    Args:
        seconds: how long, at most 2
    """
    time.sleep(seconds)
    return f"Waited {seconds:g} s."


def _bounded(image: Image) -> Image:
    """The image, scaled down where it is larger than any model takes."""
    if max(image.size) > LARGEST:
        image.thumbnail((LARGEST, LARGEST))
    return image


@cache
def _reader() -> Callable[[np.ndarray], Any]:
    try:
        from rapidocr import RapidOCR

        return RapidOCR(params={"Global.log_level": "critical"})
    except ImportError as error:
        raise UserError("rapidocr is not installed, which read_text needs: pip install 'vlrl[ocr]'") from error


def prepare(name: str) -> None:
    """Loads what a tool needs, which would count as the time of its first call. UserError: it is not installed."""
    if name == read_text.__name__:
        _reader()


_BICUBIC = PillowImage.Resampling.BICUBIC
_TURNS = {
    90: PillowImage.Transpose.ROTATE_270,  # Pillow counts the other way round
    180: PillowImage.Transpose.ROTATE_180,
    270: PillowImage.Transpose.ROTATE_90,
}
TOOLS: dict[str, Callable[..., Any]] = {tool.__name__: tool for tool in (zoom, crop, rotate, measure, read_text, wait)}
