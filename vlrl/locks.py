"""One process at a time in a folder."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from vlrl.types import UserError


@contextmanager
def alone(folder: Path, who: str) -> Iterator[int]:
    """Holds the folder, which is made; the lock goes with the process, however it ends.

    Gives the lock's file descriptor: a process that inherits it holds the folder as well.

    Raises:
        UserError: another process holds it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield descriptor
    except BlockingIOError:
        raise UserError(f"out: another {who} is at work in {folder}") from None
    finally:
        os.close(descriptor)
