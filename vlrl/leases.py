"""A file that one process at a time holds, with the name of its holder in it.

The lease is `flock`'s: it goes with the process, however that ends, and stays as long as a child that inherited its
descriptor lives. The file itself stays, so that nobody can lock a name that was removed meanwhile.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import platform
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from vlrl.decoders import parse_json
from vlrl.types import UserError

COMMAND = 120  # characters of the holder's command line that are kept


@contextlib.contextmanager
def hold(file: Path, what: str, remedy: str) -> Iterator[int]:
    """Holds a file, which is made, in a folder that is there -> its descriptor, to be inherited or to be signed.

    Args:
        what: what the file stands for, as the error names it.
        remedy: what the user can do.

    Raises:
        UserError: another process holds it, or it cannot be locked.
    """
    try:
        descriptor = _open(file)
    except OSError as error:
        raise UserError(f"{what}: {file} cannot be made: {error.strerror}") from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        sign(descriptor)
        yield descriptor
    except BlockingIOError:
        raise UserError(f"{what} is in use by {describe_holder(descriptor)}: {remedy}") from None
    finally:
        os.close(descriptor)


def sign(descriptor: int) -> None:
    """This process is the holder from now on, for whoever reads the error."""
    since = time.strftime("%Y-%m-%d %H:%M:%S")
    command = " ".join([Path(sys.argv[0]).name, *sys.argv[1:]])[:COMMAND]
    holder = {"pid": os.getpid(), "host": platform.node(), "command": command, "since": since}
    data = json.dumps(holder).encode()
    os.pwrite(descriptor, data, 0)
    os.ftruncate(descriptor, len(data))


def _open(file: Path) -> int:
    """Without O_CREAT first: it is refused for another user's file in a folder like /tmp (fs.protected_regular)."""
    with contextlib.suppress(FileNotFoundError):
        return os.open(file, os.O_RDWR | os.O_NOFOLLOW)
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    with contextlib.suppress(PermissionError):
        os.fchmod(descriptor, 0o666)  # whatever the umask: other users must be able to hold it as well
    return descriptor


def describe_holder(descriptor: int) -> str:
    """Who signed a lease that another process holds."""
    try:
        holder = parse_json(os.pread(descriptor, 4096, 0))
        named = "process {pid} on {host} ({command}), since {since}".format(**holder)
    except (ValueError, KeyError, TypeError):  # it has not signed yet
        return "another process"
    if holder["host"] == platform.node() and not Path(f"/proc/{holder['pid']}").exists() and Path("/proc/1").exists():
        return f"a process that was started by {named}, which has ended"
    return named
