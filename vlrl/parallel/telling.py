"""What the command line makes of a run's many processes. Imports no torch."""

from __future__ import annotations

import sys

from vlrl.parallel.world import here
from vlrl.types import UserError

SEVERAL = ("train", "eval", "show")  # commands that know of other processes


def check_command(command: str) -> None:
    """UserError for a command that would be carried out once in every process."""
    if here().size > 1 and command not in SEVERAL:
        raise UserError(f"{command}: runs in one process: start it without accelerate launch or torchrun")


def to_tell(error: UserError) -> str:
    """What a process says of an error; nothing of one that the main process has met as well."""
    world = here()
    if world.main:
        return str(error)
    alike = hasattr(error, "exit_code") or not _met()  # the end of a run, or of reading its configuration
    return "" if alike else f"process {world.rank}: {error}"


def _met() -> bool:
    """Whether the processes have found each other."""
    distributed = sys.modules.get("torch.distributed")
    return distributed is not None and distributed.is_available() and distributed.is_initialized()
