"""What all pages have in common: the head, the top bar, the look, and what the browser may load. No network."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from string import Template
from typing import Any

from vlrl import credentials

HERE = Path(__file__).parent
THEME = '<button type="button" id="theme" class="quiet" aria-label="Switch between light and dark">◐</button>'
LOADS = "default-src 'none'; img-src data:; media-src data:; style-src 'unsafe-inline'"
ASKS = "default-src 'none'; img-src 'self' data:; connect-src 'self'; style-src 'unsafe-inline'"


def frame(
    title: str, kind: str, main: str, links: Mapping[str, str], *, style: str = "",
    scripts: Sequence[str] = (), data: Any = None, served: bool = False,
) -> str:  # fmt: skip
    """A whole page.

    Args:
        title: as text.
        kind: of page, one word.
        main: HTML, all values in it escaped.
        links: id of a section -> its name in the top bar.
        style: CSS beyond the look that all pages share.
        scripts: names of files here, run one after the other; none: a page without any script.
        data: JSON for the scripts, as the element `data`.
        served: by `vlrl view`, which the page may ask for more; else it may load nothing at all.
    """
    script = "".join(text(name) for name in scripts)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    held = f'<script type="application/json" id="data">{script_json(data)}</script>\n<script>{script}</script>'
    return Template(text("frame.html")).substitute(
        policy=(ASKS if served else LOADS) + (f"; script-src 'sha256-{digest}'" if script else ""),
        title=escape(title),
        kind=escape(kind),
        links="".join(f'<a href="#{place}">{escape(name)}</a>' for place, name in links.items()),
        style=text("look.css") + style,
        theme=THEME if script else "",
        main=main,
        scripts=held if script else "",
    )


def text(name: str) -> str:
    """A file that lies here."""
    return (HERE / name).read_text(encoding="utf-8")


def fact_list(facts: Mapping[str, str]) -> str:
    """Names and values, escaped."""
    rows = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(said)}</dd></div>" for name, said in facts.items())
    return f'<dl class="facts">{rows}</dl>'


def note_lines(notes: Sequence[str]) -> str:
    return "".join(f'<p class="note">{escape(note)}</p>' for note in notes)


def config_section(config: str) -> str:
    """The configuration, folded."""
    return (
        '<section id="config" aria-label="Configuration"><details><summary>Configuration</summary>'
        f'<pre tabindex="0" aria-label="configuration">{escape(credentials.hidden(config))}</pre></details></section>'
    )


def script_json(value: Any) -> str:
    """JSON that is safe inside a script element: without `<`, no completion can close it or open a comment."""
    return json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
