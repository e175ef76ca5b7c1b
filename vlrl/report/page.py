"""Puts a run's report together: one HTML file that needs no network, no server and no other file."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import tempfile
from html import escape
from pathlib import Path
from string import Template
from typing import Any

from vlrl.report.curves import sections
from vlrl.report.gallery import gallery
from vlrl.report.header import facts, gain, notes, title
from vlrl.report.measures import measures
from vlrl.report.read import RunFiles, read_run

HERE = Path(__file__).parent
SCRIPTS = ("dom.js", "curves.js", "timeline.js", "gallery.js", "page.js")


def write_report(run: Path) -> Path:
    """Writes `run/report.html` in one move, so that a reader never sees half a page, and returns its path.

    Reads config.yaml, summary.json, metrics.jsonl, timings.jsonl and rollouts/step_*.jsonl, each where present.
    At most `read.MAX_ROLLOUTS` rollouts are embedded. Raises UserError where `run` is no folder.
    """
    files = read_run(run)
    target = files.folder / "report.html"
    content = render(files).encode("utf-8", errors="replace")
    handle, name = tempfile.mkstemp(prefix=".report-", suffix=".html", dir=files.folder)
    try:
        with os.fdopen(handle, "wb") as out:
            out.write(content)
        os.chmod(name, 0o644)  # mkstemp's 0600 would keep colleagues on a shared disk from reading it
        os.replace(name, target)
    except OSError:
        Path(name).unlink(missing_ok=True)
        raise
    return target


def render(files: RunFiles) -> str:
    """The page as text."""
    script = "".join((HERE / name).read_text(encoding="utf-8") for name in SCRIPTS)
    shown = gallery(files.folder, files.rollouts)
    data = {"sections": sections(files.metrics, files.timings), **shown, "saved_steps": files.saved_steps}
    return Template((HERE / "page.html").read_text(encoding="utf-8")).substitute(
        title=escape(title(files)),
        run=escape(files.folder.name),
        gain=gain(files),
        measures=measures(files),
        facts=facts(files),
        notes=notes(files),
        config=escape(files.config) or "No config.yaml in this run folder.",
        style=(HERE / "page.css").read_text(encoding="utf-8"),
        script=script,
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        data=script_json(data),
    )


def script_json(value: Any) -> str:
    """JSON that is safe inside a script element: without `<`, no completion can close it or open a comment."""
    return json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
