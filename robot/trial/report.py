"""The page of a trial: one HTML file that needs no script, no network and no other file."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib import metadata
from itertools import combinations
from pathlib import Path
from string import Template
from typing import Any

import yaml

from robot.deploy import dashboard
from robot.trial.plan import State, TrialPlan, TrialVerdict, courses, tries
from robot.trial.stats import Course, fisher
from vlrl.io import write_atomic
from vlrl.types import wilson

# The course of a trial as drawings: the e-value with its threshold, and the confidence sequence. Inline SVG.

WIDTH, HEIGHT = 760, 230
LEFT, RIGHT, TOP, BOTTOM = 52, 90, 14, 32  # pixels around the curves
LN10 = math.log(10)


@dataclass(frozen=True)
class PlotFrame:
    """Rounds 0 to n, left to right; values from low to high, upwards."""

    n: int
    low: float
    high: float

    def x(self, number: float) -> float:
        return LEFT + number / max(1, self.n) * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        return TOP + (self.high - value) / (self.high - self.low) * (HEIGHT - TOP - BOTTOM)

    def steps(self, values: Sequence[float]) -> str:
        """A stepped path that begins at round 0."""
        x0, y0 = self.x(0), self.y(values[0])
        moves = (f"H{self.x(i):.1f}V{self.y(value):.1f}" for i, value in enumerate(values[1:], 1))
        return f"M{x0:.1f} {y0:.1f}" + "".join(moves)


def e_value(pair: Mapping[str, Any]) -> str:
    """The e-value after each round on a logarithmic axis, with the threshold of the test."""
    logs = [0.0, *(value / LN10 for value in pair["course"]["log_e"])]
    bar = math.log10(pair["threshold"])
    frame = PlotFrame(len(logs) - 1, math.floor(min(-1.0, *logs)), math.ceil(max(bar + 0.3, *logs)))
    step = max(1, round((frame.high - frame.low) / 5))
    ticks = range(round(frame.low), round(frame.high) + 1, step)
    curve = f'<g class="series"><path class="line" d="{frame.steps(logs)}"/></g>'
    text = f"e-value {pair['e']:.3g} after {pair['rounds']} rounds, threshold {pair['threshold']:.3g}"
    return _svg(frame, text, ticks, lambda tick: f"{10.0**tick:g}", [(bar, f"decides: {pair['threshold']:.3g}")], curve)


def sequence(pair: Mapping[str, Any], delta: float) -> str:
    """The confidence sequence of the difference, and the band that would not matter."""
    low, high = [-1.0, *pair["course"]["low"]], [1.0, *pair["course"]["high"]]
    frame = PlotFrame(len(low) - 1, -1.0, 1.0)
    back = f"V{frame.y(low[-1]):.1f}"
    back += "".join(f"V{frame.y(low[i]):.1f}H{frame.x(i):.1f}" for i in range(len(low) - 2, -1, -1))
    edges = "".join(f'<path class="line" d="{frame.steps(edge)}"/>' for edge in (high, low))
    curve = f'<g class="series"><path class="band" d="{frame.steps(high)}{back}Z"/>{edges}</g>'
    text = f"difference between {pair['low']:+.2f} and {pair['high']:+.2f} after {pair['rounds']} rounds"
    bars = [(delta, f"delta {delta:g}"), (-delta, "")]
    return _svg(frame, text, (-1, -0.5, 0, 0.5, 1), lambda tick: f"{tick:+g}", bars, curve)


def _svg(frame: PlotFrame, said: str, ticks: Sequence[float], word: Callable[[float], str],
         bars: Sequence[tuple[float, str]], curve: str) -> str:  # fmt: skip
    end = WIDTH - RIGHT
    lines = [_line(frame.y(tick), end, word(tick)) for tick in ticks]
    lines += [_bar(frame.y(value), end, text) for value, text in bars]
    rounds = sorted({round(frame.n * part / 4) for part in range(5)})
    lines += [f'<text x="{frame.x(i):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{i}</text>' for i in rounds]
    return (f'<svg class="course" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(said)}">'
            f'<g class="axes">{"".join(lines)}</g>{curve}</svg>')  # fmt: skip


def _line(y: float, end: float, word: str) -> str:
    return (f'<line x1="{LEFT}" x2="{end}" y1="{y:.1f}" y2="{y:.1f}"/>'
            f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{escape(word)}</text>')  # fmt: skip


def _bar(y: float, end: float, text: str) -> str:
    return (f'<line class="bar" x1="{LEFT}" x2="{end}" y1="{y:.1f}" y2="{y:.1f}"/>'
            f'<text x="{end + 6}" y="{y + 4:.1f}">{escape(text)}</text>')  # fmt: skip


# What `result.json` holds: everything that the page shows, unblinded.

WARN = 0.05  # p of Fisher's test on voids, times the number of pairs


def result_of(plan: TrialPlan, state: State) -> dict[str, Any]:
    """As JSON can hold it. Numbers of rounds and episodes begin at 1."""
    trial, by_policy = plan.trial, tries(plan, state)
    pairs = [_result_pair(*both, course) for both, course in courses(plan, state).items()]
    return {
        "plan": plan.checksum, "seed": plan.seed, "manual": plan.manual, "paired": plan.paired,
        "alpha": trial.alpha, "delta": trial.delta, "ended": state.ended, "undone": state.undone,
        "episodes": len(state.counted), "most": len(plan.order),
        "sentences": [sentence(pair, plan) for pair in pairs], "warnings": _warnings(by_policy),
        "policies": [_result_policy(plan, name, each) for name, each in by_policy.items()], "pairs": pairs,
        "rows": [_row(plan, each) for each in state.verdicts],
        "settings": plan.settings, "vlrl": metadata.version("vlrl"),
    }  # fmt: skip


def _result_policy(plan: TrialPlan, name: str, verdicts: Sequence[TrialVerdict]) -> dict[str, Any]:
    counted = [each for each in verdicts if each.verdict != "void"]
    won, n = sum(each.verdict == "success" for each in counted), len(counted)
    low, high = wilson(won, n)
    value = won / n if n else None
    return {
        "name": name, "slot": plan.slot(name), "n": n, "successes": won,
        "success": {"value": value, "low": low, "high": high, "n": n},
        "voids": len(verdicts) - n, "tries": len(verdicts),
        "by_robot": sum(each.by == "robot" for each in counted), "numbers": _means(counted),
    }  # fmt: skip


def _means(counted: Sequence[TrialVerdict]) -> dict[str, float]:
    """Of each number that all episodes have."""
    shared = set.intersection(*(set(each.numbers) for each in counted)) if counted else set()
    return {name: math.fsum(each.numbers[name] for each in counted) / len(counted) for name in sorted(shared)}


def _result_pair(a: str, b: str, course: Course) -> dict[str, Any]:
    n = course.rounds
    return {
        "a": a, "b": b, "decision": course.decision, "decided": course.decided, "rounds": n,
        "e": math.exp(min(course.log_e[-1], 700)) if n else 1.0, "threshold": math.exp(course.threshold),
        "low": float(course.low[-1]) if n else -1.0, "high": float(course.high[-1]) if n else 1.0,
        "course": {"log_e": course.log_e.tolist(), "low": course.low.tolist(), "high": course.high.tolist()},
    }  # fmt: skip


def _row(plan: TrialPlan, verdict: TrialVerdict) -> dict[str, Any]:
    assigned = plan.order[verdict.episode - 1]
    return {**vars(verdict), "policy": assigned.policy, "round": assigned.round + 1, "start": assigned.start}


def sentence(pair: Mapping[str, Any], plan: TrialPlan) -> str:
    """The decision on a pair, and what it does not say."""
    a, b = pair["a"], pair["b"]
    known = (f"the difference {a} - {b} lies between {pair['low']:+.2f} and {pair['high']:+.2f} (jointly "
             f"{1 - plan.trial.alpha:.0%} sure, whenever one looks; e-value {pair['e']:.3g}, threshold "
             f"{pair['threshold']:.3g}, after {pair['rounds']} rounds)")  # fmt: skip
    if pair["decision"] in ("a", "b"):
        better, worse = (a, b) if pair["decision"] == "a" else (b, a)
        return f"{better} succeeds more often than {worse}: {known}. This does not say by how much beyond that " \
               "interval, nor anything of other starts, scenes or robots."  # fmt: skip
    if pair["decision"] == "same":
        return f"{a} and {b} do not differ by more than {plan.trial.delta:g}: {known}. This does not say that they " \
               "are equal, nor anything of other starts, scenes or robots."  # fmt: skip
    return f"{a} or {b} is undecided: {known}. This does not say that they are alike."


def _warnings(by_policy: Mapping[str, Sequence[TrialVerdict]]) -> list[str]:
    """Where voids fell on one policy more than chance would have it."""
    both = list(combinations(by_policy, 2))
    lines = []
    for a, b in both:
        (void_a, n_a), (void_b, n_b) = (_voids(by_policy[name]) for name in (a, b))
        p = min(1.0, len(both) * fisher(void_a, n_a, void_b, n_b))
        if p < WARN:
            lines.append(f"voids fell on {a} in {void_a} of {n_a} tries and on {b} in {void_b} of {n_b} (Fisher's "
                         f"exact test, p = {p:.2g}): if a policy causes them, the comparison is not fair")  # fmt: skip
    return lines


def _voids(verdicts: Sequence[TrialVerdict]) -> tuple[int, int]:
    return sum(each.verdict == "void" for each in verdicts), len(verdicts)


# The frame of a trial's page and how it looks.

BODY = Template("""<body>
$bar
<main>
<section class="name">
<h1>$title_html</h1>
$sentences
$warnings
<dl class="facts">$facts</dl>
</section>
<section><h2>Policies</h2>$policies
<p class="muted">Intervals: Wilson, 95 %, for a number of episodes fixed beforehand. A trial that may stop early is
judged by the confidence sequences below.</p></section>
$pairs
<section><h2>Voids and notes</h2>$notes</section>
<section><details><summary>All verdicts</summary>$rows</details></section>
<section id="config"><details><summary>Settings</summary><pre tabindex="0">$settings</pre></details></section>
</main>
</body>
</html>
""")
STYLE = """
.says { margin: 8px 0 0; font-size: 16px; max-width: 72ch; overflow-wrap: anywhere; }
.warn { margin: 8px 0 0; color: var(--warn); max-width: 80ch; }
.course { display: block; width: 100%; max-width: 872px; height: auto; margin-bottom: 12px; background: var(--card);
  border: 1px solid var(--rule); border-radius: 10px; }
