"""The page of a comparison: one HTML file that needs no script, no network and no other file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from string import Template
from typing import Any

import yaml

from vlrl import report
from vlrl.compare import text
from vlrl.compare.curves import AXES, LABELS
from vlrl.compare.drawing import Line, chart, legend
from vlrl.compare.table import rows
from vlrl.report.header import duration, interval
from vlrl.report.table import table

PAGE = Template("""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<title>$title</title>
<link rel="icon" href="data:,">
<style>
$style
</style>
</head>
<body>
<header class="topbar"><strong class="brand">vlrl</strong><span class="muted">compare</span></header>
<main>
<section class="top" aria-label="What was compared">
  <div class="name"><h1>$title</h1><dl class="facts">$facts</dl>$notes</div>
  <section class="gain" aria-label="Final accuracy"><h2>Final accuracy, mean over seeds, 95 %</h2>$finals</section>
</section>
<section><h2>Recipes</h2><div class="table">$measured</div></section>
<section><h2>Which differences are real</h2><p class="muted">$test</p><div class="table">$decisions</div></section>
<section><h2>Learning</h2>$legend<div class="charts">$learning</div></section>
<section><h2>Entropy and pass@k</h2>$legend<div class="charts">$entropy</div></section>
$reach
<section><h2>What is equal</h2><div class="table">$equal</div></section>
<section><h2>Every seed</h2><div class="table">$seeds</div></section>
<section id="config"><details><summary>Configuration</summary><pre tabindex="0">$config</pre></details></section>
</main>
</body>
</html>
""")
STYLE = """
h2 { margin-bottom: 8px; }
.interval { grid-template-columns: 110px minmax(0, 1fr); }
@media (min-width: 561px) { .interval { grid-template-columns: 170px minmax(60px, 1fr) 190px; } }
.table { overflow-x: auto; }
table, figure.chart { background: var(--card); border: 1px solid var(--rule); }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: 6px 12px; text-align: left; white-space: nowrap; border-bottom: 1px solid var(--rule); }
th { color: var(--muted); font-size: 12px; font-weight: 600; }
td:first-child { font-weight: 600; }
.charts { display: grid; gap: 12px; grid-template-columns: repeat(auto-fit, minmax(min(100%, 460px), 1fr)); }
figure.chart { border-radius: 10px; padding: 10px 12px; }
figure.chart svg { width: 100%; height: auto; }
.axes line { stroke: var(--rule); } .axes text { fill: var(--muted); font-size: 11px; }
.series .line { fill: none; stroke: var(--line); stroke-width: 2; }
.series .band { fill: var(--line); opacity: .13; stroke: none; }
.line[data-dashed] { stroke-dasharray: 6 4; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 18px; list-style: none; margin-bottom: 8px; }
.legend i { display: inline-block; width: 22px; margin-right: 7px; border-top: 3px solid var(--line); vertical-align: middle; }
.legend i[data-dashed] { border-top-style: dashed; }
.gain .interval .track i { color: var(--accent); }
"""  # noqa: E501


def page(result: Mapping[str, Any]) -> str:
    """The whole page; all values escaped."""
    names = [arm["name"] for arm in result["arms"]]
    return PAGE.substitute(
        title=escape(f"{result['task']}: {len(names)} recipes"),
        style=(Path(report.__file__).parent / "page.css").read_text(encoding="utf-8") + STYLE,
        facts="".join(f"<div><dt>{escape(k)}</dt><dd>{escape(v)}</dd></div>" for k, v in facts(result).items()),
        notes="".join(f'<p class="note">{escape(note)}</p>' for note in result["notes"]),
        finals=finals(result),
        measured=table(*text.measured(result)),
        test=escape(told(result["test"])),
        decisions=table(*text.decisions(result)),
        legend=legend(names),
        learning="".join(chart(lines(result, axis), LABELS[axis], "held-out accuracy") for axis in AXES),
        entropy=chart(entropies(result), "rollouts", "entropy, nats a token") + passes(result),
        reach="".join(map(reached, result["reach"])),
        equal=table(*rows(result["equal"])),
        seeds=table(*text.seeds(result)),
        config=escape(yaml.safe_dump(result["config"], sort_keys=False)),
    )


def facts(result: Mapping[str, Any]) -> dict[str, str]:
    budget, versions = result["config"]["budget"], result["versions"]
    return {
        "Rollouts a run": f"{budget['rollouts']:,}",
        "Rollouts an update": f"{budget['rollouts_per_update']:,}",
        "Runs": str(sum(len(arm["seeds"]) for arm in result["arms"])),
        "CPU time of all": duration(result["cpu_s"]),
        "vlrl": f"{versions['vlrl']} ({versions['commit']})",
    }


def finals(result: Mapping[str, Any]) -> str:
    """Each arm's mean final accuracy on one axis."""
    known = [v for a in result["arms"] for v in (a["final"]["value"], a["final"]["low"], a["final"]["high"]) if v]
    low, high = max(0.0, min(known) - 0.03), min(1.0, max(known) + 0.03)
    items = [(arm["name"], {k: v if v is None else min(max(v, low), high) for k, v in arm["final"].items()})
             for arm in result["arms"]]  # fmt: skip
    return "".join(interval(escape(name), item, low, high) for name, item in items)


def told(test: Mapping[str, Any]) -> str:
    more = "more seeds could still decide the rest." if test["undecided"] else "no more seeds are planned."
    return (
        f"{test['method']}: after {test['looks']} of {test['most_looks']} looks of {test['each']} seeds each, at a "
        f"family-wise level of {test['level']:g}, on final accuracy; {more}"
    )


def lines(result: Mapping[str, Any], axis: str) -> list[Line]:
    return [_line(name, course["x"][axis], course["accuracy"]) for name, course in result["courses"].items()]


def entropies(result: Mapping[str, Any]) -> list[Line]:
    """At the end of each stretch between evaluations."""
    return [_line(name, course["x"]["rollouts"][1:], course["entropy"]) for name, course in result["courses"].items()]


def passes(result: Mapping[str, Any]) -> str:
    """pass@k over k, each arm."""
    ks = result["config"]["pass_at"]["k"]
    drawn = [_line(arm["name"], ks, [arm["pass_at"][str(k)] for k in ks]) for arm in result["arms"]]
    return chart(drawn, "k, tries", "pass@k")


def _line(name: str, x: Sequence[float], points: Sequence[Mapping[str, float]]) -> Line:
    return Line(name, x, *([point[key] for point in points] for key in ("value", "low", "high")))


def reached(target: Mapping[str, Any]) -> str:
    head = f"To reach {escape(target['label'])}"
    return f'<section><h2>{head}</h2><div class="table">{table(*text.reach(target))}</div></section>'
