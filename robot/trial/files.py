"""Files that a kill at any moment leaves whole."""

from __future__ import annotations

import os
from pathlib import Path


def write_whole(path: Path, text: str) -> None:
    """Under another name first, on the disk, then renamed."""
    part = path.with_name(f".{path.name}.part")
    with part.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)


def append_line(path: Path, line: str) -> None:
    """On the disk when it returns. What a kill left of a line is overwritten."""
    with path.open("ab+") as file:
        file.seek(0)
        file.truncate(len(_whole(file.read())))
        file.write(line.encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


def read_lines(path: Path) -> list[str]:
    """The whole lines; [] where there is no file."""
    return _whole(path.read_bytes()).decode().splitlines() if path.exists() else []


def _whole(data: bytes) -> bytes:
    return data[: data.rfind(b"\n") + 1]
