"""The figure of bench/scale.py staleness."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt


def draw(found: list[dict[str, Any]], file: Path) -> None:
    """Left: episodes a second beside those without staleness. Right: accuracy."""
    ticks = sorted({row["staleness"] for row in found})
    plt.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False})
    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3), layout="constrained")
    for arm in ("waits", "server"):  # what only computes gains nothing on full cores
        own = [row for row in found if row["arm"] == arm]
        left.plot([r["staleness"] for r in own], [r["episodes"] / own[0]["episodes"] for r in own], "o-", label=arm)
    for shift, arm in ((-0.05, "learns"), (0.05, "learns, decoupled")):
        own = [row for row in found if row["arm"] == arm]
        value, low, high = ([r["accuracy"][name] for r in own] for name in ("value", "low", "high"))
        spans = [[v - b for v, b in zip(value, low, strict=True)], [t - v for v, t in zip(value, high, strict=True)]]
        right.errorbar([r["staleness"] + shift for r in own], value, spans, fmt="o-", capsize=2, label=arm)
    left.set(xlabel="train.max_staleness", ylabel="episodes a second, relative", ylim=(0, None), xticks=ticks)
    right.set(xlabel="train.max_staleness", ylabel="held-out accuracy", ylim=(0, 1), xticks=ticks)
    left.legend(frameon=False)
    right.legend(frameon=False)
    figure.savefig(file, dpi=140)
