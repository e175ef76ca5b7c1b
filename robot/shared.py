"""Memory that two processes see, for pictures. A nameless file: whoever dies leaves nothing behind."""

from __future__ import annotations

import mmap
import os
import tempfile
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

MEMORY = Path("/dev/shm")  # a file system in memory, where there is one


class Shared:
    """Pictures in shared memory, one writer and one reader that take turns. It grows to what the largest lot needs.

    Args:
        descriptor: the other process' `fileno()`; none: new memory.
    """

    def __init__(self, descriptor: int | None = None):
        self._file = _nameless() if descriptor is None else descriptor
        self._map: mmap.mmap | None = None
        self._freed = weakref.finalize(self, os.close, self._file)

    def fileno(self) -> int:
        return self._file

    def write(self, images: Sequence[Image.Image]) -> list[tuple[int, int]]:
        """Their sizes (width, height), which `read` asks for. Alpha channels and palettes become RGB."""
        pixels = [np.asarray(image.convert("RGB")) for image in images]
        view, start = self._room(sum(each.nbytes for each in pixels)), 0
        for each in pixels:
            view[start : start + each.nbytes] = each.tobytes()
            start += each.nbytes
        return [image.size for image in images]

    def read(self, sizes: Sequence[tuple[int, int]]) -> Iterator[Image.Image]:
        """RGB images, copied."""
        view, start = self._room(sum(3 * width * height for width, height in sizes)), 0
        for width, height in sizes:
            end = start + 3 * width * height
            yield Image.frombytes("RGB", (width, height), view[start:end])
            start = end

    def close(self) -> None:
        """May be called twice."""
        if self._map is not None:
            self._map.close()
        self._freed()

    def _room(self, size: int) -> mmap.mmap:
        if self._map is None or len(self._map) < size:
            size = max(size, mmap.PAGESIZE)
            if os.fstat(self._file).st_size < size:
                os.pwrite(self._file, bytes(size), 0)  # takes the memory now: OSError if there is none
            if self._map is not None:
                self._map.close()
            self._map = mmap.mmap(self._file, size)
        return self._map


def _nameless() -> int:
    descriptor, name = tempfile.mkstemp(dir=MEMORY if MEMORY.is_dir() else None)
    os.unlink(name)
    return descriptor
