"""`vlrl learn`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from vlrl.learning.config import LearnConfig
from vlrl.learning.learner import Learner, run
from vlrl.locks import hold_folder
from vlrl.progress import Stopper
from vlrl.strict import load_as


def main(path: str, changes: Sequence[str]) -> int:
    """`vlrl learn CONFIG`: watches, learns, writes checkpoints, until it is stopped. The same command goes on."""
    config = load_as(LearnConfig, path, changes)
    torch.set_num_threads(config.threads)
    with hold_folder(Path(config.out)), Stopper() as stopper:
        learner = Learner(config)
        where = f"goes on after round {learner.round}" if learner.round else f"starts from {config.start}"
        print(
            f"{config.out}: {where}; waits for {config.every} new episodes in {', '.join(config.episodes)}", flush=True
        )
        run(learner, lambda: stopper.stop)
    return 0
