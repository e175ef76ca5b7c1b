"""Report of a comparison: curves, tables, plots."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import pairwise, takewhile
from pathlib import Path
from string import Template
from textwrap import fill
from typing import Any

import numpy as np
import yaml

from vlrl.config import config_file
from vlrl.decoders import load_json, parse_log_row
from vlrl.evaluation.compare import PASS_AT, Comparison, RecipeArm, SeedRun, pass_at, spent, table_rows
from vlrl.evaluation.stats import AdaStop, detectable, welch
from vlrl.metrics import commit_of
from vlrl.report.html import config_section, duration, fact_list, frame, note_lines
from vlrl.report.html import interval as html_interval
from vlrl.report.run_reader import table
from vlrl.types import UserError, __version__

# A finished run as curves: held-out accuracy and entropy against steps, rollouts, tokens and CPU seconds.

AXES = ("steps", "rollouts", "tokens", "cpu_s")
COSTS = (*AXES, "forwarded")  # tokens through the language model, prompts and updates included
OF_TASK = re.compile(r"eval/task/(\w+)/accuracy")
LABELS = {"steps": "steps", "rollouts": "rollouts", "tokens": "tokens written", "cpu_s": "CPU seconds"}


@dataclass(frozen=True)
class Curves:
    """One run. x: axis -> where the evaluations stand [n]; accuracy [n], the first before any training.

    entropy: [n - 1], nats a token while training, the mean of each stretch between evaluations.
    """

    seed: int
    x: dict[str, np.ndarray]
    accuracy: np.ndarray
    entropy: np.ndarray
    summary: dict[str, Any]
    answers: dict[str, Any]  # of `vlrl.evaluation.compare`
    commit: str = "unknown"  # of the code that trained it
    tasks: Mapping[str, float] = field(default_factory=dict)  # of a mixture: the last accuracy of each


def curves_read(run: SeedRun) -> Curves:
    """The curves of a finished run.

    What evaluations take is left out of the CPU seconds: they are the comparison's cost and not the method's.
    """
    metrics, timings = (curves_rows(run.folder / name) for name in ("metrics.jsonl", "timings.jsonl"))
    summary = load_json(run.folder / "summary.json", finite=False)
    trained = [row for row in metrics if "entropy" in row]
    looked = {row["step"]: row["eval/accuracy"] for row in metrics if "eval/accuracy" in row}
    x = _curves_axes(run, trained, timings)
    at = sorted(looked)
    entropy = np.array([row["entropy"] for row in trained])
    return Curves(
        run.seed, {axis: values[at] for axis, values in x.items()}, np.array([looked[step] for step in at]),
        np.array([entropy[a:b].mean() for a, b in pairwise(at)]), summary,
        load_json(run.folder / PASS_AT, finite=False), commit_of(run.folder), _of_tasks(metrics),
    )  # fmt: skip


def _of_tasks(metrics: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    last = next((row for row in reversed(metrics) if "eval/accuracy" in row), {})
    return {match[1]: value for key, value in last.items() if (match := OF_TASK.fullmatch(key))}


def _curves_axes(run: SeedRun, trained: list[dict], timings: list[dict]) -> dict[str, np.ndarray]:
    """Axis -> its value after each step [steps + 1]. Before the first step stand the first responses."""
    train, first = run.arm.config.train, run.arm.first
    a_step = train.prompts_per_step * train.group_size
    played = np.array([row.get("played", a_step) for row in trained])
    length = np.array([row["length"] for row in trained])
    start = sum(row["cpu"] for row in timings if row["step"] == 0)
    return {
        "steps": np.arange(len(trained) + 1.0),
        "rollouts": _summed(first, played),
        "tokens": _summed(first * length[0], played * length),
        "cpu_s": _summed(start, np.array([row["cpu"] for row in timings if row["step"]])),
        "forwarded": _summed(0.0, np.array([row.get("work/tokens", 0.0) for row in timings if row["step"]])),
    }


def _summed(start: float, parts: np.ndarray) -> np.ndarray:
    """Running totals, [0, start + first part, ...]: the untrained policy costs nothing."""
    return np.concatenate([[0.0], start + parts.cumsum()])


def curves_rows(path: Path) -> list[dict[str, Any]]:
    return [parse_log_row(line) for line in path.read_text(encoding="utf-8").splitlines()]


# Curves with bands as inline SVG.

WIDTH, HEIGHT = 620, 300
LEFT, RIGHT, TOP, BOTTOM = 60, 14, 12, 40  # pixels around the curves
COLORS = 8  # of look.css, --c0 to --c7; beyond them lines are dashed


@dataclass(frozen=True)
class Line:
    """A curve; where `low` and `high` are None there is no band."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float | None]
    high: Sequence[float | None]


