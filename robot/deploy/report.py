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

from robot import webpage
from robot.deploy import plots
from robot.deploy.ledger import Ledger
from vlrl.types import UserError

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


def write(out: Path, result: Mapping[str, Any], ledger: Ledger) -> None:
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
    drawn = [plots.histogram(NAMES[name], series[name]) for name in NAMES]
    drawn += [plots.histogram("Jitter of the ticks", series["jitter"])]
    drawn += [plots.curve("Round trip", series["round_trip"], "ms"), plots.curve("Jitter", abs(series["jitter"]), "ms")]
    title = f"{facts['policy']} on {facts['robot']}"
    return webpage.head(title, "img-src data:", STYLE) + BODY.substitute(
        title=escape(title),
        bar=webpage.bar("deploy"),
        facts=escape(f"{facts['mode']}, {result['ticks']['hz']:g} ticks a second"),
        end=escape(over),
        success=_success(result["success"]),
        episodes=_episodes(result["episodes"]),
        latency=_latency(result),
        plots="".join(drawn),
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
    said = f"{value:.1f} % of {found['n']} episodes, 95 % interval {low:.1f} to {high:.1f} %"
    return (
        f'<p>{said}</p><div class="interval latest"><span>success</span><span class="track" role="img" '
        f'aria-label="{said}"><i class="bar" style="left: {low:.2f}%; width: {high - low:.2f}%"></i>'
        f'<i class="dot" style="left: {value:.2f}%"></i></span><span class="said">{value:.1f} %</span></div>'
    )


def _episodes(rows: Sequence[Mapping[str, Any]]) -> str:
    head = ("Episode", "Scene", "Outcome", "Seconds", "Ticks", "Why")
    names = ("number", "seed", "outcome", "seconds", "ticks", "reason")
    return _table(head, [[row[name] for name in names] for row in rows])


def _latency(result: Mapping[str, Any]) -> str:
    found = {NAMES[name]: each for name, each in result["latency_ms"].items()}
    found["Ticks off their time"] = result["jitter_ms"]
    columns = ("p50", "p95", "p99", "max")
    rows = [
        [name, each["n"], *(f"{each[c]:.1f}" for c in columns)] if each["n"] else [name, 0, *"----"]
        for name, each in found.items()
    ]
    return _table(("ms", "Values", "Median", "95 %", "99 %", "Most"), rows)


def _sources(result: Mapping[str, Any]) -> str:
    ticks, hands = result["ticks"], result["interventions"]
    rows = [[name, ticks.get(name, 0)] for name in ("policy", "person", "script", "hold", "none")]
    rows += [["without a fresh action", f"{ticks['not_fresh']:.1%}"], ["takeovers by a person", hands["takeovers"]]]
    rows += [[name.replace("_", " "), result[name]] for name in ("recoveries", "reconnects", "lost_records")]
    return _table(("Ticks", "Count"), rows)


def _events(rows: Sequence[Mapping[str, Any]]) -> str:
    names = ("stage", "reaction", "count", "first_cause")
    return _table(("Stage", "Reaction", "Count", "First cause"), [[row[name] for name in names] for row in rows])
