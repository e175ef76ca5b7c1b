"""The small multiples of `bench/speed.py sizes`."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator
from PIL import Image

COLORS = {"naive": "#c8452d", "shared": "#1f6fb4"}
TITLES = {
    "visual": "visual tokens", "group": "completions of a prompt, G", "tokens": "tokens of a completion, C",
    "model": "million parameters",
}  # fmt: skip


def draw(panels: Mapping[str, list[dict]], sizes: Mapping[str, Sequence], rate: float, file: Path) -> None:
    """CPU seconds a step, measured (points) and by the cost model at `rate` FLOP/s (dashed), a panel per size."""
    plt.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False})
    figure, axes = plt.subplots(
        1, len(panels), figsize=(0.6 + 2.4 * len(panels), 3.3), sharey=True, layout="constrained", squeeze=False
    )
    for axis, (panel, rows) in zip(axes[0], panels.items(), strict=True):
        _panel(axis, panel, rows, sizes[panel], rate)
    axes[0, 0].set_ylabel("CPU seconds a step")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
    with io.BytesIO() as raw:
        figure.savefig(raw, dpi=150, facecolor="white")
        Image.open(raw).convert("RGB").quantize(64).save(file, optimize=True)  # a third of the bytes
    plt.close(figure)


def _panel(axis, panel: str, rows: list[dict], sizes: Sequence, rate: float) -> None:
    x = [row["parameters"] / 1e6 for row in rows] if panel == "model" else list(sizes)
    for arm, color in COLORS.items():
        axis.plot(x, [row["cpu"][arm] for row in rows], "o-", color=color, markersize=4, label=arm)
        model = [row["flops"][arm] / rate for row in rows]
        axis.plot(x, model, "--", color=color, linewidth=1.1, label=f"{arm}, cost model")
    axis.set(xscale="log", yscale="log")
    axis.set_title(TITLES[panel], fontsize=9.5, loc="left")
    axis.xaxis.set_major_locator(FixedLocator(x))
    axis.xaxis.set_major_formatter(FixedFormatter([f"{each:.2g}" if each < 100 else str(each) for each in x]))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.grid(alpha=0.25)
