"""Files of a run that somebody is still writing: only what is new is read."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from vlrl.report.read import Row, parse_object

Stamp = tuple[int, int, int]  # inode, size, modification time


def stamp(path: Path) -> Stamp | None:
    """Changes whenever the file does; None where there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


@dataclass
class Tail:
    """The rows of a JSON-lines file that grows. A line that is being written waits until it ends.

    A file that is shorter than before, or another one of that name (a resumed run cuts its metrics), is read anew.
    """

    path: Path
    rows: list[Row] = field(default_factory=list)
    unreadable: int = 0
    _read: int = 0  # bytes
    _inode: int = -1

    def follow(self) -> None:
        """Reads what has come."""
        found = stamp(self.path)
        inode, size = found[:2] if found else (-1, 0)
        if inode != self._inode or size < self._read:
            self.rows, self.unreadable, self._read, self._inode = [], 0, 0, inode
        if size == self._read:
            return
        with self.path.open("rb") as file:
            file.seek(self._read)
            whole, end, _ = file.read().rpartition(b"\n")
        self._read += len(whole) + len(end)
        for line in whole.split(b"\n"):
            if line.strip():
                row = parse_object(line.decode("utf-8", errors="replace"))
                self.unreadable += row is None
                self.rows += [row] if row is not None else []
