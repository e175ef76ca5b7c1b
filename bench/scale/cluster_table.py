"""The table and the figure of `bench/scale.py simulate_cluster`."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HEAD = (
    "| GPUs | policy | trained | write + learn | s a step, in turns | staleness 0 | 1 | 2 | 4 | episodes/s at 1 "
    "| busy at 1 | of the peak | stragglers | publication | simulators |\n|" + "---|" * 15
)
COLORS = {"3B": "#1f6fb4", "7B": "#c8452d", "72B": "#5b8c3a"}


def text(rows: Sequence[Any]) -> str:
    """A Markdown table for each job. Shares lost: in turns / apart at a staleness of 1."""
    return "\n\n".join(
        "\n".join([f"**{job}**", "", HEAD, *(_line(row) for row in rows if row.job == job)])
        for job in dict.fromkeys(row.job for row in rows)
    )


def _line(row: Any) -> str:
    steps = " | ".join(f"{seconds:.1f}" for seconds in row.steps.values())
    lost = " | ".join(" / ".join(f"{round(share, 2) + 0.0:.0%}" for share in pair) for pair in row.lost.values())
    return (
        f"| {row.gpus:,} | {row.size} | {row.trained} | {row.writing:,} + {row.learning:,} | {row.turns:.1f} | {steps} "
        f"| {row.batch / row.steps[1]:,.0f} | {row.busy:.0%} | {row.peak:.0%} | {lost} |"
    )


def draw(rows: Sequence[Any], file: Path) -> None:
    """Episodes a second of a GPU, in turns and by staleness: a panel for each number of GPUs, a row for each job."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from PIL import Image

    plt.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False})
    jobs, counts = (list(dict.fromkeys(getattr(row, name) for row in rows)) for name in ("job", "gpus"))
    figure, axes = plt.subplots(
        len(jobs), len(counts), figsize=(1 + 2.7 * len(counts), 0.7 + 2.2 * len(jobs)), sharey="row", sharex=True,
        layout="constrained", squeeze=False,
    )  # fmt: skip
    for job, line in zip(jobs, axes, strict=True):
        for gpus, axis in zip(counts, line, strict=True):
            _panel(axis, [row for row in rows if row.job == job and row.gpus == gpus])
            axis.set_title(f"{job}, {gpus:,} GPUs", fontsize=9.5, loc="left")
        line[0].set_ylabel("episodes a second, a GPU")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
    with io.BytesIO() as raw:
        figure.savefig(raw, dpi=150, facecolor="white")
        Image.open(raw).convert("RGB").quantize(64).save(file, optimize=True)
    plt.close(figure)


def _panel(axis: Any, rows: Sequence[Any]) -> None:
    for row in rows:
        rate = [row.batch / seconds / row.gpus for seconds in (row.turns, *row.steps.values())]
        axis.plot(0, rate[0], "s", color=COLORS[row.size], markersize=5)
        axis.plot(range(1, len(rate)), rate[1:], "o-", color=COLORS[row.size], markersize=4, label=row.size)
        axis.set_xticks(range(len(rate)), ["in turns", *(str(staleness) for staleness in row.steps)])
    axis.set_yscale("log")
    axis.set_xlabel("staleness, apart", loc="right", fontsize=8)
    axis.grid(alpha=0.25)
