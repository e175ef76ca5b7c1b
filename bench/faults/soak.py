"""Tiny steps for a long time: whether memory, file handles or threads grow (docs/reliability.md).

    python bench/faults.py soak [MINUTES] [--out FIGURE.png]

Every step trains the embedded model on GUI grounding, evaluates and saves a checkpoint, which a long run does now and
then: 30 minutes of such steps open and close what a day of a run does. Numbers are of this process, read from the
kernel. The first fifth, in which caches fill, is left out of the slopes.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
import threading
import time
from pathlib import Path

PAGE = os.sysconf("SC_PAGE_SIZE") / 2**20
WARM = 0.2  # share of the time after which growth counts
CHANGES = (
    *("task.pool=64", "task.held_out=4", "policy.max_tokens=6", "train.prompts_per_step=2", "train.group_size=2"),
    *(
        "train.num_minibatches=1",
        "train.lr=1e-5",
        "eval.every_steps=1",
        "eval.batch_size=4",
        "log.checkpoint_every=1",
        "log.keep_checkpoints=1",
    ),
    *("log.rollouts_every=1", "log.rollouts=2", "log.trackers=[tensorboard]"),
)


def seen() -> dict[str, float]:
    """Memory in MB, open files and threads of this process."""
    return {
        "memory_mb": int(Path("/proc/self/statm").read_text().split()[1]) * PAGE,
        "files": float(len(os.listdir("/proc/self/fd"))),
        "threads": float(threading.active_count()),
    }


def soaked(minutes: float, folder: Path) -> list[dict[str, float]]:
    """What was seen after each step of a run that is asked to stop after so many minutes."""
    import signal

    from vlrl.logging import StoppedError
    from vlrl.recipe_checks import load_config
    from vlrl.runner import Runner
    from vlrl.trainer import RLTrainer

    recipe = Path(__file__).parents[2] / "configs" / "gui_grounding.yaml"
    made = load_config(recipe, [*CHANGES, f"out={folder / 'run'}", "train.steps=10000000"])
    rows, begun = [], time.monotonic()

    class Looks:
        """A hook: looks after each step."""

        def after(self, step: int, row: dict) -> None:
            passed = time.monotonic() - begun
            rows.append({"step": float(step), "minutes": passed / 60, **seen()})
            if passed > minutes * 60:
                os.kill(os.getpid(), signal.SIGTERM)

    class Watched(RLTrainer):
        """The same run, with the hook."""

        def setup(self, saved: Path | None = None) -> None:
            super().setup(saved)
            self.callbacks.append(Looks())

    with contextlib.suppress(StoppedError):
        Runner(made, Watched(made)).run()
    return rows


def slope(rows: list[dict[str, float]], name: str) -> float:
    """Growth of a number over a thousand steps, by least squares."""
    import numpy as np

    late = [row for row in rows if row["minutes"] >= WARM * rows[-1]["minutes"]]
    return float(np.polyfit([row["step"] for row in late], [row[name] for row in late], 1)[0] * 1000)


def drawn(rows: list[dict[str, float]], file: Path) -> None:
    """Memory and open files over steps."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, 1, sharex=True, figsize=(7, 4), layout="constrained")
    steps = [row["step"] for row in rows]
    for axis, name, label in zip(axes, ("memory_mb", "files"), ("memory, MB", "open files"), strict=True):
        axis.plot(steps, [row[name] for row in rows], linewidth=1)
        axis.set_ylabel(label)
        axis.set_ylim(bottom=0)
        axis.grid(alpha=0.3)
    axes[1].set_xlabel("steps, each with an evaluation and a checkpoint")
    figure.savefig(file, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("minutes", nargs="?", type=float, default=30.0)
    parser.add_argument("--out", default="docs/soak.png")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = soaked(options.minutes, Path(folder))
    drawn(rows, Path(options.out))
    growth = {f"{name} a 1000 steps": round(slope(rows, name), 3) for name in ("memory_mb", "files", "threads")}
    print(json.dumps({"steps": len(rows), "minutes": round(rows[-1]["minutes"], 1), "last": rows[-1], **growth}))


if __name__ == "__main__":
    sys.exit(main())
