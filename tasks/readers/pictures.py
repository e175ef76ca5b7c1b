"""Images that rows name or hold: found in a folder, decoded to the last byte."""

from __future__ import annotations

import io
from functools import lru_cache
from pathlib import Path

from PIL import Image

from tasks.readers import files


class BadRowError(ValueError):
    """A row that cannot be used; the message is the problem."""


class Images:
    """The images of one file's rows. Each is decoded once, however many rows it serves.

    Args:
        folder: that their names are relative to.
        remembered: the sizes of so many are kept; None: all.
    """

    def __init__(self, folder: Path, remembered: int | None = None):
        self.folder = folder
        self._found = lru_cache(remembered)(self._find)
        self._size = lru_cache(remembered)(checked_size)

    def path(self, name: str) -> Path:
        """Where the image of that name lies, one object for all its rows; BadRowError for a name that leads out."""
        return self._found(name)

    def size(self, image: Path | bytes) -> tuple[int, int]:
        """Width and height of an image that decodes completely, else BadRowError."""
        return checked_size(image) if isinstance(image, bytes) else self._size(image)

    def _find(self, name: str) -> Path:
        if files.leads_out(self.folder, name):
            raise BadRowError(f"{name} leads out of {self.folder}; set data.images to a folder above it")
        return self.folder / name


def checked_size(image: Path | bytes) -> tuple[int, int]:
    """Width and height of an image that decodes completely, else BadRowError."""
    name = "its bytes" if isinstance(image, bytes) else str(image)
    try:
        with Image.open(io.BytesIO(image) if isinstance(image, bytes) else image) as opened:
            opened.load()
            return opened.size
    except FileNotFoundError:
        raise BadRowError(f"no such image {name}") from None
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:  # SyntaxError: a broken PNG
        raise BadRowError(f"image {name} is broken or cut short ({error})") from error


def open_image(image: Path | bytes) -> Image.Image:
    with Image.open(io.BytesIO(image) if isinstance(image, bytes) else image) as opened:
        return opened.convert("RGB")
