"""The curves of a comparison as one PNG."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vlrl.compare.curves import AXES, LABELS
from vlrl.compare.drawing import Line
from vlrl.compare.report import entropies, lines

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
