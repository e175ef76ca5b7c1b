"""Meeting the other processes, as the launcher wants it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from vlrl.parallel.world import here, on_cpu, patience

if TYPE_CHECKING:
    from accelerate import Accelerator


def launched(out: Path, trackers: Sequence[str]) -> Accelerator:
    """The run's place among others and its trackers. A GPU of its own becomes the process's device."""
    from accelerate import Accelerator
    from accelerate.utils import InitProcessGroupKwargs, ProjectConfiguration

    place = ProjectConfiguration(project_dir=out, logging_dir=out / "tensorboard")
    several = [InitProcessGroupKwargs(timeout=patience())] if here().size > 1 else None
    return Accelerator(cpu=on_cpu(), log_with=trackers or None, project_config=place, kwargs_handlers=several)
