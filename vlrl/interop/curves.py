"""The picture of a model card: held-out accuracy with its interval, and the training reward, by step."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vlrl.decoders import parse_log_row


def draw(run: Path, out: Path) -> bool:
    """Writes a picture of the run's metrics, if there are any and matplotlib is installed; returns whether it did."""
    rows = _rows(run / "metrics.jsonl")
    held_out = [row for row in rows if "eval/accuracy" in row]
    trained = [row for row in rows if "reward" in row]
    if not held_out and not trained:
        return False
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return False
    figure = Figure(figsize=(8, 3), dpi=110, layout="constrained")
    left, right = figure.subplots(1, 2)
    steps = [row["step"] for row in held_out]
    left.plot(steps, [row["eval/accuracy"] for row in held_out], marker="o", markersize=3)
    bounds = ([row.get(f"eval/{end}", row["eval/accuracy"]) for row in held_out] for end in ("low", "high"))
    left.fill_between(steps, *bounds, alpha=0.2, linewidth=0)
    left.set(title="held-out accuracy, 95 % interval", xlabel="step", ylim=(0, 1))
    right.plot([row["step"] for row in trained], [row["reward"] for row in trained], linewidth=1)
    right.set(title="mean reward in training", xlabel="step")
    figure.savefig(out)
    return True


def _rows(file: Path) -> list[Mapping[str, Any]]:
    """The rows that are whole."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        try:
            row = parse_log_row(line)
        except ValueError:
            continue
        found += [row] if isinstance(row, dict) and isinstance(row.get("step"), int) else []
    return found
