"""The rows of a run and its checkpoints: what a checkpoint counts is on the disk before it, and comes back from it.

A checkpoint keeps size and SHA-256 of each file of rows, and the rows since the checkpoint before.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

NAMES = ("metrics.jsonl", "timings.jsonl", "skipped.jsonl")


class RunRows:
    """The files of rows in a run folder."""

    def __init__(self, out: Path):
        self.out = out
        self._saved: dict[str, int] = {}  # bytes of each file at the newest checkpoint

    def snapshot(self) -> dict[str, Any]:
        """For a checkpoint that is saved next. All rows are on the disk when it returns."""
        state = {}
        for name in NAMES:
            if not (self.out / name).exists():
                continue
            with (self.out / name).open("rb") as file:
                os.fsync(file.fileno())
                data = file.read()
            start = self._saved.get(name, 0)
            state[name] = {
                "rows": data.count(b"\n"), "bytes": len(data), "sha256": _digest(data),
                "start": start, "start_sha256": _digest(data[:start]), "tail": data[start:].decode(),
            }  # fmt: skip
            self._saved[name] = len(data)
        return state

    def problem(self, saved: Mapping[str, Mapping[str, Any]]) -> str | None:
        """What cannot be restored; None: nothing."""
        for name, entry in saved.items():
            data = _read(self.out / name)
            if data and _restored(data, entry) is None:
                return (
                    f"{self.out / name} is not what this run wrote in its first {entry['rows']} rows: put it back from "
                    "a copy, or remove it to resume without those before the last checkpoints"
                )
        return None

    def restore(self, saved: Mapping[str, Mapping[str, Any]]) -> None:
        """Makes the files what they were at a checkpoint, and says which rows were missing."""
        for name in NAMES:
            path, entry = self.out / name, saved.get(name)
            if entry is None:
                path.unlink(missing_ok=True)  # its first row came later
                continue
            data = _read(path)
            found = _restored(data, entry)
            whole = entry["tail"].encode() if found is None else found
            if data[: entry["bytes"]] != whole:
                _say_restored(path, entry, data, whole)
            if data != whole:
                _write(path, whole)
            self._saved[name] = len(whole)


def _restored(data: bytes, entry: Mapping[str, Any]) -> bytes | None:
    """The file at the checkpoint, from what is there and the checkpoint's rows; None: something else is there."""
    if _digest(data[: entry["bytes"]]) == entry["sha256"]:
        return data[: entry["bytes"]]
    start = data[: entry["start"]]
    return start + entry["tail"].encode() if _digest(start) == entry["start_sha256"] else None


def _say_restored(path: Path, entry: Mapping[str, Any], data: bytes, whole: bytes) -> None:
    rows = whole.count(b"\n")
    lost = "" if rows == entry["rows"] else f"; the {entry['rows'] - rows} rows before them are lost"
    there = data[: entry["bytes"]].count(b"\n")
    print(f"vlrl: {path}: {max(rows - there, 0)} of {entry['rows']} rows were missing and are restored from the "
          f"checkpoint{lost}", file=sys.stderr)  # fmt: skip


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""


def _write(path: Path, data: bytes) -> None:
    part = path.with_name(f".{path.name}.part")
    with part.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
