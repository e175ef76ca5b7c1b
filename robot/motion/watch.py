"""What is counted and timed around the tick: silence of whoever started the process, faults in a row, lateness."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import struct
import time
from typing import Literal

from robot.motion.messages import Timing
from vlrl.system.clock import boottime

TURN_NS = 100_000  # the shortest turn that the kernel grants
SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}  # numbers of the system call


class Silence:
    """How long the other side has said nothing.

    Args:
        silence_s: seconds after which its plans no longer count.
        stop_s: further seconds after which the robot is stopped.
    """

    def __init__(self, silence_s: float, stop_s: float):
        self._hold, self._stop = silence_s, silence_s + stop_s
        self._heard = boottime()

    def heard(self) -> None:
        self._heard = boottime()

    def verdict(self, now: float) -> tuple[Literal["", "hold", "stop"], float]:
        """What to do, and the seconds of silence."""
        quiet = now - self._heard
        return ("stop" if quiet > self._stop else "hold" if quiet > self._hold else ""), quiet


class Clock:
    """Ticks at fixed times of the monotonic clock. A tick that took too long delays the next ones, it adds none."""

    def __init__(self, hz: float):
        self._period = 1 / hz
        self._due = time.monotonic()
        self._overruns = 0

    def begin(self) -> Timing:
        """A tick begins now."""
        return Timing(max(0.0, time.monotonic() - self._due), self._overruns)

    def end(self) -> float:
        """Its work is done: seconds that are left of it."""
        self._due += self._period
        left = self._due - time.monotonic()
        if left < 0:
            self._overruns += 1
            if left < -self._period:
                self._due = time.monotonic()
        return max(0.0, left)

    def wait(self) -> None:
        """Until the next tick."""
        time.sleep(max(0.0, self._due - time.monotonic()))

    def again(self) -> None:
        """Something took long that was no tick: the next one is due now."""
        self._due = time.monotonic()


def prioritise(body: object) -> Literal["nice", "normal"]:
    """Lets a real robot's ticks go before other work, as far as this user may; a simulator's are ordinary work.

    Not SCHED_FIFO: lerobot's buses wait for a reply in a busy loop, which at that priority keeps the kernel from
    bringing the reply (measured: 20 of 240 reads lost on two busy cores, none without).
    """
    if getattr(body, "simulated", False):
        return "normal"
    priority = "normal"
    with contextlib.suppress(OSError):
        os.nice(-10)
        priority = "nice"
    shorten_turns()
    return priority


def shorten_turns() -> None:
    """Asks for short turns on a busy core, which come sooner: this thread's share stays the same, so anybody may.

    Linux 6.12 and later (EEVDF: sched_runtime of SCHED_OTHER); elsewhere nothing happens. Measured with both of two
    cores busy, 6 x 3 s in turn: periods were off by 6.1 ms (p95) without and 4.5 ms with it at 30 Hz, 5.6 and 3.4 ms at
    100 Hz.
    """
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    attributes = struct.pack("=IIQiIQQQII", 56, 0, 0, nice, 0, TURN_NS, 0, 0, 0, 0)  # struct sched_attr
    with contextlib.suppress(KeyError, OSError, AttributeError):
        ctypes.CDLL(None).syscall(SCHED_SETATTR[platform.machine()], 0, attributes, 0)