@dataclass(frozen=True)
class ChartFrame:
    x0: float
    x1: float
    y0: float
    y1: float

    def point(self, x: float, y: float) -> str:
        across = (x - self.x0) / ((self.x1 - self.x0) or 1)
        up = (y - self.y0) / ((self.y1 - self.y0) or 1)
        return f"{LEFT + across * (WIDTH - LEFT - RIGHT):.1f} {TOP + (1 - up) * (HEIGHT - TOP - BOTTOM):.1f}"


def chart(lines: Sequence[Line], x_label: str, y_label: str) -> str:
    """All curves in one frame, over what their bands and points cover."""
    ys = [v for line in lines for v in (*line.y, *line.low, *line.high) if v is not None]
    xs = [x for line in lines for x in line.x]
    low, high = nice(min(ys), max(ys))
    frame = ChartFrame(min(xs), max(xs), low, high)
    paths = "".join(_drawing_line(i, line, frame) for i, line in enumerate(lines))
    summary = "; ".join(f"{line.name} {line.y[-1]:.3g}" for line in lines)
    return (
        f'<figure class="chart"><figcaption>{escape(y_label)} against {escape(x_label)}</figcaption>'
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(y_label)} at the end: {escape(summary)}">'
        f'<g class="axes">{_drawing_axes(frame, x_label)}</g>{paths}</svg></figure>'
    )


def legend(names: Sequence[str]) -> str:
    items = (f'<li style="--line: var(--c{i % COLORS})"><i{_dash(i)}></i>{escape(n)}</li>' for i, n in enumerate(names))
    return f'<ul class="names">{"".join(items)}</ul>'


def nice(low: float, high: float) -> tuple[float, float]:
    """A little room; never below 0 for what is not."""
    room = 0.05 * (high - low) or 0.05
    return (max(0.0, low - room) if low >= 0 else low - room), high + room


def _drawing_line(index: int, line: Line, frame: ChartFrame) -> str:
    path = "M" + "L".join(frame.point(x, y) for x, y in zip(line.x, line.y, strict=True))
    band = ""
    known = [(x, a, b) for x, a, b in zip(line.x, line.low, line.high, strict=True) if a is not None and b is not None]
    if known:
        up = [frame.point(x, b) for x, _, b in known]
        down = [frame.point(x, a) for x, a, _ in reversed(known)]
        band = f'<path class="band" d="M{"L".join(up + down)}Z"/>'
    style = f"--line: var(--c{index % COLORS})"
    title = f"<title>{escape(line.name)}</title>"
    return f'<g class="series" style="{style}">{title}{band}<path class="line"{_dash(index)} d="{path}"/></g>'


def _dash(index: int) -> str:
    return ' data-dashed=""' if index >= COLORS else ""


