"""The table of a finished `vlrl stages`: what every stage did to one held-out accuracy."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from vlrl import __version__
from vlrl.log import commit, write_text
from vlrl.stages.plan import Plan
from vlrl.stages.step import Step

HEAD = ("stage", "runs", "from", "its own task", "held out before", "after", "tokens", "CPU-s")


def write_report(
    plan: Plan, measured: Mapping[str, Mapping[str, Any]], results: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """Writes summary.json and report.md and returns the summary.

    Args:
        measured: folder's name, or `start` -> numbers on the held-out samples.
        results: folder's name of finished stages -> what they say and spent.
    """
    summary = {
        "measured_on": plan.measured.task.name,
        "start": _numbers(measured.get("start")),
        "stages": [_row(plan, step, measured, results.get(step.name)) for step in plan.steps],
        "versions": {"vlrl": __version__, "commit": commit()}, "stages_file": plan.stages.model_dump(mode="json"),
    }  # fmt: skip
    write_text(plan.out / "summary.json", json.dumps(summary, indent=1, allow_nan=False) + "\n")
    write_text(plan.out / "report.md", f"# {plan.out.name}\n\n{table(summary)}\n")
    return summary


def _row(
    plan: Plan, step: Step, measured: Mapping[str, Mapping[str, Any]], result: Mapping[str, Any] | None
) -> dict[str, Any]:
    said = dict((result or {}).get("said", {}))
    own = {when: said[when] for when in ("before", "after") if when in said}
    told = {key: value for key, value in said.items() if step.stage.run in ("select", "best_of")}
    before = "" if step.start is None else _of_folder(plan, step.start)
    return {
        "name": step.name, "run": step.stage.run, "start": before or step.start, "task": step.task,
        "finished": result is not None, "own": own, "told": told,
        "before": _numbers(measured.get(before)), "after": _numbers(measured.get(step.name)),
        "wall_s": result and result["wall_s"], "cpu_s": result and result["cpu_s"],
    }  # fmt: skip


def _of_folder(plan: Plan, model: str) -> str:
    """The name under which a model was measured; '' where it was not."""
    known = {str(step.folder): step.name for step in plan.steps} | ({plan.begin: "start"} if plan.begin else {})
    return known.get(model, "")


def _numbers(found: Mapping[str, Any] | None) -> dict[str, Any] | None:
    return {key: value for key, value in found.items() if key != "settings"} if found else None


def table(summary: Mapping[str, Any]) -> str:
    """Markdown. Accuracies with their 95 % intervals; of a stage that makes no model, what it kept."""
    rows = [HEAD, tuple("---" for _ in HEAD), *(_cells(row) for row in summary["stages"])]
    on = next((row["after"] or row["before"] for row in summary["stages"] if row["after"] or row["before"]), None)
    told = f" on {on['n']} samples" if on else ""
    lines = ["| " + " | ".join(cells) + " |" for cells in rows]
    return "\n".join([*lines, "", f"Held out: greedy accuracy{told} of `{summary['measured_on']}`."])


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    own, after = row["own"], row["after"]
    course = f": {own['before']['value']:.3f} to {own['after']['value']:.3f}" if len(own) == 2 else ""
    last = f"{after['value']:.3f} [{after['low']:.3f}, {after['high']:.3f}]" if after else _kept(row)
    return (
        row["name"], row["run"], row["start"] or "new", row["task"] + course,
        f"{row['before']['value']:.3f}" if after and row["before"] else "", last,
        f"{after['length']:.1f}" if after else "", f"{row['cpu_s']:.0f}" if row["finished"] else "",
    )  # fmt: skip


def _kept(row: Mapping[str, Any]) -> str:
    told = row["told"]
    if not row["finished"]:
        return "not finished"
    if row["run"] == "select":
        return f"kept {told['kept']} of {told['measured']}"
    if row["run"] == "best_of":
        return f"kept {told['rows']}, {told['right'] / max(1, told['answers']):.1%} right"
    return ""
