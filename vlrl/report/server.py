"""The server of reports of running and ended runs."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from string import Template
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

from vlrl.media import MediaError, read_image_header
from vlrl.report.html import CARDS, CURVES, MIME, card, frame, frame_text, measured, sections, title, view_command
from vlrl.report.run_reader import (
    ReadRow,
    RunFiles,
    Stamp,
    Tail,
    read_lines,
    read_object,
    read_text,
    rollout_files,
    stamp,
)
from vlrl.system.http_server import HttpHandler, HttpServer
from vlrl.types import UserError

# A run folder while it is looked at: its curves, its samples, and the rollouts of one sample.

KINDS = {f".{name.lower()}": mime for name, mime in MIME.items()} | {".jpg": "image/jpeg"}
SMALL = ("config.yaml", "summary.json")


@dataclass
class Linked:
    """Images by their place in `items`: {src: address at the server, size: [w, h]}. See `gallery.Album`."""

    folder: Path
    number: int  # of the run
    items: list[dict[str, Any]] = field(default_factory=list)
    places: dict[str, int | None] = field(default_factory=dict)

    def add_image(self, name: str) -> int | None:
        if name not in self.places:
            size = size_of(image_file(self.folder, name))
            self.places[name] = len(self.items) if size else None
            if size:
                self.items.append({"src": f"runs/{self.number}/image/{quote(name)}", "size": size})
        return self.places[name]


class WatchedRun:
    """One run. Every question first reads what is new; questions of several threads wait for each other.

    Args:
        number: its place among the runs that are served.
        name: short, unlike the other runs'.
    """

    def __init__(self, folder: Path, number: int, name: str):
        self.folder, self.number, self.name = folder.resolve(), number, name
        self._metrics, self._timings = (Tail(self.folder / f"{kind}.jsonl") for kind in ("metrics", "timings"))
        self._saved: dict[Path, tuple[Stamp | None, list[ReadRow]]] = {}
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
        values: dict[str, dict[float, list[float]]] = {}
        for row in self._rows():
            counts = values.setdefault(str(row["sample_id"]), {}).setdefault(row["step"], [row["step"], 0, 0, 0])
            correct = row.get("correct")
            failed = bool(row.get("reason"))
            right = not failed and isinstance(correct, int | float) and correct >= 0.5
            for place, more in enumerate((1, right, failed), 1):
                counts[place] += more
        return {sample: [steps[step] for step in sorted(steps)] for sample, steps in values.items()}

    def rollouts(self, sample: str) -> dict[str, list]:
        """{cards, images} of one sample, by step."""
        album = Linked(self.folder, self.number)
        rows = [row for row in self._rows() if str(row["sample_id"]) == sample]
        return {"cards": [card(row, album) for row in rows], "images": album.items}

    def _rows(self) -> list[ReadRow]:
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


def _usable(row: ReadRow) -> bool:
    return row.get("sample_id") is not None and isinstance(row.get("step"), int | float)


# Which runs lie in the folders that a user names.

MOST_RUNS = 16


def watched(folders: list[Path]) -> list[WatchedRun]:
    """The runs that lie in these folders or, where one is no run itself, up to two levels below it.

    Raises:
        UserError: a folder is missing, holds no run, or there are more than MOST_RUNS.
    """
    runs = list(dict.fromkeys(run for folder in folders for run in _runs(folder)))
    if len(runs) > MOST_RUNS:
        raise UserError(f"{len(runs)} runs: at most {MOST_RUNS} side by side; name the ones to look at")
    names = [run.name for run in runs]
    labels = [run.name if names.count(run.name) == 1 else f"{run.parent.name}/{run.name}" for run in runs]
    return [WatchedRun(run, i, name) for i, (run, name) in enumerate(zip(runs, labels, strict=True))]


def _runs(folder: Path) -> list[Path]:
    folder = folder.resolve()
    if not folder.is_dir():
        raise UserError(f"no run folder at {folder}: give the folder that holds metrics.jsonl")
    if _is_run(folder):
        return [folder]
    below = [path for pattern in ("*", "*/*") for path in sorted(folder.glob(pattern)) if path.is_dir()]
    if not (runs := [path for path in below if _is_run(path)]):
        raise UserError(f"no run in {folder}: neither it nor a folder in it holds metrics.jsonl or config.yaml")
    return runs


def _is_run(folder: Path) -> bool:
    return any((folder / name).is_file() for name in ("metrics.jsonl", "config.yaml"))


# `vlrl view`: runs in a browser on this machine, while they train.

SCRIPTS = ("dom.js", "keys.js", *CURVES, *CARDS, "merge.js", "samples.js", "ask.js", "view.js")
Answer = tuple[str, bytes]  # content type, body


class Viewer:
    """Serves the page of some runs on 127.0.0.1 alone; it changes nothing and asks for nothing elsewhere.

    Args:
        port: 0: any free one.
        chat: address of the page that asks the run's model; '': there is none.

    Raises:
        UserError: a folder is no run, or the port is taken.
    """

    def __init__(self, folders: Sequence[Path], port: int = 0, chat: str = ""):
        self.runs, self.chat = watched(list(folders)), chat
        self.command = view_command([str(folder) for folder in folders])
        try:
            self._server = HttpServer("127.0.0.1", port, _handler(self))
        except (OSError, OverflowError) as error:
            raise UserError(
                f"--port {port}: {(isinstance(error, OSError) and error.strerror) or error}; another number, or 0"
            ) from None
        self.port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}/"

    def serve(self) -> None:
        """Until `close`, called from another thread, or Ctrl-C."""
        self._server.serve_forever(0.1)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def page(self) -> str:
        names = [run.name for run in self.runs]
        main = Template(frame_text("view.html")).substitute(
            curves=frame_text("curves.html"),
            command=escape(self.command),
            chat=f'<p><a id="chat" href="{escape(self.chat)}">Ask its newest checkpoint</a></p>' if self.chat else "",
        )
        links = {"curves": "Curves", "rollouts": "Rollouts"}
        return frame(
            f"{', '.join(names)} · vlrl view",
            "view",
            main,
            links,
            style=frame_text("page.css") + frame_text("view.css"),
            scripts=SCRIPTS,
            data={"runs": names},
            served=True,
        )

    def answer(self, path: str, query: str, etag: str) -> tuple[str, Answer | None] | None:
        """ETag and content of what lies there; content None: what has this ETag is still true. None: nothing there."""
        if path == "/":
            return "", ("text/html; charset=utf-8", self.page().encode("utf-8", errors="replace"))
        parts = path.removeprefix("/runs/").split("/", 2)
        if not path.startswith("/runs/") or len(parts) < 2 or not (run := self._run(parts[0])):
            return None
        if parts[1] == "image" and len(parts) == 3:
            return self._image(run, parts[2])
        sample = parse_qs(query).get("sample", [""])[0]
        routes: dict[str, tuple[Callable, Callable]] = {
            "curves": (run.curves_stamp, run.curves),
            "samples": (run.rollouts_stamp, run.samples),
            "rollouts": (run.rollouts_stamp, lambda: run.rollouts(sample)),
        }
        if parts[1] not in routes or len(parts) == 3:
            return None
        mark, make = routes[parts[1]]
        now = f'"{hashlib.sha256(repr((path, query, mark())).encode()).hexdigest()[:20]}"'
        return now, None if now == etag else ("application/json", _json(make()))

    def _run(self, number: str) -> WatchedRun | None:
        known = number.isascii() and number.isdigit() and int(number) < len(self.runs)
        return self.runs[int(number)] if known else None

    def _image(self, run: WatchedRun, name: str) -> tuple[str, Answer] | None:
        path = image_file(run.folder, unquote(name))
        return ("", (KINDS[path.suffix.lower()], path.read_bytes())) if path else None


def _json(value: Any) -> bytes:
    return json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def _handler(viewer: Viewer) -> type[HttpHandler]:
    class Handler(HttpHandler):
        def handle_get(self) -> None:
            url = urlsplit(self.path)
            try:
                response = viewer.answer(url.path, url.query, self.headers.get("If-None-Match", ""))
            except OSError:  # a file that was there has gone
                response = None
            if response is None:
                return self.send(404, "text/plain", b"not here\n")
            etag, content = response
            kind, body = content or ("", None)
            return self.send(200 if content else 304, kind, body, {"ETag": etag} if etag else {})

    return Handler


def view(folders: Sequence[Path], port: int, tell: Callable[[str], None], chat: str = "") -> int:
    """Serves until Ctrl-C; `chat` as of `Viewer`."""
    viewer = Viewer(folders, port, chat)
    names = ", ".join(run.name for run in viewer.runs)
    tell(f"{names}: {viewer.url} (Ctrl-C ends)")
    try:
        viewer.serve()
    except KeyboardInterrupt:
        tell("")
    finally:
        viewer._server.server_close()
    return 0
