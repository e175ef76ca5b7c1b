"""The lease of a serial port: two processes that write to one bus would exchange their packets."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import termios
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from vlrl.leases import hold
from vlrl.types import UserError

FOLDER = Path("/tmp/vlrl-ports")  # one for all users and whatever TMPDIR says
PTYS = "/dev/pts/"


@contextlib.contextmanager
def hold_ports(options: Mapping[str, Any], what: str) -> Iterator[list[int]]:
    """Holds every serial port that a robot's options name -> descriptors, for children that use the ports.

    Args:
        what: the options' key, as the error names it.

    Raises:
        UserError: another process holds one of them.
    """
    with contextlib.ExitStack() as stack:
        remedy = "end it first, or name another port"
        files = [(port, _lease_file(port, what)) for port in ports_of(options)]
        yield [stack.enter_context(hold(file, f"{what}: port {port}", remedy)) for port, file in files]


def ports_of(options: Mapping[str, Any]) -> list[str]:
    """The serial ports in a robot's options: `port`, or `port` of one of its arms. Addresses of networks are none."""
    found = []
    for name, value in options.items():
        if isinstance(value, Mapping):
            found += ports_of(value)
        elif (name == "port" or name.endswith("_port")) and isinstance(value, str) and _is_device(value):
            found.append(value)
    return found


def claim(descriptor: int, port: str) -> None:
    """No other program of this user's can open the port from now on (TIOCEXCL); root's can, hence the lease.

    A pty is left as it is: it stays claimed when whoever claimed it was killed, and the guardian could not open it.
    """
    if not os.path.realpath(port).startswith(PTYS):
        fcntl.ioctl(descriptor, termios.TIOCEXCL)


def _is_device(path: str) -> bool:
    try:
        return stat.S_ISCHR(os.stat(path).st_mode)
    except OSError:  # the driver says what is wrong with it
        return False


def _lease_file(port: str, what: str) -> Path:
    """By the port's real path: a link in /dev/serial/by-id is the same port."""
    try:
        FOLDER.mkdir(exist_ok=True)
        with contextlib.suppress(PermissionError):  # another user made it
            FOLDER.chmod(0o1777)
    except OSError as error:
        raise UserError(f"{what}: {FOLDER} cannot be made: {error.strerror}") from None
    return FOLDER / f"{os.path.realpath(port).strip('/').replace('/', '-')}.lease"