"""


def framed(title: str, **parts: str) -> str:
    """The page. title: as text; parts: HTML of the body's places, escaped."""
    return dashboard.page_head(title, "img-src data:", STYLE) + BODY.substitute(bar=dashboard.bar("trial"), **parts)


POLICIES = ("policy", "slot", "success", "95 %", "episodes", "judged by the robot", "voids", "tries")
ROWS = ("episode", "policy", "start", "verdict", "by", "note")


def write(folder: Path, plan: TrialPlan, state: State) -> dict[str, Any]:
    """`result.json` and `report.html`, from the journal alone; returns the result."""
    result = result_of(plan, state)
    write_atomic(folder / "result.json", json.dumps(result, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
    write_atomic(folder / "report.html", page(result))
    return result


def page(result: Mapping[str, Any]) -> str:
    """The whole page; all values escaped."""
    means = list(dict.fromkeys(name for each in result["policies"] for name in each["numbers"]))
    rows = [[str(row[key] if row[key] is not None else "") for key in ROWS] for row in result["rows"]]
    title = " or ".join(each["name"] for each in result["policies"])
    return framed(
        title,
        title_html=escape(title),
        sentences=_lines("says", result["sentences"]),
        warnings=_lines("warn", result["warnings"]),
        facts="".join(f"<div><dt>{escape(k)}</dt><dd>{escape(v)}</dd></div>" for k, v in facts(result).items()),
        policies=_table((*POLICIES, *means), [_policy(each, means) for each in result["policies"]]),
        pairs="".join(_pair(pair, result) for pair in result["pairs"]),
        notes=_notes(result["rows"]),
        rows=_table(ROWS, rows),
        settings=escape(yaml.safe_dump(result["settings"], sort_keys=False, allow_unicode=True)),
    )


def facts(result: Mapping[str, Any]) -> dict[str, str]:
    blind = "to the policies' names; slots were known" if result["manual"] else "to the policies and the order"
    return {
        "Episodes": f"{result['episodes']} of at most {result['most']}",
        "Ended": {"operator": "by the operator", "decided": "decided"}.get(result["ended"], "at the last episode"),
        "Operator was blind": blind,
        "Starts": "shared by each round (pairs)" if result["paired"] else "not controlled (two streams)",
        "Verdicts taken back": str(result["undone"]),
        "Checksum of the plan": result["plan"],
        "vlrl": result["vlrl"],
    }


def _policy(policy: Mapping[str, Any], means: Sequence[str]) -> list[str]:
    share = policy["success"]
    value_text = "-" if share["value"] is None else f"{share['value']:.3f}"
    numbers = [f"{policy['numbers'][name]:.4g}" if name in policy["numbers"] else "-" for name in means]
    counts = [str(policy[key]) for key in ("n", "by_robot", "voids", "tries")]
    return [policy["name"], policy["slot"], value_text, f"[{share['low']:.3f}, {share['high']:.3f}]", *counts, *numbers]


def _pair(pair: Mapping[str, Any], result: Mapping[str, Any]) -> str:
    if not pair["rounds"]:
        return ""
    name = f"{escape(pair['a'])} - {escape(pair['b'])}"
    return (f"<section><h2>{name}</h2><p>Evidence against 'no difference' after each round (e-value)</p>"
            f"{e_value(pair)}<p>The difference of success: confidence sequence</p>"
            f"{sequence(pair, result['delta'])}</section>")  # fmt: skip


def _notes(rows: Sequence[Mapping[str, Any]]) -> str:
    rows_with_notes = [row for row in rows if row["note"]]
    cells = [[str(row["episode"]), row["policy"], row["verdict"], row["note"]] for row in rows_with_notes]
    return _table(("episode", "policy", "verdict", "written blind"), cells) if rows_with_notes else "<p>None.</p>"


def _lines(kind: str, lines: Sequence[str]) -> str:
    return "".join(f'<p class="{kind}">{escape(line)}</p>' for line in lines)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    def line(cells: Sequence[str], kind: str) -> str:
        return "<tr>" + "".join(f"<{kind}>{escape(cell)}</{kind}>" for cell in cells) + "</tr>"

    body = "".join(line(row, "td") for row in rows)
    inside = f"<thead>{line(head, 'th')}</thead><tbody>{body}</tbody>"
    return f'<div class="table" tabindex="0"><table>{inside}</table></div>'
