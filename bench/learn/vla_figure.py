"""Runs as courses of held-out success over environment ticks and CPU seconds, and the figure of `vla`."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import yaml
from PIL import Image

from vlrl.evaluation.compare_report import over_seeds

Row = Mapping[str, Any]
LABELS = {"ticks": "environment ticks", "cpu": "CPU seconds of training"}
STYLES = ("-", "--", ":")  # beyond ten colours
POINTS = 60  # where curves are drawn


@dataclass(frozen=True, eq=False)
class Course:
    """A run at its evaluations, the first before any training: ticks, cpu (seconds, evaluations left out) and success,
    each float64 [n]."""

    ticks: np.ndarray
    cpu: np.ndarray
    success: np.ndarray

    def at(self, ticks: float) -> tuple[float, float]:
        """Success and CPU seconds, linear between the two evaluations around; the last ones' beyond them."""
        return float(np.interp(ticks, self.ticks, self.success)), float(np.interp(ticks, self.ticks, self.cpu))


def read(folder: Path, chunk: int) -> Course:
    """The course of a run, also of one that is not over.

    Args:
        chunk: ticks of one action of its policy; off-policy runs count ticks themselves.
    """
    metrics, timings = (_rows(folder / name) for name in ("metrics.jsonl", "timings.jsonl"))
    config = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
    trained = [row for row in metrics if "eval/accuracy" not in row]
    looked = [row for row in metrics if "eval/accuracy" in row]
    after = [row["step"] for row in trained]
    spent = dict.fromkeys([0, *after], 0.0)
    for row in timings:  # row 0: first responses, which come after the first evaluation
        spent[after[0] if row["step"] == 0 and after else row["step"]] += row["cpu"]
    ticks = _summed(after, _ticks(trained, config, chunk))
    cpu = _summed(after, [spent[step] for step in after])
    at = [max(step for step in ticks if step <= row["step"]) for row in looked]
    return Course(*(np.array([x[step] for step in at], float) for x in (ticks, cpu)),
                  np.array([row["eval/accuracy"] for row in looked], float))  # fmt: skip


def _summed(steps: Sequence[int], parts: Sequence[float]) -> dict[int, float]:
    """Step -> the total up to it."""
    return {0: 0.0} | dict(zip(steps, np.cumsum(parts).tolist(), strict=True))


def _ticks(trained: Sequence[Row], config: Row, chunk: int) -> list[float]:
    """Ticks of each row. First responses of a tracker are not logged: they count as the first step's episodes do."""
    if "train" not in config:
        return np.diff([row["ticks"] for row in trained], prepend=0).tolist()
    rollouts = config["train"]["prompts_per_step"] * config["train"]["group_size"]
    ticks = [_played(row, rollouts, config["task"]["horizon"], chunk) for row in trained]
    first = sum(a.get("start", 1) for a in config["advantages"] if a["name"] == "beta_tracker")
    if ticks and first:
        ticks[0] += first * config["sampler"]["limit"] * ticks[0] / rollouts
    return ticks


def _played(row: Row, rollouts: int, limit: int, chunk: int) -> float:
    """Ticks of a step, with those of groups that a filter left out.

    Those are not logged: as many as `filter/played` says, and won as often as the first ones were. Episodes that were
    won are as long as the kept ones', others end at the `limit`.
    """
    kept = chunk * row["actions"]
    if row.get("filter/played", 1.0) == 1.0:
        return kept
    won = row["accuracy"]
    saved = limit * row["reward/speed"] / won if won else 0.0
    return max(kept, row["filter/played"] * rollouts * (limit - row["filter/first_accuracy"] * saved))


def _rows(path: Path) -> list[Row]:
    """Its whole lines: the last may be half written."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def draw(courses: Mapping[str, Sequence[Course]], budget: float, title: str, file: Path) -> None:
    """Mean success with Student's 95 % band over seeds: against ticks up to the budget, and against CPU seconds."""
    plt.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False})
    figure, axes = plt.subplots(1, 2, figsize=(10.5, 4.2), sharey=True, layout="constrained")
    for axis, (x, label) in zip(axes, LABELS.items(), strict=True):
        for i, (name, runs) in enumerate(courses.items()):
            style = {"color": f"C{i % 10}", "linestyle": STYLES[i // 10 % len(STYLES)]}
            _curve(axis, name, runs, x, budget, style)
        axis.set(xlabel=label, ylim=(0, 1))
        axis.grid(alpha=0.25)
    axes[0].xaxis.set_major_formatter(lambda ticks, _: f"{ticks:,.0f}")
    axes[0].xaxis.set_major_locator(plt.MaxNLocator(5))
    axes[0].set_ylabel("success on held-out scenes")
    axes[0].set_title(title, fontsize=9.5, loc="left")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", frameon=False)
    with io.BytesIO() as raw:
        figure.savefig(raw, dpi=130, facecolor="white")
        Image.open(raw).convert("RGB").quantize(256).save(file, optimize=True)
    plt.close(figure)


def _curve(axis, name: str, runs: Sequence[Course], x: str, budget: float, style: Mapping[str, str]) -> None:
    ends = [run.at(budget)[1] if x == "cpu" else min(budget, run.ticks[-1]) for run in runs]
    grid = np.linspace(0, min(ends), POINTS)
    told = [over_seeds(each) for each in zip(*(np.interp(grid, getattr(r, x), r.success) for r in runs), strict=True)]
    axis.plot(grid, [each["value"] for each in told], linewidth=1.6, label=name, **style)
    if len(runs) > 1:
        low, high = ([each[end] for each in told] for end in ("low", "high"))
        axis.fill_between(grid, np.clip(low, 0, 1), np.clip(high, 0, 1), color=style["color"], alpha=0.1, linewidth=0)
