"""What a task measures on held-out samples beside accuracy, with its baselines: first evaluation to last."""

from __future__ import annotations

from html import escape

from vlrl.report.header import is_number, number
from vlrl.report.read import RunFiles

OWN = ("accuracy", "low", "high", "n", "reward", "length")  # shown elsewhere, as are reward parts and parse failures
ELSEWHERE = ("reward/", "parse_fail/")


def measures(files: RunFiles) -> str:
    """A definition list, each name with `first -> last`, or one number where it never changed; '' without any."""
    rows = [row for row in files.metrics if is_number(row.get("eval/accuracy"))]
    names = [key.removeprefix("eval/") for key in (rows[-1] if rows else {}) if key.startswith("eval/")]
    names = [name for name in names if name not in OWN and not name.startswith(ELSEWHERE)]
    shown = "".join(_row(name, rows[0].get(f"eval/{name}"), rows[-1][f"eval/{name}"]) for name in names)
    if not shown:
        return ""
    return f'<section aria-label="Held-out metrics"><h2>Held out</h2><dl class="facts">{shown}</dl></section>'


def _row(name: str, first: object, last: object) -> str:
    if not is_number(last):
        return ""
    said = number(last) if first == last or not is_number(first) else f"{number(first)} → {number(last)}"
    return f"<div><dt>{escape(name.replace('_', ' '))}</dt><dd>{said}</dd></div>"
