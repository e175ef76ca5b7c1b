"""A run folder while it is looked at: its curves, its samples, and the rollouts of one sample."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from vlrl.media import MediaError, read_image_header
from vlrl.report.curves import sections
from vlrl.report.gallery import MIME, card
from vlrl.report.header import measured, title
from vlrl.report.read import Row, RunFiles, read_lines, read_object, read_text, rollout_files
from vlrl.report.tail import Stamp, Tail, stamp

KINDS = {f".{name.lower()}": mime for name, mime in MIME.items()} | {".jpg": "image/jpeg"}
SMALL = ("config.yaml", "summary.json")


@dataclass
class Linked:
    """Images by their place in `items`: {src: address at the server, size: [w, h]}. See `gallery.Album`."""

    folder: Path
    number: int  # of the run
    items: list[dict[str, Any]] = field(default_factory=list)
    places: dict[str, int | None] = field(default_factory=dict)

    def place(self, name: str) -> int | None:
        if name not in self.places:
            size = size_of(image_file(self.folder, name))
            self.places[name] = len(self.items) if size else None
            if size:
                self.items.append({"src": f"runs/{self.number}/image/{quote(name)}", "size": size})
        return self.places[name]


class Watched:
    """One run. Every question first reads what is new; questions of several threads wait for each other.

    Args:
        number: its place among the runs that are served.
        name: short, unlike the other runs'.
    """

    def __init__(self, folder: Path, number: int, name: str):
        self.folder, self.number, self.name = folder.resolve(), number, name
        self._metrics, self._timings = (Tail(self.folder / f"{kind}.jsonl") for kind in ("metrics", "timings"))
        self._saved: dict[Path, tuple[Stamp | None, list[Row]]] = {}
        self._lock = threading.Lock()

    def curves_stamp(self) -> tuple:
        """Changes whenever `curves` does."""
        return tuple(stamp(self.folder / name) for name in (*SMALL, "metrics.jsonl", "timings.jsonl"))

    def rollouts_stamp(self) -> tuple:
        """Changes whenever `samples` or `rollouts` do."""
        return tuple((path.name, stamp(path)) for path in rollout_files(self.folder))

    def curves(self) -> dict[str, Any]:
        """{name, title, step, state, ends, sections}; ends: [label, {value, low, high, n}] of held-out accuracy."""
        with self._lock:
            self._metrics.follow()
            self._timings.follow()
            metrics, timings = self._metrics.rows, self._timings.rows
            summary = read_object(self.folder / "summary.json", {})
            files = RunFiles(self.folder, read_text(self.folder / "config.yaml"), summary, metrics, timings, [], {}, {})
            steps = [row["step"] for row in metrics if isinstance(row.get("step"), int)]
            return {
                "name": self.name, "title": title(files), "step": max(steps, default=None),
                "state": "finished" if summary else "running or stopped early",
                "ends": measured(files), "sections": sections(metrics, timings),
            }  # fmt: skip

    def samples(self) -> dict[str, list[list[float]]]:
        """Sample -> [step, rollouts, right ones, parse failures] of each step that saved it."""
        found: dict[str, dict[float, list[float]]] = {}
        for row in self._rows():
            counts = found.setdefault(str(row["sample_id"]), {}).setdefault(row["step"], [row["step"], 0, 0, 0])
            correct = row.get("correct")
            failed = bool(row.get("reason"))
            right = not failed and isinstance(correct, int | float) and correct >= 0.5
            for place, more in enumerate((1, right, failed), 1):
                counts[place] += more
        return {sample: [steps[step] for step in sorted(steps)] for sample, steps in found.items()}

    def rollouts(self, sample: str) -> dict[str, list]:
        """{cards, images} of one sample, by step."""
        album = Linked(self.folder, self.number)
        rows = [row for row in self._rows() if str(row["sample_id"]) == sample]
        return {"cards": [card(row, album) for row in rows], "images": album.items}

    def _rows(self) -> list[Row]:
        """All saved rollouts, by step; files that did not change are not read again."""
        with self._lock:
            now = {}
            for path in rollout_files(self.folder):
                mark = stamp(path)
                known = self._saved.get(path)
                rows = known[1] if known and known[0] == mark else list(filter(_usable, read_lines(path)[0]))
                now[path] = mark, rows
            self._saved = now
            return [row for _, rows in now.values() for row in rows]


def image_file(folder: Path, name: str) -> Path | None:
    """The image of this name in the run's `rollouts`; None where it is none, or lies elsewhere."""
    if "\0" in name:
        return None
    path = (folder / name).resolve()
    inside = path.is_relative_to(folder / "rollouts") and path.suffix.lower() in KINDS
    return path if inside and path.is_file() else None


def size_of(path: Path | None) -> list[int] | None:
    try:
        return list(read_image_header(path or "").size)
    except MediaError:  # missing, broken or half-written
        return None


def _usable(row: Row) -> bool:
    return row.get("sample_id") is not None and isinstance(row.get("step"), int | float)
