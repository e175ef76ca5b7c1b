"""A finished run as curves: held-out accuracy and entropy against steps, rollouts, tokens and CPU seconds."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from vlrl.compare.runs import PASS_AT, Run
from vlrl.decoders import load_json, parse_log_row

AXES = ("steps", "rollouts", "tokens", "cpu_s")
COSTS = (*AXES, "forwarded")  # tokens through the language model, prompts and updates included
LABELS = {"steps": "steps", "rollouts": "rollouts", "tokens": "tokens written", "cpu_s": "CPU seconds"}


@dataclass(frozen=True)
class Curves:
    """One run. x: axis -> where the evaluations stand [n]; accuracy [n], the first before any training.

    entropy: [n - 1], nats a token while training, the mean of each stretch between evaluations.
    """

    seed: int
    x: dict[str, np.ndarray]
    accuracy: np.ndarray
    entropy: np.ndarray
    summary: dict[str, Any]
    answers: dict[str, Any]  # of `vlrl.compare.sampled`


def read(run: Run) -> Curves:
    """The curves of a finished run.

    What evaluations take is left out of the CPU seconds: they are the comparison's cost and not the method's.
    """
    metrics, timings = (rows(run.folder / name) for name in ("metrics.jsonl", "timings.jsonl"))
    summary = load_json(run.folder / "summary.json", finite=False)
    trained = [row for row in metrics if "entropy" in row]
    looked = {row["step"]: row["eval/accuracy"] for row in metrics if "eval/accuracy" in row}
    x = _axes(run, trained, timings)
    at = sorted(looked)
    entropy = np.array([row["entropy"] for row in trained])
    return Curves(
        run.seed, {axis: values[at] for axis, values in x.items()}, np.array([looked[step] for step in at]),
        np.array([entropy[a:b].mean() for a, b in pairwise(at)]), summary,
        load_json(run.folder / PASS_AT, finite=False),
    )  # fmt: skip


def _axes(run: Run, trained: list[dict], timings: list[dict]) -> dict[str, np.ndarray]:
    """Axis -> its value after each step [steps + 1]. Before the first step stand the first responses."""
    train, first = run.arm.config.train, run.arm.first
    a_step = train.prompts * train.group_size
    played = np.array([row.get("played", a_step) for row in trained])
    length = np.array([row["length"] for row in trained])
    begun = sum(row["cpu"] for row in timings if row["step"] == 0)
    return {
        "steps": np.arange(len(trained) + 1.0),
        "rollouts": _summed(first, played),
        "tokens": _summed(first * length[0], played * length),
        "cpu_s": _summed(begun, np.array([row["cpu"] for row in timings if row["step"]])),
        "forwarded": _summed(0.0, np.array([row.get("work/tokens", 0.0) for row in timings if row["step"]])),
    }


def _summed(start: float, parts: np.ndarray) -> np.ndarray:
    """Running totals, [0, start + first part, ...]: the untrained policy costs nothing."""
    return np.concatenate([[0.0], start + parts.cumsum()])


def rows(path: Path) -> list[dict[str, Any]]:
    return [parse_log_row(line) for line in path.read_text(encoding="utf-8").splitlines()]
