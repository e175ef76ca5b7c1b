"""Verdicts that are known, in a file that grows as they come: nothing is asked twice, and a killed run goes on."""

from __future__ import annotations

import json
import threading
from pathlib import Path

from vlrl.decoders import parse_json
from vlrl.judges.base import Verdict
from vlrl.types import UserError


class Memory:
    """Verdicts by key: JSON lines {key, scores, said} in a file, or without one for this process alone.

    Lines that cannot be read, as a killed run leaves, are passed over. Threads and processes may share the file.

    Raises:
        UserError: the file cannot be written to.
    """

    def __init__(self, path: str | None):
        self._path, self._lock = None if path is None else Path(path), threading.Lock()
        self._known: dict[str, Verdict] = {}
        if self._path is None:
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("ab+") as file:
                file.seek(0)
                text = file.read()
                if text and not text.endswith(b"\n"):
                    file.write(b"\n")  # what a killed run left half written must not swallow the next line
        except OSError as error:
            raise UserError(f"judge: cache: cannot write to {path}: {error.strerror}") from None
        rows = filter(None, map(_row, text.decode("utf-8", "replace").splitlines()))
        self._known.update(rows)

    def of(self, key: str) -> Verdict | None:
        return self._known.get(key)

    def add(self, key: str, verdict: Verdict) -> None:
        with self._lock:
            self._known[key] = verdict
            if self._path is not None:
                with self._path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps({"key": key, "scores": verdict.scores, "said": verdict.said}) + "\n")


def _row(line: str) -> tuple[str, Verdict] | None:
    try:
        row = parse_json(line)
        scores = tuple(float(score) for score in row["scores"])
        if not (isinstance(row["key"], str) and isinstance(row["said"], str) and all(0 <= s <= 1 for s in scores)):
            return None
        return row["key"], Verdict(scores, row["said"])
    except (ValueError, TypeError, KeyError):
        return None
