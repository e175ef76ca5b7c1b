"""The top of a report: what was trained, what it gained, and the key facts. Returns HTML with all values escaped."""

from __future__ import annotations

import re
from collections.abc import Mapping
from html import escape
from typing import Any

from vlrl.report.frame import fact_list, note_lines
from vlrl.report.read import Row, RunFiles

TASK = re.compile(r"^task:[ \t]*(?:\{.*?\bname:[ \t]*|\n(?:[ \t]+.*\n)*?[ \t]+name:[ \t]*)?[\"']?([\w.:-]+)", re.M)
FACTS = {  # summary key -> label, in this order; other scalars follow under their own names
    "seed": "Seed",
    "steps": "Steps",
    "rollouts": "Rollouts",
    "updates": "Updates",
    "wall_s": "Wall time",
    "cpu_s": "CPU time",
    "bad_rows": "Bad rows",
}
NOT_FACTS = {"metric", "before", "after", "task", "run", "name"}

Measured = Mapping[str, Any]  # value, low, high, n


def title(files: RunFiles) -> str:
    """The task's name, from the summary or the config; the folder's name where neither says."""
    found = TASK.search(files.config)
    task = files.summary.get("task") or (found.group(1) if found else "")
    return str(task) if task else files.folder.name


def gain(files: RunFiles) -> str:
    """Before -> after as two dots with intervals on one axis; '' before the first evaluation."""
    ends = measured(files)
    if not ends:
        return ""
    low, high = axis([item for _, item in ends])
    rows = "".join(interval(label, item, low, high) for label, item in ends)
    metric = escape(str(files.summary.get("metric") or "held-out accuracy").replace("_", " "))
    change = f'<span class="change">{ends[1][1]["value"] - ends[0][1]["value"]:+.3f}</span>' if len(ends) == 2 else ""
    return (
        f'<section class="gain" aria-label="Before and after"><h2>{metric} {change}</h2>{rows}'
        f'<div class="interval scale" aria-hidden="true"><span></span><span class="ends"><span>{number(low)}</span>'
        f"<span>{number(high)}</span></span><span></span></div></section>"
    )


def measured(files: RunFiles) -> list[tuple[str, Measured]]:
    """Up to two measurements: the summary's before and after, or a running run's first and latest evaluation."""
    ends = [("before", files.summary.get("before")), ("after", files.summary.get("after"))]
    known = [(label, item) for label, item in ends if isinstance(item, dict) and is_number(item.get("value"))]
    if len(known) == 2:
        return known
    evaluations = [row for row in files.metrics if is_number(row.get("eval/accuracy"))]
    items = [
        {"value": row["eval/accuracy"], **{key: row.get(f"eval/{key}") for key in ("low", "high", "n")}}
        for row in evaluations
    ]
    return [("first", items[0]), ("latest", items[-1])][: len(items)] if items else known


def axis(items: list[Measured]) -> tuple[float, float]:
    """The span that holds all intervals with some room, kept within [0, 1] where the values are shares."""
    values = [item[key] for item in items for key in ("value", "low", "high") if is_number(item.get(key))]
    low, high = min(values), max(values)
    room = 0.15 * (high - low) or 0.1
    if low >= 0 and high <= 1:
        return max(0.0, low - room), min(1.0, high + room)
    return low - room, high + room


def interval(label: str, item: Measured, low: float, high: float) -> str:
    """One row: label, dot on its interval, and the numbers in words."""

    def percent(value: float) -> str:
        return f"{100 * (value - low) / (high - low):.2f}%"

    said, bar = number(item["value"]), ""
    if is_number(item.get("low")) and is_number(item.get("high")):
        said += f" <small>[{number(item['low'])}, {number(item['high'])}]</small>"
        width = f"{100 * (item['high'] - item['low']) / (high - low):.2f}%"
        bar = f'<i class="bar" style="left:{percent(item["low"])};width:{width}"></i>'
    if is_number(item.get("n")):
        said += f" <small>n = {item['n']:,}</small>"
    track = f'<span class="track">{bar}<i class="dot" style="left:{percent(item["value"])}"></i></span>'
    return f'<div class="interval {label}"><span>{label}</span>{track}<span class="said">{said}</span></div>'


def facts(files: RunFiles) -> str:
    """The key facts as a definition list; steps fall back on the last row of the metrics."""
    steps = [row["step"] for row in files.metrics if is_number(row.get("step"))]
    summary = {"steps": max(steps)} if steps else {}
    summary |= {key: len(value) if isinstance(value, list) else value for key, value in files.summary.items()}
    extra = [key for key in summary if key not in FACTS and key not in NOT_FACTS]
    known = [(label, key) for key, label in FACTS.items()]
    known += [(f"{key[:1].upper()}{key[1:]}".replace("_", " "), key) for key in extra]
    shown = [(label, say(key, summary[key])) for label, key in known if is_scalar(summary.get(key))]
    if not files.summary:
        shown.insert(0, ("State", "running or stopped early"))
    return fact_list(dict(shown))


def notes(files: RunFiles) -> str:
    """What was left out of the page, and what a resumed run changed, if anything."""
    return note_lines([
        *(f"{name}: {count} unreadable line{'s' * (count > 1)} left out." for name, count in files.unreadable.items()),
        *(f"From step {row.get('step')} on, {text}." for row in files.metrics if (text := _changes(row))),
    ])  # fmt: skip


def _changes(row: Row) -> str:
    """What a resumed run's configuration changed."""
    changes = row.get("changes")
    pairs = changes.items() if isinstance(changes, dict) else ()
    return ", ".join(f"{key} {' -> '.join(map(str, pair))}" for key, pair in pairs if isinstance(pair, list))


def say(key: str, value: Any) -> str:
    if key.endswith("_s") and is_number(value):
        return duration(value)
    return number(value) if is_number(value) and key != "seed" else str(value)


def duration(seconds: float) -> str:
    """For people: 0.4 s, 12 s, 3 min 5 s, 2 h 10 min."""
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60:,} h {minutes % 60} min"


def number(value: float) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.3f}" if value == 0 or 0.001 <= abs(value) < 1000 else f"{value:.3g}"


def is_number(value: Any) -> bool:
    return isinstance(value, int | float)


def is_scalar(value: Any) -> bool:
    return isinstance(value, int | float | str)
