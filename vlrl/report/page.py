"""The report of a training run: one HTML file that needs no network, no server and no other file."""

from __future__ import annotations

import os
import tempfile
from html import escape
from pathlib import Path
from string import Template

from vlrl.report.curves import sections
from vlrl.report.frame import config_section, frame, text
from vlrl.report.gallery import gallery
from vlrl.report.header import facts, gain, notes, title
from vlrl.report.measures import measures
from vlrl.report.read import RunFiles, read_run

CARDS = ("pictures.js", "timeline.js", "card.js")
CURVES = ("scale.js", "chart.js", "curves.js")
SCRIPTS = ("dom.js", "keys.js", *CURVES, *CARDS, "gallery.js", "page.js")


def write_report(run: Path) -> Path:
    """Writes `run/report.html` in one move, so that a reader never sees half a page, and returns its path.

    Reads config.yaml, summary.json, metrics.jsonl, timings.jsonl and rollouts/step_*.jsonl, each where present.
    At most `read.MAX_ROLLOUTS` rollouts are embedded. Raises UserError where `run` is no folder.
    """
    files = read_run(run)
    return write_page(files.folder / "report.html", render(files))


def write_page(target: Path, page: str) -> Path:
    """The file whole or not at all."""
    handle, name = tempfile.mkstemp(prefix=".report-", suffix=".html", dir=target.parent)
    try:
        with os.fdopen(handle, "wb") as out:
            out.write(page.encode("utf-8", errors="replace"))
        os.chmod(name, 0o644)  # mkstemp's 0600 would keep colleagues on a shared disk from reading it
        os.replace(name, target)
    except OSError:
        Path(name).unlink(missing_ok=True)
        raise
    return target


def render(files: RunFiles) -> str:
    """The page as text."""
    shown = gallery(files.folder, files.rollouts)
    main = Template(text("run.html")).substitute(
        title=escape(title(files)),
        run=escape(files.folder.name),
        gain=gain(files),
        measures=measures(files),
        facts=facts(files),
        notes=notes(files),
        curves=text("curves.html"),
        rollouts=text("rollouts.html"),
        config=config_section(files.config or "No config.yaml in this run folder."),
    )
    return frame(
        f"{title(files)} · {files.folder.name}",
        "train",
        main,
        {"curves": "Curves", "rollouts": "Rollouts", "config": "Config"},
        style=text("page.css"),
        scripts=SCRIPTS,
        data={"sections": sections(files.metrics, files.timings), **shown, "shown": files.shown},
    )
