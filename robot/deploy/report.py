"""The result of a run: result.json, and report.html, one file that needs no script and no network."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from string import Template
from typing import Any

import numpy as np
import yaml

from robot.deploy import dashboard
from robot.deploy.session import TickStatistics
from vlrl.types import UserError

# Drawings of a run's series, as SVG without anything from elsewhere.

WIDTH, HEIGHT = 520, 200
LEFT, RIGHT, TOP, BOTTOM = 66, 14, 14, 40  # pixels around the plot
BINS = 40
MOST = 99.5  # percentile where a histogram ends; what lies beyond is in its last bar


def histogram(name: str, milliseconds: Sequence[float] | np.ndarray) -> str:
    """Counts of a series; '' without any."""
    values = np.asarray(milliseconds, np.float64)
    if not len(values):
        return ""
    low, high = min(0.0, float(np.percentile(values, 100 - MOST))), max(float(np.percentile(values, MOST)), 1e-3)
    counts, _ = np.histogram(values.clip(low, high), BINS, (low, high))
    bars = "".join(_bar(count, i, counts.max()) for i, count in enumerate(counts))
    half, most = np.percentile(values, (50, 95))
    caption = f"{name}: {len(values)} values, median {half:.1f} ms, 95 % below {most:.1f} ms"
    return _drawing(caption, _series(bars) + _axes(low, high, "ms", counts.max()))


def curve(name: str, values: Sequence[float] | np.ndarray, unit: str) -> str:
    """A series in its order; '' with fewer than two. Of many values, each point is the largest of its stretch."""
    series = np.asarray(values, np.float64)
    if len(series) < 2:
        return ""
    parts = np.array_split(series, min(len(series), WIDTH // 2))
    tops = np.array([part.max() for part in parts])
    high = max(float(tops.max()), 1e-9)
    xs, ys = np.linspace(LEFT, WIDTH - RIGHT, len(tops)), TOP + (1 - tops.clip(0) / high) * (HEIGHT - TOP - BOTTOM)
    points = "L".join(f"{x:.1f} {y:.1f}" for x, y in zip(xs, ys, strict=True))
    caption = f"{name} over the run, at most {high:.1f} {unit}"
    return _drawing(caption, _series(f'<path class="line" d="M{points}"/>') + _axes(0, len(series), "", high))


def _drawing(said: str, inside: str) -> str:
    label = escape(said)
    return (
        f'<figure class="chart"><svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">{inside}</svg>'
        f"<figcaption>{label}</figcaption></figure>"
    )


def _series(drawn: str) -> str:
    return f'<g class="series">{drawn}</g>'


def _bar(count: int, index: int, most: int) -> str:
    width = (WIDTH - LEFT - RIGHT) / BINS
    height = (HEIGHT - TOP - BOTTOM) * count / most
    x, y = LEFT + index * width, HEIGHT - BOTTOM - height
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width - 1:.1f}" height="{height:.1f}"/>' if count else ""


def _axes(low: float, high: float, unit: str, most: float) -> str:
    base = HEIGHT - BOTTOM
    marks = "".join(
        f'<text x="{LEFT + (value - low) / (high - low) * (WIDTH - LEFT - RIGHT):.1f}" y="{base + 16}" '
        f'text-anchor="middle">{value:.4g}</text>'
        for value in _round_numbers(low, high)
    )
    return (
        f'<g class="axes"><line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{base}" y2="{base}"/>{marks}'
        f'<text x="{LEFT - 6}" y="{TOP + 10}" text-anchor="end">{most:.4g}</text>'
        f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 6}" text-anchor="end">{unit}</text></g>'
    )


def _round_numbers(low: float, high: float) -> np.ndarray:
    """A handful from `low` to `high`, that people read easily."""
    rough = (high - low) / 4
    power = 10.0 ** np.floor(np.log10(rough))
    step = power * next(each for each in (1, 2, 5, 10) if each * power >= rough * 0.8)
    return np.arange(np.ceil(low / step - 1e-9), np.floor(high / step + 1e-9) + 1) * step + 0.0


NAMES = {
    "round_trip": "Round trip",
    "queue": "Waiting at the server",
    "inference": "Inference",
    "age": "Age of an action when it is sent",
}
BODY = Template("""<body>$bar<main>
<section class="top"><div class="name"><h1>$title</h1><p class="muted">$facts</p><p class="end">$end</p></div>
<section class="gain" aria-label="Success"><h2>Success</h2>$success</section></section>
<section><h2>Latency</h2><div class="table figures" tabindex="0">$latency</div></section>
<section class="charts">$plots</section>
<section><h2>Who drove</h2><div class="table figures" tabindex="0">$sources</div></section>
<section><h2>Events</h2><div class="table words" tabindex="0">$events</div></section>
<section><h2>Episodes</h2><div class="table words" tabindex="0">$episodes</div></section>
<section id="config"><details><summary>Configuration</summary><pre tabindex="0">$config</pre></details></section>
</main></body></html>
""")
STYLE = """
.end { font-weight: 600; overflow-wrap: anywhere; } figcaption { color: var(--muted); font-size: 13px; }
"""


def write(out: Path, result: Mapping[str, Any], ledger: TickStatistics) -> None:
    """Both files; they appear when they are whole.

    Raises:
        UserError: the folder cannot be written.
    """
    series = {name: 1000 * np.asarray(values, np.float64) for name, values in ledger.series.items()}
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name, text in (
            ("result.json", json.dumps(result, indent=1, allow_nan=False) + "\n"),
            ("report.html", rendered(result, series)),
        ):
            part = out / f".{name}.part"
            part.write_text(text, encoding="utf-8")
            part.replace(out / name)
    except OSError as error:
        raise UserError(f"--out {out}: {error.strerror}") from None


def rendered(result: Mapping[str, Any], series: Mapping[str, np.ndarray]) -> str:
    """The page; all values escaped. series: float64 [n], in milliseconds."""
    facts, end = result["facts"], result["exit"]
    over = f"ended with code {end['code']}: {end['cause']}" if end["code"] else "ended as it should"
    figures = [histogram(NAMES[name], series[name]) for name in NAMES]
    figures += [histogram("Jitter of the ticks", series["jitter"])]
    figures += [curve("Round trip", series["round_trip"], "ms"), curve("Jitter", abs(series["jitter"]), "ms")]
    title = f"{facts['policy']} on {facts['robot']}"
    return dashboard.page_head(title, "img-src data:", STYLE) + BODY.substitute(
        title=escape(title),
        bar=dashboard.bar("deploy"),
        facts=escape(f"{facts['mode']}, {result['ticks']['hz']:g} ticks a second"),
        end=escape(over),
        success=_success(result["success"]),
        episodes=_episodes(result["episodes"]),
        latency=_latency(result),
        plots="".join(figures),
        sources=_sources(result),
        events=_events(result["events"]),
        config=escape(yaml.safe_dump(result["config"], sort_keys=False)),
    )


def _table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    def line(cells: Sequence[Any], kind: str) -> str:
        return "<tr>" + "".join(f"<{kind}>{escape(str(cell))}</{kind}>" for cell in cells) + "</tr>"

    body = "".join(line(row, "td") for row in rows) or f'<tr><td colspan="{len(head)}">none</td></tr>'
    return f"<table><thead>{line(head, 'th')}</thead><tbody>{body}</tbody></table>"


def _success(found: Mapping[str, Any]) -> str:
    if not found["n"]:
        return "<p>no episode was judged</p>"
    low, high, value = (100 * found[name] for name in ("low", "high", "value"))
    text = f"{value:.1f} % of {found['n']} episodes, 95 % interval {low:.1f} to {high:.1f} %"
    return (
        f'<p>{text}</p><div class="interval latest"><span>success</span><span class="track" role="img" '
        f'aria-label="{text}"><i class="bar" style="left: {low:.2f}%; width: {high - low:.2f}%"></i>'
        f'<i class="dot" style="left: {value:.2f}%"></i></span><span class="said">{value:.1f} %</span></div>'
    )


def _episodes(rows: Sequence[Mapping[str, Any]]) -> str:
    head = ("Episode", "Scene", "Outcome", "Seconds", "Ticks", "Why")
    names = ("number", "seed", "outcome", "seconds", "ticks", "reason")
    return _table(head, [[row[name] for name in names] for row in rows])


def _latency(result: Mapping[str, Any]) -> str:
    latencies = {NAMES[name]: each for name, each in result["latency_ms"].items()}
    latencies["Ticks off their time"] = result["jitter_ms"]
    columns = ("p50", "p95", "p99", "max")
    rows = [
        [name, each["n"], *(f"{each[c]:.1f}" for c in columns)] if each["n"] else [name, 0, *"----"]
        for name, each in latencies.items()
    ]
    return _table(("ms", "Values", "Median", "95 %", "99 %", "Most"), rows)


def _sources(result: Mapping[str, Any]) -> str:
    ticks, takeovers = result["ticks"], result["interventions"]
    rows = [[name, ticks.get(name, 0)] for name in ("policy", "person", "script", "hold", "none")]
    rows += [
        ["without a fresh action", f"{ticks['not_fresh']:.1%}"],
        ["takeovers by a person", takeovers["takeovers"]],
    ]
    rows += [[name.replace("_", " "), result[name]] for name in ("recoveries", "reconnects", "lost_records")]
    return _table(("Ticks", "Count"), rows)


def _events(rows: Sequence[Mapping[str, Any]]) -> str:
    names = ("stage", "reaction", "count", "first_cause")
    return _table(("Stage", "Reaction", "Count", "First cause"), [[row[name] for name in names] for row in rows])
