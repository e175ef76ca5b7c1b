"""JSON lines too many to hold: found by where they end, decoded when they are asked for."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from tasks.readers.unchanged import Unchanged
from vlrl.decoders import DecodeError, parse_json

LARGEST = 1 << 28  # bytes of a line
BLOCK = 1 << 20  # bytes that are looked at together


@dataclass(frozen=True)
class BrokenLine:
    """A line that is not JSON."""

    reason: str = field(compare=False)  # its column counts bytes or characters of the line


class Lines(Sequence[Any]):
    """The rows of a file of JSON lines, a BrokenLine for one that is not JSON in UTF-8; 8 bytes of memory a row.

    Blank lines at the end are none. The file is opened for each row, so that nothing stays open for days.

    Raises:
        OSError: the file cannot be read.
        UserError: at a row, that the file was changed or taken away since it was first looked at.
    """

    def __init__(self, file: Path):
        self.file = file
        with file.open("rb") as opened:
            self._unchanged = Unchanged(file)
            self._ends = _ends(opened)
            while len(self._ends) and not self._text(opened, len(self._ends) - 1).strip():
                self._ends = self._ends[:-1]

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, index: int) -> Any:
        place = range(len(self._ends))[index]
        with self._unchanged.asserted(), self.file.open("rb", buffering=0) as opened:
            text = self._text(opened, place)
        return decoded(text)

    def spread(self, begin: int, count: int) -> list[int]:
        """So many places from `begin` to the last, evenly."""
        return np.linspace(begin, len(self) - 1, count).astype(int).tolist()

    def copies(self, wanted: Collection[bytes]) -> set[bytes]:
        """Those of the wanted lines, without space around them, that stand here too, to the byte."""
        with self.file.open("rb") as opened:
            return {text for line in opened if (text := line.strip()) in wanted}

    def _text(self, opened: BinaryIO, place: int) -> bytes:
        begin = int(self._ends[place - 1]) + 1 if place else 0
        opened.seek(begin)
        return opened.read(int(self._ends[place]) - begin)


def decoded(line: str | bytes) -> Any:
    """What a line says, or why it is not read."""
    try:
        return parse_json(line, finite=False, max_size=LARGEST)
    except DecodeError as error:
        return BrokenLine(str(error))


def _ends(opened: BinaryIO) -> np.ndarray:
    """int64: where each line's feed stands, or the file's end for a last line without one."""
    found, read = [], 0
    for block in _blocks(opened):
        found.append(np.flatnonzero(np.frombuffer(block, dtype=np.uint8) == ord("\n")) + read)
        read += len(block)
        last = block[-1:]
    if read and last != b"\n":
        found.append(np.array([read]))
    return np.concatenate(found) if found else np.empty(0, dtype=np.int64)


def _blocks(opened: BinaryIO) -> Iterator[bytes]:
    while block := opened.read(BLOCK):
        yield block
