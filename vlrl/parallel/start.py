"""Meeting the other processes, as the launcher wants it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vlrl.parallel.world import here, on_cpu, patience

if TYPE_CHECKING:
    from accelerate import Accelerator


def asked(engine: str) -> bool:
    """Whether the launcher asks for an engine of accelerate's, as `FSDP`."""
    return os.environ.get(f"ACCELERATE_USE_{engine}", "").lower() == "true"


def in_parts() -> bool:
    """Whether the launcher asks for weights in parts (FSDP2), for more than one process."""
    return here().size > 1 and asked("FSDP")


def optimizer_in_parts() -> bool:
    """Whether the launcher asks for the optimizer in parts (DeepSpeed's ZeRO 1), for more than one process."""
    return here().size > 1 and asked("DEEPSPEED")


def launched(out: Path, trackers: Sequence[str]) -> Accelerator:
    """The run's place among others and its trackers. A GPU of its own becomes the process's device."""
    from accelerate import Accelerator
    from accelerate.utils import InitProcessGroupKwargs, ProjectConfiguration

    if in_parts():  # else transformers loads weights in the first process alone, for accelerate to spread
        os.environ["FSDP_CPU_RAM_EFFICIENT_LOADING"] = "false"
    place = ProjectConfiguration(project_dir=str(out), logging_dir=str(out / "tensorboard"))
    several: list[Any] | None = [InitProcessGroupKwargs(timeout=patience())] if here().size > 1 else None
    if on_cpu():  # accelerate imports DeepSpeed where it is installed, which else warns that there is no GPU
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    deepspeed = os.environ.pop("ACCELERATE_USE_DEEPSPEED", None)  # which accelerate would let wrap the model
    made = Accelerator(cpu=on_cpu(), log_with=list(trackers) or None, project_config=place, kwargs_handlers=several)
    if deepspeed:
        os.environ["ACCELERATE_USE_DEEPSPEED"] = deepspeed
    return made
