"""Which curves a report draws, from the rows of metrics.jsonl and timings.jsonl."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from vlrl.report import tasks
from vlrl.report.read import Row

MAX_POINTS = 3000  # a curve; longer ones keep the lowest and highest point of each stretch, so spikes stay visible

Point = list[float | None]  # [step, value]; None is a gap


@dataclass(frozen=True)
class Panel:
    """One chart: the metrics that share it (metric -> name in the legend), or all those that start with `prefix`."""

    title: str
    keys: Mapping[str, str] = field(default_factory=dict)
    prefix: str = ""
    note: str = ""


LEARNING = (
    Panel("Reward", {"reward": "train", "eval/reward": "held out"}),
    Panel("Reward parts", prefix="reward/"),
    Panel("Training accuracy", {"accuracy": "train"}),
    Panel("Entropy", {"entropy": "entropy"}),
    Panel("KL", {"kl": "to the reference", "kl_teacher": "to the teacher"}),
    Panel("Clip share", {"clip_fraction": "share"}, note="units whose ratio was clipped"),
    Panel(
        "Zero-advantage share",
        {"zero_advantage": "share", "left_out": "left out of the update"},
        note="rollouts that teach nothing",
    ),
    Panel("Completion length", {"length": "units"}),
)
OPTIMISATION = (
    Panel("Loss", {"loss": "loss"}),
    Panel("Gradient norm", {"grad_norm": "norm"}),
    Panel("Learning rate", {"lr": "rate"}),
    Panel("Log-probability gap", {"logprob_gap": "gap"}, note="sampling against training"),
    Panel("Cut completions", {"cut": "share"}, note="stopped by the length limit"),
    Panel("Parse failures", prefix="parse_fail/", note="by reason"),
    Panel("Skipped updates", {"skipped": "skipped"}),
)
WORK = (  # the same things forwarded twice show as two curves apart
    Panel("Tokens forwarded", {"work/tokens": "all", "work/tokens_distinct": "different ones"}),
    Panel("Patches forwarded", {"work/patches": "all", "work/patches_distinct": "different ones"}),
    Panel("MFU", {"work/mfu": "share"}, note="of the device's peak, without repeated work"),
)
HELD_OUT = ("eval/accuracy", "eval/low", "eval/high", "eval/n")


def sections(metrics: list[Row], timings: list[Row]) -> list[dict[str, Any]]:
    """Sections of charts, each with at least one curve: [{title, charts: [{title, note, wide, series}]}]."""
    curves = columns(metrics)
    used = set(HELD_OUT)
    learning = [held_out(metrics)] if curves.get("eval/accuracy") else []
    learning += tasks.charts(curves, used)
    learning += [chart for panel in LEARNING if (chart := draw(panel, curves, used))]
    optimisation = [chart for panel in OPTIMISATION if (chart := draw(panel, curves, used))]
    other = [draw(Panel(key, {key: "value"}), curves, used) for key in sorted(curves) if key not in used]
    seconds = columns(timings)
    parts = {key: key.replace("seconds", "whole step") for key in seconds if not key.startswith("work/")}
    panels = (Panel("Seconds a step", parts), *WORK)
    time = [chart for panel in panels if (chart := draw(panel, seconds, set()))]
    named = {"Learning": learning, "Optimisation": optimisation, "Time": time, "Other": other}
    return [{"title": title, "charts": charts} for title, charts in named.items() if charts]


def columns(rows: Iterable[Row]) -> dict[str, list[Point]]:
    """Every numeric key's points by step. A step that was written twice (a resumed run) keeps its last value."""
    found: dict[str, dict[float, float | None]] = {}
    for row in rows:
        step = row.get("step")
        if not isinstance(step, int | float):
            continue
        for key, value in row.items():
            if key != "step" and (value is None or isinstance(value, int | float)):
                found.setdefault(key, {})[step] = value
    points = {key: [[step, by_step[step]] for step in sorted(by_step)] for key, by_step in found.items()}
    return {key: thin(curve) for key, curve in points.items() if any(value is not None for _, value in curve)}


def thin(curve: list[Point]) -> list[Point]:
    """At most about MAX_POINTS points."""
    if len(curve) <= MAX_POINTS:
        return curve
    stretch = -(-2 * len(curve) // MAX_POINTS)
    kept = [curve[0]]
    for start in range(1, len(curve) - 1, stretch):
        known = [point for point in curve[start : start + stretch] if point[1] is not None]
        ends: list[Callable] = [min, max]
        kept += sorted({tuple(end(known, key=lambda point: point[1])) for end in ends}) if known else []
    return [list(point) for point in kept if point[0] < curve[-1][0]] + [curve[-1]]


def draw(panel: Panel, curves: Mapping[str, list[Point]], used: set[str]) -> dict[str, Any] | None:
    """The panel with its curves, noting in `used` what it drew; None where the run has none of them."""
    keys = panel.keys or {key: key.removeprefix(panel.prefix) for key in sorted(curves) if key.startswith(panel.prefix)}
    present = {key: name for key, name in keys.items() if key in curves}
    used.update(present)
    series = [
        {"name": name, "points": curves[key], "smooth": not key.startswith("eval/")} for key, name in present.items()
    ]
    return {"title": panel.title, "note": panel.note, "wide": False, "series": series} if series else None


def held_out(metrics: list[Row]) -> dict[str, Any]:
    """Accuracy on held-out samples with its interval: band is [step, low, high]."""
    curves = columns(metrics)
    counts = [int(value) for _, value in curves.get("eval/n", []) if value]
    note = f"with its interval, {counts[-1]:,} samples" if counts else "with its interval"
    series = tasks.measured("held out", curves, "eval/")
    return {"title": "Held-out accuracy", "note": note, "wide": True, "series": [series]}
