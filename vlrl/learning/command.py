"""`vlrl learn`."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch

from vlrl.learning.config import LearnConfig
from vlrl.learning.learner import Learner, run
from vlrl.progress import Stopper
from vlrl.strict import load_as
from vlrl.types import UserError


def main(path: str, changes: Sequence[str]) -> int:
    """`vlrl learn CONFIG`: watches, learns, writes checkpoints, until it is stopped. The same command goes on."""
    config = load_as(LearnConfig, path, changes)
    torch.set_num_threads(config.threads)
    with _alone(Path(config.out)), Stopper() as stopper:
        learner = Learner(config)
        where = f"goes on after round {learner.round}" if learner.round else f"starts from {config.start}"
        print(
            f"{config.out}: {where}; waits for {config.every} new episodes in {', '.join(config.episodes)}", flush=True
        )
        run(learner, lambda: stopper.stop)
    return 0


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """The lock goes with the process, however it ends."""
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise UserError(f"out: another learner is at work in {folder}") from None
    finally:
        os.close(descriptor)
