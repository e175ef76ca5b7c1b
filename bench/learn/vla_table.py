"""The table of `bench/learn.py vla`: every run read at the budget."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from vla_figure import Course, read
from vla_jobs import METHODS, SCENES, TASKS, Job

from vlrl import checkpoint
from vlrl.evaluation.compare_report import over_seeds
from vlrl.types import wilson

HEAD = (
    "method", "start", "success by seed", "mean, Student over seeds", "pooled, Wilson", "points beside GRPO", "ticks",
    "CPU-s, training", "CPU-s, all", "demonstrations",
)  # fmt: skip


def whole_cpu(folder: Path) -> float | None:
    """CPU seconds of a whole run, evaluations included."""
    if (folder / "summary.json").exists():
        return json.loads((folder / "summary.json").read_text())["cpu_s"]
    newest = checkpoint.latest(folder / "checkpoints")
    return checkpoint.load_state(newest)["clock"]["cpu_s"] if newest else None


def difference(a: Sequence[float], b: Sequence[float]) -> str:
    """Mean of a less that of b, in points, with Welch's 95 % interval over seeds."""
    from scipy.stats import t

    value = 100 * (np.mean(a) - np.mean(b))
    if min(len(a), len(b)) < 2:
        return f"{value:+.0f}"
    parts = np.array([np.var(a, ddof=1) / len(a), np.var(b, ddof=1) / len(b)])
    if not parts.sum():
        return f"{value:+.0f}"
    freedom = parts.sum() ** 2 / (parts**2 / (np.array([len(a), len(b)]) - 1)).sum()
    half = 100 * t.ppf(0.975, freedom) * math.sqrt(parts.sum())
    return f"{value:+.0f} [{value - half:+.0f}, {value + half:+.0f}]"


def row(method: str, task: str, runs: Mapping[str, Sequence[Course]], folders: Sequence[Path], budget: int) -> tuple:
    """The cells of a method's line."""
    courses = runs[method]
    won, cpu = zip(*(course.at(budget) for course in courses), strict=True)
    whole = [seconds for seconds in map(whole_cpu, folders) if seconds is not None]
    grpo = [course.at(budget)[0] for course in runs.get("grpo", ())]
    told, ticks = TASKS[task].demonstrations, np.mean([min(budget, course.ticks[-1]) for course in courses])
    pooled = wilson(SCENES * sum(won), SCENES * len(won))
    return (
        METHODS[method], f"{np.mean([course.success[0] for course in courses]):.2f}",
        ", ".join(f"{value:.2f}" for value in won), interval(over_seeds(won)), f"[{pooled[0]:.2f}, {pooled[1]:.2f}]",
        difference(won, grpo) if grpo and method != "grpo" else "", f"{ticks:,.0f}", f"{np.mean(cpu):.0f}",
        f"{np.mean(whole):.0f}" if whole else "", told.get(method, told[""]),
    )  # fmt: skip


def interval(told: Mapping[str, float | None]) -> str:
    ends = "" if told["low"] is None else f" [{max(0, told['low']):.2f}, {min(1, told['high']):.2f}]"
    return f"{told['value']:.2f}{ends}"


def table(task: str, done: Mapping[str, Sequence[Job]], budget: int) -> tuple[str, dict[str, list[Course]]]:
    """Markdown, and the courses by method; methods without a run are left out."""
    runs = {method: [read(job.folder, job.chunk) for job in jobs] for method, jobs in done.items() if jobs}
    rows = [row(m, task, runs, [job.folder for job in done[m]], budget) for m in runs]
    lines = [HEAD, ("---",) * len(HEAD), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines), runs
