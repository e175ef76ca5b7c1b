"""Meeting the other processes, as the launcher wants it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vlrl.locks import HeldError, hold_folder
from vlrl.parallel.world import here, on_cpu, patience
from vlrl.types import UserError

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
    with _without_deepspeed():
        return Accelerator(cpu=on_cpu(), log_with=list(trackers) or None, project_config=place, kwargs_handlers=several)


@contextmanager
def hold_run(out: Path) -> Iterator[None]:
    """The first process holds the run folder (`vlrl.locks`) for all.

    Raises:
        HeldError: in every process, where somebody else holds it.
    """
    world, problem = here(), None
    if world.size > 1:
        with _without_deepspeed():
            world.join()
    with ExitStack() as held:
        if world.main:
            try:
                held.enter_context(hold_folder(out))
            except UserError as error:
                problem = str(error)
        if problem := world.gather(problem)[0]:
            raise HeldError(problem)
        yield


@contextmanager
def _without_deepspeed() -> Iterator[None]:
    """Keeps accelerate from wrapping the model in DeepSpeed, where the launcher asks for that."""
    if on_cpu():  # accelerate imports DeepSpeed where it is installed, which else warns that there is no GPU
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    asked_for = os.environ.pop("ACCELERATE_USE_DEEPSPEED", None)
    try:
        yield
    finally:
        if asked_for:
            os.environ["ACCELERATE_USE_DEEPSPEED"] = asked_for
