"""A second process that makes the robot safe when the motion process is killed, crashes or hangs.

It is forked before the port is taken, with all that is needed already loaded, and waits. The motion process says
goodbye when it ends in order; a pipe that closes without that is its death. While it ticks it also counts in memory
that both see: a count that stands still is a hang, and the guardian ends the motion process.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import select
import signal
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Literal

from robot.motion.body import Body
from robot.motion.watch import prioritise

GOODBYE = b"."
QUIET = 0  # the count while nothing is to be counted
END_S = 0.5  # seconds in which a process that was killed is gone, unless a driver keeps it in the kernel


class Guardian:
    """The motion process' side of its guardian.

    Args:
        body: made, not connected. The guardian uses its own copy, for `rest` and `close` alone.
        how: what to do when the motion process is gone.
        hang_s: seconds without a `beat` after the first one that count as a hang.
        leave: closes what the guardian must not keep open (the line to whoever started the motion process).
    """

    def __init__(self, body: Body, how: Literal["hold", "off"], hang_s: float, leave: Callable[[], None]):
        self._count, self._beats = mmap.mmap(-1, 8), QUIET
        heard, self._told = os.pipe()
        ready, ours = os.pipe()
        sys.stderr.flush()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # libraries' threads: it uses none of what they hold
            self.pid = os.fork()
        if self.pid == 0:
            os.close(self._told)
            _guard(body, how, heard, self._count, hang_s, leave, ours)
        os.close(heard)
        os.close(ours)
        os.read(ready, 1)  # before, what kills the group of this process would kill its guardian too
        os.close(ready)

    def beat(self) -> None:
        """The motion process ticks."""
        self._beats += 1
        self._count[:] = self._beats.to_bytes(8, "little")

    def pause(self) -> None:
        """What follows may take long: no beats are expected until the next one."""
        self._count[:] = QUIET.to_bytes(8, "little")

    def alive(self) -> bool:
        try:
            return os.waitpid(self.pid, os.WNOHANG) == (0, 0)
        except ChildProcessError:
            return False

    def goodbye(self) -> None:
        """The robot is safe: the guardian ends and does nothing."""
        with contextlib.suppress(OSError):
            os.write(self._told, GOODBYE)
        with contextlib.suppress(OSError):
            os.close(self._told)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)


def _guard(
    body: Body, how: Literal["hold", "off"], heard: int, count: mmap.mmap, hang_s: float, leave: Callable[[], None],
    ready: int,
) -> None:  # fmt: skip
    """The guardian's whole life; it never comes back."""
    code = 1
    try:
        os.setsid()  # what is sent to the group of the motion process, or comes from its terminal, is not for it
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(number, signal.SIG_IGN)
        leave()
        prioritise(body)
        parent = os.getppid()
        os.close(ready)
        why = _wait(heard, count, hang_s, parent)
        if why:
            began = time.monotonic()
            problems = body.rest(how)
            body.close()
            _say(why, how, (time.monotonic() - began) * 1e3, problems)
        code = 0
    finally:
        os._exit(code)  # the exit handlers are the motion process' own


def _wait(heard: int, count: mmap.mmap, hang_s: float, parent: int) -> str:
    """Waits for the end of the motion process: '' after a goodbye, or else what became of it."""
    last, since = QUIET.to_bytes(8, "little"), time.monotonic()
    while True:
        if select.select([heard], [], [], hang_s / 4)[0]:
            if os.read(heard, 1) == GOODBYE:
                return ""
            _await_end(parent)
            return "the motion process died"
        if os.getppid() != parent:  # a process that it started may still hold the pipe
            return "the motion process died"
        now, beats = time.monotonic(), count[:]
        if beats != last or beats == QUIET.to_bytes(8, "little"):
            last, since = beats, now
        elif now - since > hang_s:
            with contextlib.suppress(ProcessLookupError):
                os.kill(parent, signal.SIGKILL)  # two that write to one bus would be worse than none
            _await_end(parent)
            return f"the motion process hung for {now - since:.1f} s and was killed"


def _await_end(parent: int) -> None:
    """Until the process has closed all its files: its pipe may go before its port, which it had for itself alone."""
    until = time.monotonic() + END_S
    while os.getppid() == parent and time.monotonic() < until:
        time.sleep(0.001)


def _say(why: str, how: str, ms: float, problems: Sequence[str]) -> None:
    done = f"left the robot at torque {how!r} in {ms:.0f} ms" if how == "off" else f"holds the robot, after {ms:.0f} ms"
    with contextlib.suppress(OSError):
        os.write(2, f"guardian: {why}; {'; '.join(problems) or done}\n".encode())
