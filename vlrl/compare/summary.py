"""Means over seeds with their intervals, and what it costs to reach an accuracy."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from vlrl.compare.curves import AXES, COSTS, Curves
from vlrl.compare.sampled import pass_at

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


def reached(runs: Sequence[Curves], target: float, seed: int = 0) -> dict[str, dict[str, float | None]]:
    """Axis -> where the seeds' mean accuracy first reaches the target, with a 95 % bootstrap interval over seeds.

    None: not within the run.
    """
    drawn = np.random.default_rng(seed).integers(len(runs), size=(RESAMPLED, len(runs)))
    accuracy = np.array([run.accuracy for run in runs])
    found = {}
    for axis in AXES:
        x = np.array([run.x[axis] for run in runs])
        value = crossing(x.mean(0)[None], accuracy.mean(0)[None], target)[0]
        ends = np.quantile(
            crossing(x[drawn].mean(1), accuracy[drawn].mean(1), target), (0.025, 0.975), method="nearest"
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
