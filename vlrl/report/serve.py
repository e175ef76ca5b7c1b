"""`vlrl view`: runs in a browser on this machine, while they train."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from string import Template
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from vlrl.http_server import HttpHandler, HttpServer
from vlrl.report.folders import watched
from vlrl.report.frame import frame, text
from vlrl.report.page import CARDS, CURVES
from vlrl.report.watched import KINDS, Watched, image_file
from vlrl.types import UserError

SCRIPTS = ("dom.js", "keys.js", *CURVES, *CARDS, "merge.js", "samples.js", "ask.js", "view.js")
Answer = tuple[str, bytes]  # content type, body


class Viewer:
    """Serves the page of some runs on 127.0.0.1 alone; it changes nothing and asks for nothing elsewhere.

    Args:
        port: 0: any free one.

    Raises:
        UserError: a folder is no run, or the port is taken.
    """

    def __init__(self, folders: Sequence[Path], port: int = 0):
        self.runs = watched(list(folders))
        try:
            self._server = HttpServer("127.0.0.1", port, _handler(self))
        except (OSError, OverflowError) as error:
            raise UserError(f"--port {port}: {getattr(error, 'strerror', error)}; another number, or 0") from None
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
        main = Template(text("view.html")).substitute(curves=text("curves.html"))
        links = {"curves": "Curves", "rollouts": "Rollouts"}
        return frame(
            f"{', '.join(names)} · vlrl view", "view", main, links, style=text("page.css") + text("view.css"),
            scripts=SCRIPTS, data={"runs": names}, served=True,
        )  # fmt: skip

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
        asked: dict[str, tuple[Callable, Callable]] = {
            "curves": (run.curves_stamp, run.curves),
            "samples": (run.rollouts_stamp, run.samples),
            "rollouts": (run.rollouts_stamp, lambda: run.rollouts(sample)),
        }
        if parts[1] not in asked or len(parts) == 3:
            return None
        mark, make = asked[parts[1]]
        now = f'"{hashlib.sha256(repr((path, query, mark())).encode()).hexdigest()[:20]}"'
        return now, None if now == etag else ("application/json", _json(make()))

    def _run(self, number: str) -> Watched | None:
        known = number.isascii() and number.isdigit() and int(number) < len(self.runs)
        return self.runs[int(number)] if known else None

    def _image(self, run: Watched, name: str) -> tuple[str, Answer] | None:
        path = image_file(run.folder, unquote(name))
        return ("", (KINDS[path.suffix.lower()], path.read_bytes())) if path else None


def _json(value: Any) -> bytes:
    return json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def _handler(viewer: Viewer) -> type[HttpHandler]:
    class Handler(HttpHandler):
        def handle_get(self) -> None:
            asked = urlsplit(self.path)
            try:
                found = viewer.answer(asked.path, asked.query, self.headers.get("If-None-Match", ""))
            except OSError:  # a file that was there has gone
                found = None
            if found is None:
                return self.send(404, "text/plain", b"not here\n")
            etag, content = found
            kind, body = content or ("", None)
            return self.send(200 if content else 304, kind, body, {"ETag": etag} if etag else {})

    return Handler


def view(folders: Sequence[Path], port: int, tell: Callable[[str], None]) -> int:
    """Serves until Ctrl-C."""
    viewer = Viewer(folders, port)
    names = ", ".join(run.name for run in viewer.runs)
    tell(f"{names}: {viewer.url} (Ctrl-C ends)")
    try:
        viewer.serve()
    except KeyboardInterrupt:
        tell("")
    finally:
        viewer._server.server_close()
    return 0
