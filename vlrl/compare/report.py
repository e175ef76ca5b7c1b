"""The page of a comparison: one HTML file that needs no script, no network and no other file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from string import Template
from typing import Any

import yaml

from vlrl.compare import text
from vlrl.compare.curves import AXES, LABELS
from vlrl.compare.drawing import Line, chart, legend
from vlrl.compare.table import rows
from vlrl.report.frame import config_section, fact_list, frame, note_lines
from vlrl.report.header import duration, interval
from vlrl.report.table import table

MAIN = Template("""<section class="top" aria-label="What was compared">
  <div class="name"><h1>$title</h1>$facts$notes</div>
  <section class="gain named" aria-label="Final accuracy"><h2>Final accuracy, mean over seeds, 95 %</h2>
  $finals</section>
</section>
<section id="recipes"><h2>Recipes</h2><div class="table" tabindex="0">$measured</div></section>
<section id="test"><h2>Which differences are real</h2><p class="muted">$test</p>
<div class="table" tabindex="0">$decisions</div></section>
<section id="learning"><h2>Learning</h2>$names<div class="charts">$learning</div></section>
<section><h2>Entropy and pass@k</h2>$names<div class="charts">$entropy</div></section>
$reach
<section id="equal"><h2>What is equal</h2><div class="table" tabindex="0">$equal</div></section>
<section id="seeds"><h2>Every seed</h2><div class="table" tabindex="0">$seeds</div></section>
$config""")
LINKS = {"recipes": "Recipes", "test": "Differences", "learning": "Learning", "equal": "Equal", "seeds": "Seeds"}
STYLE = "@media (min-width: 1000px) { .charts { grid-template-columns: repeat(auto-fit, minmax(460px, 1fr)); } }"


def page(result: Mapping[str, Any]) -> str:
    """The whole page; all values escaped."""
    names = [arm["name"] for arm in result["arms"]]
    title = f"{result['task']}: {len(names)} recipes"
    main = MAIN.substitute(
        title=escape(title),
        facts=fact_list(facts(result)),
        notes=note_lines(result["notes"]),
        finals=finals(result),
        measured=table(*text.measured(result)),
        test=escape(told(result["test"])),
        decisions=table(*text.decisions(result)),
        names=legend(names),
        learning="".join(chart(lines(result, axis), LABELS[axis], "held-out accuracy") for axis in AXES),
        entropy=chart(entropies(result), "rollouts", "entropy, nats a token") + passes(result),
        reach="".join(map(reached, result["reach"])),
        equal=table(*rows(result["equal"])),
        seeds=table(*text.seeds(result)),
        config=config_section(yaml.safe_dump(result["config"], sort_keys=False)),
    )
    return frame(title, "compare", main, {**LINKS, "config": "Config"}, style=STYLE)


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
    return f'<section><h2>{head}</h2><div class="table" tabindex="0">{table(*text.reach(target))}</div></section>'
