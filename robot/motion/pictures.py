"""Pictures from one process to another through memory that both see: the newest few, whoever is slow misses some."""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from robot.shared import MEMORY

SLOTS = 8  # ticks whose pictures are kept
EMPTY = (-1).to_bytes(8, "little", signed=True)
Placed = list[tuple[str, list[int], int]]  # name, shape, and where in the file


def memory() -> Any:
    """A file in memory, without a name: it is gone with the last process that has it open."""
    return tempfile.TemporaryFile(dir=MEMORY if MEMORY.is_dir() else None)


class Pictures:
    """One side, writer or reader, of the file with this descriptor.

    A slot begins with the number of its tick, -1 while it is written.
    """

    def __init__(self, descriptor: int):
        self._file, self._map, self._size, self._next = descriptor, None, 0, 0

    def write(self, tick: int, images: Mapping[str, np.ndarray]) -> Placed:
        """Where `read` finds them. The file grows to what the largest lot needs (OSError: there is no such memory)."""
        if not images:
            return []
        needed = 8 + sum(image.nbytes for image in images.values())
        if needed > self._size:
            self._size = needed
            os.pwrite(self._file, bytes(SLOTS * needed), 0)
        view = self._view(SLOTS * self._size)
        begin, self._next = self._next * self._size, (self._next + 1) % SLOTS
        view[begin : begin + 8] = EMPTY
        placed, at = [], begin + 8
        for name, image in images.items():
            np.frombuffer(view, np.uint8, image.size, at)[:] = image.reshape(-1)
            placed.append((name, list(image.shape), at))
            at += image.nbytes
        view[begin : begin + 8] = tick.to_bytes(8, "little", signed=True)
        return placed

    def read(self, tick: int, placed: Sequence[Any]) -> dict[str, np.ndarray]:
        """Copies, uint8 [height, width, 3]; {} where they have been written over since."""
        if not placed:
            return {}
        begin = placed[0][2] - 8
        ends = [at + int(np.prod(shape)) for _, shape, at in placed]
        view, stamp = self._view(max(ends)), tick.to_bytes(8, "little", signed=True)
        if view[begin : begin + 8] != stamp:
            return {}
        read = {
            name: np.frombuffer(view, np.uint8, end - at, at).reshape(shape).copy()
            for (name, shape, at), end in zip(placed, ends, strict=True)
        }
        return read if view[begin : begin + 8] == stamp else {}

    def _view(self, size: int) -> mmap.mmap:
        if self._map is None or len(self._map) < size:
            self._map = mmap.mmap(self._file, max(size, os.fstat(self._file).st_size))
        return self._map