def _drawing_axes(frame: ChartFrame, x_label: str) -> str:
    parts = []
    for step in range(5):
        x = frame.x0 + (frame.x1 - frame.x0) * step / 4
        y = frame.y0 + (frame.y1 - frame.y0) * step / 4
        px, py = frame.point(x, frame.y0).split()[0], frame.point(frame.x0, y).split()[1]
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{py}" y2="{py}"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{float(py) + 4:.1f}" text-anchor="end">{y:.2f}</text>')
        parts.append(f'<text x="{px}" y="{HEIGHT - BOTTOM + 17}" text-anchor="middle">{short(x)}</text>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    return "".join(parts) + f'<text x="{middle}" y="{HEIGHT - 5}" text-anchor="middle">{escape(x_label)}</text>'


def short(value: float) -> str:
    """1,200 as 1.2k, 3 as 3."""
    if value >= 1e6:
        return f"{value / 1e6:.3g}M"
    return f"{value / 1e3:.3g}k" if value >= 1e4 else f"{value:.4g}"


# A result as tables of text, for the terminal and for the page.

VERDICTS = {"larger": "a is better", "smaller": "b is better", "open": "no difference shown"}


def measured(result: Mapping[str, Any]) -> list[list[str]]:
    """Head and one line for each arm: means over seeds with 95 % intervals."""
    ks = result["config"]["pass_at"]["k"]
    head = ["recipe", "seeds", "final accuracy", "95 %", *(f"pass@{k}" for k in ks), "mean along training", "entropy",
            "tokens written", "through the model", "rollouts", "updates", "CPU-s to train", "CPU-s a run"]  # fmt: skip
    start = result["start"]
    before = result["arms"][0]["before"]["value"]
    first = ["before training", "", f"{before:.3f}", "", *(f"{start[str(k)]['value']:.3f}" for k in ks), "",
             f"{start['entropy']:.3f}", *[""] * 6]  # fmt: skip
    return [head, first, *(_arm(arm, ks) for arm in result["arms"])]


def _arm(arm: Mapping[str, Any], ks: Sequence[int]) -> list[str]:
    entropy = arm["entropy"]
    return [
        arm["name"], str(len(arm["seeds"])), f"{arm['final']['value']:.3f}", interval(arm["final"]),
        *(f"{arm['pass_at'][str(k)]['value']:.3f}" for k in ks), f"{arm['area']['value']:.3f}",
        f"{entropy['first']['value']:.3f} -> {entropy['last']['value']:.3f}",
        *(
            format_count(arm[key]["value"])
            for key in ("tokens", "forwarded", "rollouts", "updates", "cpu_s", "whole_cpu_s")
        ),
    ]  # fmt: skip


def seeds(result: Mapping[str, Any]) -> list[list[str]]:
    """Each seed's final accuracy with Wilson's interval."""
    head = ["recipe", "seed", "before", "after", "95 %", "held-out samples"]
    body = [
        [arm["name"], str(s["seed"]), f"{arm['before']['value']:.3f}", f"{s['value']:.3f}", interval(s), str(s["n"])]
        for arm in result["arms"] for s in arm["seeds"]
    ]  # fmt: skip
    return [head, *body]


def text_decisions(result: Mapping[str, Any]) -> list[list[str]]:
    head = ["a", "b", "a - b", "p", "verdict", "look"]
    body = [
        [d["a"], d["b"], f"{d['difference']:+.3f}", f"{d['p']:.3g}", VERDICTS[d["verdict"]], str(d["look"])]
        for d in result["test"]["decisions"]
    ]
    return [head, *body]


def reach(target: Mapping[str, Any]) -> list[list[str]]:
    """What it took each arm to get there."""
    axes = ("steps", "rollouts", "tokens", "cpu_s")
    head = ["recipe", "steps", "rollouts", "tokens", "CPU seconds"]
    return [head, *([name, *(cost(cost_of[axis]) for axis in axes)] for name, cost_of in target["arms"].items())]


def cost(found: Mapping[str, float | None]) -> str:
    if found["value"] is None:
        return "not reached"
    ends = [format_count(end) if end is not None else "never" for end in (found["low"], found["high"])]
    return f"{format_count(found['value'])} [{ends[0]}, {ends[1]}]"


def format_count(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 or value == 0 else f"{value:.2g}"


def interval(item: Mapping[str, float | None]) -> str:
    return "" if item["low"] is None else f"[{item['low']:.3f}, {item['high']:.3f}]"


def aligned(table: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in table)


def text_text(result: Mapping[str, Any]) -> str:
    """The whole result for a terminal."""
    parts = [aligned(measured(result)), aligned(text_decisions(result))]
    parts += [f"to reach {target['label']}:\n{aligned(reach(target))}" for target in result["reach"]]
    return "\n\n".join([*parts, *(f"note: {note}" for note in result["notes"])])


# The page of a comparison: one HTML file that needs no script, no network and no other file.

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
        measured=table(*measured(result)),
        test=escape(describe_test(result["test"])),
        decisions=table(*text_decisions(result)),
        names=legend(names),
        learning="".join(chart(lines(result, axis), LABELS[axis], "held-out accuracy") for axis in AXES),
        entropy=chart(entropies(result), "rollouts", "entropy, nats a token") + passes(result),
        reach="".join(map(report_reached, result["reach"])),
        equal=table(*table_rows(result["equal"])),
        seeds=table(*seeds(result)),
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
    return "".join(html_interval(escape(name), item, low, high) for name, item in items)


def describe_test(test: Mapping[str, Any]) -> str:
    more = "more seeds could still decide the rest." if test["undecided"] else "no more seeds are planned."
    return (
        f"{test['method']}: after {test['looks']} of {test['most_looks']} looks of {test['each']} seeds each, at a "
        f"family-wise level of {test['level']:g}, on final accuracy; {more}"
    )


def lines(result: Mapping[str, Any], axis: str) -> list[Line]:
    return [_report_line(name, course["x"][axis], course["accuracy"]) for name, course in result["courses"].items()]


def entropies(result: Mapping[str, Any]) -> list[Line]:
    """At the end of each stretch between evaluations."""
    return [
        _report_line(name, course["x"]["rollouts"][1:], course["entropy"]) for name, course in result["courses"].items()
    ]


def passes(result: Mapping[str, Any]) -> str:
    """pass@k over k, each arm."""
    ks = result["config"]["pass_at"]["k"]
    lines = [_report_line(arm["name"], ks, [arm["pass_at"][str(k)] for k in ks]) for arm in result["arms"]]
    return chart(lines, "k, tries", "pass@k")


def _report_line(name: str, x: Sequence[float], points: Sequence[Mapping[str, float]]) -> Line:
    return Line(name, x, *([point[key] for point in points] for key in ("value", "low", "high")))


def report_reached(target: Mapping[str, Any]) -> str:
    head = f"To reach {escape(target['label'])}"
    return f'<section><h2>{head}</h2><div class="table" tabindex="0">{table(*reach(target))}</div></section>'


# The curves of a comparison as one PNG.

MISSING = "no picture: matplotlib is not installed (pip install 'vlrl[bench]')"


def draw(result: Mapping[str, Any], path: Path) -> str:
    """Writes the picture; returns '' or why there is none."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return MISSING
    figure = Figure(figsize=(13, 7.5), layout="constrained")
    panels = figure.subplots(2, 3).flatten()
    for panel, axis in zip(panels, AXES, strict=False):
        _panel(panel, lines(result, axis), LABELS[axis], "held-out accuracy")
    _panel(panels[4], entropies(result), "rollouts", "entropy, nats a token")
    _passes(panels[5], result)
    panels[0].legend(fontsize=8)
    figure.suptitle(f"{result['task']}: mean over seeds, 95 % intervals")
    figure.savefig(path, dpi=110)
    return ""


def _panel(panel: Any, drawn: list[Line], x_label: str, y_label: str) -> None:
    for i, line in enumerate(drawn):
        panel.plot(line.x, line.y, label=line.name, color=f"C{i}")
        if None not in (*line.low, *line.high):
            panel.fill_between(line.x, line.low, line.high, color=f"C{i}", alpha=0.12, linewidth=0)
    panel.set(xlabel=x_label, ylabel=y_label)
    panel.grid(alpha=0.3)


def _passes(panel: Any, result: Mapping[str, Any]) -> None:
    ks = result["config"]["pass_at"]["k"]
    for i, arm in enumerate(result["arms"]):
        panel.plot(ks, [arm["pass_at"][str(k)]["value"] for k in ks], marker="o", color=f"C{i}")
    panel.plot(ks, [result["start"][str(k)]["value"] for k in ks], marker="o", color="0.5", linestyle="--")
    panel.set(xlabel="k, tries (dashed: before training)", ylabel="pass@k")
    panel.grid(alpha=0.3)


# Means over seeds with their intervals, and what it costs to reach an accuracy.

RESAMPLED = 2000  # bootstrap samples of the seeds


def over_seeds(values: Sequence[float]) -> dict[str, float | None]:
    """Mean with Student's 95 % interval over seeds; no interval for one seed."""
    from scipy.stats import t

    array = np.asarray(values, float)
    if len(array) < 2:
        return {"value": float(array.mean()), "low": None, "high": None}
    half = float(t.ppf(0.975, len(array) - 1) * array.std(ddof=1) / math.sqrt(len(array)))
    return {"value": float(array.mean()), "low": float(array.mean()) - half, "high": float(array.mean()) + half}


def courses(runs: Sequence[Curves]) -> dict[str, Any]:
    """Mean curves of an arm: {x: {axis: [n]}, accuracy and entropy: [{value, low, high}]}."""
    return {
        "x": {axis: np.mean([run.x[axis] for run in runs], 0).tolist() for axis in AXES},
        "accuracy": [over_seeds(each) for each in zip(*(run.accuracy for run in runs), strict=True)],
        "entropy": [over_seeds(each) for each in zip(*(run.entropy for run in runs), strict=True)],
    }


def crossing(x: np.ndarray, accuracy: np.ndarray, target: float) -> np.ndarray:
    """Where curves first reach a target, interpolated; infinity where they never do.

    Args:
        x, accuracy: [curves, n].
    """
    above = accuracy >= target
    i = above.argmax(1)
    rows, before = np.arange(len(x)), np.maximum(i - 1, 0)
    low, high = accuracy[rows, before], accuracy[rows, i]
    share = np.where(high > low, (target - low) / np.where(high > low, high - low, 1.0), 1.0)
    at = x[rows, before] + np.clip(share, 0, 1) * (x[rows, i] - x[rows, before])
    return np.where(above.any(1), np.where(i == 0, x[:, 0], at), np.inf)


def summary_reached(runs: Sequence[Curves], target: float, seed: int = 0) -> dict[str, dict[str, float | None]]:
    """Axis -> where the seeds' mean accuracy first reaches the target, with a 95 % bootstrap interval over seeds.

    None: not within the run.
    """
    resampled = np.random.default_rng(seed).integers(len(runs), size=(RESAMPLED, len(runs)))
    accuracy = np.array([run.accuracy for run in runs])
    found = {}
    for axis in AXES:
        x = np.array([run.x[axis] for run in runs])
        value = crossing(x.mean(0)[None], accuracy.mean(0)[None], target)[0]
        ends = np.quantile(
            crossing(x[resampled].mean(1), accuracy[resampled].mean(1), target), (0.025, 0.975), method="nearest"
        )
        ends = ends if len(runs) > 1 else (None, None)
        found[axis] = dict(zip(("value", "low", "high"), map(_finite, (value, *ends)), strict=True))
    return found


def _finite(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(value)


def arm_summary(runs: Sequence[Curves], ks: Sequence[int]) -> dict[str, Any]:
    """What the table says of an arm: means over its seeds and each seed's own final accuracy."""
    finals = [{"seed": run.seed, **run.summary["after"]} for run in runs]
    return {
        "final": over_seeds([each["value"] for each in finals]),
        "seeds": finals,
        "before": runs[0].summary["before"],
        "tasks": {name: over_seeds([run.tasks[name] for run in runs]) for name in runs[0].tasks},
        "area": over_seeds([area(run) for run in runs]),
        "pass_at": {
            str(k): over_seeds([pass_at(run.answers["correct"], run.answers["n"], k) for run in runs]) for k in ks
        },
        "entropy": {"first": over_seeds([run.entropy[0] for run in runs]),
                    "last": over_seeds([run.entropy[-1] for run in runs])},
        **{axis: over_seeds([run.x[axis][-1] for run in runs]) for axis in COSTS},
        **{key: over_seeds([run.summary[key] for run in runs]) for key in ("updates", "skipped")},
        "whole_cpu_s": over_seeds([run.summary["cpu_s"] for run in runs]),
        "counted": over_seeds([run.summary["rollouts"] for run in runs]),
    }  # fmt: skip


def area(run: Curves) -> float:
    """Mean accuracy along training, over rollouts: how early it was learned."""
    x = run.x["rollouts"]
    return float(np.trapezoid(run.accuracy, x) / (x[-1] - x[0]))


def targets(reach: Sequence[float | str], arms: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, float]]:
    """(label, accuracy) of what is to be reached; a recipe's name stands for its final accuracy."""
    named = ((f"{r}'s final accuracy", arms[r]["final"]["value"]) if isinstance(r, str) else ("", r) for r in reach)
    return [(f"{label} {value:.3f}".strip(), float(value)) for label, value in named]


# Many comparisons on one page of Markdown: each recipe against the first of its comparison, with a verdict.

WIDE = 140  # characters of a line of prose
EQUAL = 0.03  # of accuracy: an interval that lies within it shows that there is no difference worth having
PAGE_HEAD = """# Methods, judged

<!-- Made by the command below; changes by hand are lost. -->

    vlrl compare {command} --page {page}

{methods} recipes against the first of their comparison, or the one that they name, at equal rollouts: {runs} runs,
{hours:.1f} CPU-hours in all.
Held-out accuracy, means over seeds, 95 % intervals (Welch). `p` is family-wise within a comparison (AdaStop).
*Helps* and *harms*: decided at 5 %. *No difference*: the interval lies within +- {equal}. Else *undecided*.

![gain in accuracy over the first recipe of each comparison, against CPU seconds relative to it]({picture})
"""
PAGE_TABLE = ("method", "accuracy", "effect", "p", "verdict", "pass@{k}", "entropy", "tokens", "CPU-s a run")


def judge(effect: tuple[float, float], decided: str) -> str:
    """helps, harms, no difference or undecided.

    Args:
        effect: 95 % interval of the difference.
        decided: a verdict of AdaStop.
    """
    if decided in ("larger", "smaller"):
        return "helps" if decided == "larger" else "harms"
    return "no difference" if effect[0] > -EQUAL and effect[1] < EQUAL else "undecided"


def finals_of(arm: Mapping[str, Any]) -> list[float]:
    return [each["value"] for each in arm["seeds"]]


def judged_rows(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One for each arm but the first: {name, arm, low, difference, high, p, verdict}, the best first.

    Against the first arm, or the one that stands before it in a listed pair.
    """
    first, *others = result["arms"]
    arms, pairs = {arm["name"]: arm for arm in result["arms"]}, result["config"]["pairs"]
    bases = {name: base for base, name in pairs} if isinstance(pairs, list) else {}
    decisions = {frozenset((d["a"], d["b"])): d for d in result["test"]["decisions"]}
    rows = []
    for arm in others:
        base = arms[bases.get(arm["name"], first["name"])]
        decision = decisions.get(frozenset((arm["name"], base["name"])))
        decided = decision["verdict"] if decision else "open"
        if decision and decision["a"] != arm["name"] and decided != "open":
            decided = {"larger": "smaller", "smaller": "larger"}[decided]
        low, high = welch(finals_of(arm), finals_of(base))
        name = arm["name"] if base is first else f"{arm['name']}, against {base['name']}"
        rows.append({
            "name": name, "arm": arm, "low": low, "high": high, "difference": (low + high) / 2,
            "p": decision["p"] if decision else None, "verdict": judge((low, high), decided),
        })  # fmt: skip
    return sorted(rows, key=lambda row: -row["difference"])


def programme_page(results: Mapping[str, Mapping[str, Any]], page: Path, changes: Sequence[str] = ()) -> str:
    """The page's text; its picture, of the same name, is written beside it.

    Args:
        results: a comparison's file -> its `result.json`.
        changes: that all of them were made with.
    """
    rows = {file: judged_rows(result) for file, result in results.items()}
    runs = sum(len(arm["seeds"]) for result in results.values() for arm in result["arms"])
    picture = page.with_suffix(".png")
    draw_programme(results, rows, picture)
    head = PAGE_HEAD.format(
        command=" ".join([*results, *changes]), page=page, methods=sum(map(len, rows.values())), runs=runs, equal=EQUAL,
        hours=sum(result["cpu_s"] for result in results.values()) / 3600, picture=picture.name,
    )  # fmt: skip
    return "\n".join([head, *(programme_section([file, *changes], results[file], rows[file]) for file in results)])


def programme_section(words: Sequence[str], result: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> str:
    """A comparison's heading, its file's first paragraph of comment, and its table; `words`: the file, then changes."""
    file = words[0]
    first, budget, k = result["arms"][0], result["config"]["budget"], max(result["config"]["pass_at"]["k"])
    paragraph = takewhile(bool, (line.lstrip("# ") for line in first_comment(file)))
    remark = [line for line in paragraph if not line.startswith("vlrl ")]
    smallest = detectable([finals_of(arm) for arm in result["arms"]])
    head = [*PAGE_TABLE, *first["tasks"]]
    table = [[each.format(k=k) for each in head], ["---"] * len(head)]
    table.append([first["name"], f"{first['final']['value']:.3f}", "", "", "", *programme_means(first, k)])
    table += [programme_row(row, k) for row in rows]
    lines = "\n".join(f"| {' | '.join(row)} |" for row in table)
    cost = f"{result['cpu_s'] / 60:.0f} CPU-minutes, commit {result['versions']['commit']}"
    return (
        f"## {Path(file).stem.replace('_', ' ')}\n\n    vlrl compare {' '.join(words)}\n\n"
        f"{fill(' '.join(remark), WIDE)}\n\n"
        f"{budget['rollouts']:,} rollouts a run, {len(first['seeds'])} seeds, {first['before']['value']:.3f} before "
        f"training; {cost}. An effect of {smallest:.3f} would be found in four of five repetitions.\n\n{lines}\n"
    )


def first_comment(file: str) -> list[str]:
    """The comment lines that a YAML file begins with."""
    lines = config_file(file).read_text(encoding="utf-8").splitlines()
    return list(takewhile(lambda line: line.startswith("#"), lines))


def programme_means(arm: Mapping[str, Any], k: int) -> list[str]:
    return [f"{arm['pass_at'][str(k)]['value']:.3f}", f"{arm['entropy']['last']['value']:.3f}",
            f"{arm['tokens']['value'] / arm['rollouts']['value']:.1f}", f"{arm['cpu_s']['value']:.0f}",
            *(f"{each['value']:.3f}" for each in arm["tasks"].values())]  # fmt: skip


def programme_row(row: Mapping[str, Any], k: int) -> list[str]:
    effect = f"{row['difference']:+.3f} [{row['low']:+.3f}, {row['high']:+.3f}]"
    p = "" if row["p"] is None else f"{row['p']:.3f}"
    verdict = f"**{row['verdict']}**" if row["verdict"] in ("helps", "harms") else row["verdict"]
    final = f"{row['arm']['final']['value']:.3f}"
    return [row["name"], final, effect, p, verdict, *programme_means(row["arm"], k)]


FAR = 0.25  # effects beyond it would squeeze all others together


def draw_programme(
    results: Mapping[str, Mapping[str, Any]], rows: Mapping[str, Sequence[Mapping[str, Any]]], path: Path
) -> None:
    """Every recipe: what it gained over its comparison's first one against what it cost beside it.

    Names stand where an effect is decided. One beyond FAR lies on the figure's edge, with its effect in words.

    Raises:
        UserError: matplotlib is not installed.
    """
    try:
        from matplotlib import colormaps
        from matplotlib.figure import Figure
    except ImportError:
        raise UserError(MISSING) from None
    figure = Figure(figsize=(11, 6.5), layout="constrained")
    panel = figure.subplots()
    colors = colormaps["tab20"](range(20))
    for i, (file, judged) in enumerate(rows.items()):
        base = results[file]["arms"][0]["cpu_s"]["value"]
        x = [r["arm"]["cpu_s"]["value"] / base for r in judged]
        y = [min(max(r["difference"], -FAR), FAR) for r in judged]
        room = [[r["difference"] - r["low"] for r in judged], [r["high"] - r["difference"] for r in judged]]
        panel.errorbar(x, y, room, fmt="o", color=colors[i % len(colors)], label=Path(file).stem, elinewidth=0.6,
                       markersize=4)  # fmt: skip
        for r, across, up in zip(judged, x, y, strict=True):
            if r["verdict"] in ("helps", "harms"):
                effect = f" ({r['difference']:+.2f})" if abs(r["difference"]) > FAR else ""
                panel.annotate(r["name"] + effect, (across, up), (4, 3), textcoords="offset points", fontsize=8)
    panel.set_ylim(-1.1 * FAR, 1.1 * FAR)
    panel.axhline(0, color="0.6", linewidth=0.8)
    panel.set(xscale="log", xlabel="CPU seconds of training, times the first recipe's", ylabel="gain in accuracy")
    for axis in (panel.xaxis.set_major_formatter, panel.xaxis.set_minor_formatter):
        axis("{x:.1f}")
    figure.legend(loc="outside right upper", fontsize=8, title="against the first recipe of")
    panel.grid(alpha=0.3)
    figure.savefig(path, dpi=110)


# What `result.json` holds of a comparison.


def result_of(
    comparison: Comparison, arms: Sequence[RecipeArm], lines: Sequence[Mapping[str, Any]], test: AdaStop,
    runs: Mapping[str, Sequence[Curves]], start: Mapping[str, Any],
) -> dict[str, Any]:  # fmt: skip
    """Everything, as JSON can hold it.

    Args:
        lines: of `table.facts`.
        runs: arm -> its finished seeds.
        start: answers of the untrained policy, see `sampled`.
    """
    ks = comparison.pass_at.k
    measured = {arm.name: arm_summary(runs[arm.name], ks) for arm in arms}
    return {
        "task": arms[0].config.task.name,
        "arms": [{"name": arm.name, "as_released": arm.recipe.as_released, **measured[arm.name]} for arm in arms],
        "start": {str(k): {**over_seeds([pass_at(start["correct"], start["n"], k)])} for k in ks}
        | {"entropy": start["entropy"]},
        "equal": list(lines),
        "test": {
            "method": "AdaStop",
            "level": test.level,
            "looks": test.done,
            "most_looks": test.looks,
            "each": test.each,
            "undecided": test.arms != [],
            "decisions": result_decisions(test),
        },
        "courses": {arm.name: courses(runs[arm.name]) for arm in arms},
        "reach": [
            {
                "label": label,
                "accuracy": value,
                "arms": {arm.name: summary_reached(runs[arm.name], value) for arm in arms},
            }
            for label, value in targets(comparison.reach, measured)
        ],
        "notes": notes(arms, measured),
        "cpu_s": sum(run.summary["cpu_s"] + run.answers["cpu_s"] for each in runs.values() for run in each),
        "versions": {
            "vlrl": __version__,
            "commit": ", ".join(sorted({run.commit for each in runs.values() for run in each})),
        },
        "config": comparison.model_dump(mode="json"),
    }


def result_decisions(test: AdaStop) -> list[dict[str, Any]]:
    """One line for each pair."""
    found = [test.decisions[pair] for pair in test.pairs if pair in test.decisions]
    return [{"a": d.pair[0], "b": d.pair[1], "verdict": d.verdict, "difference": d.difference, "p": d.p,
             "look": d.look} for d in found]  # fmt: skip


def notes(arms: Sequence[RecipeArm], measured: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Where runs did not spend what was planned."""
    said = []
    for arm in arms:
        planned, counted = spent(arm), measured[arm.name]["counted"]["value"]
        if round(counted) != planned:
            said.append(f"{arm.name}: {counted:,.0f} rollouts were played, {planned:,} planned")
        skipped = measured[arm.name]["skipped"]["value"]
        if skipped:
            said.append(f"{arm.name}: {skipped:g} updates a run were skipped because they were not finite")
    return said
