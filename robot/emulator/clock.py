"""The thread that moves arms by as much time as has gone by."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Sequence

from robot.emulator.arm import Arm
from robot.emulator.leader import Leader
from robot.so101_model import STEP

EVERY = 0.005  # seconds between moves
SWITCH = 0.0002  # seconds that a thread may keep the others from running: answers are to be quick
BEHIND = 0.1  # seconds: what a busy computer may owe; more is lost, and counted


class Clock:
    """Moves arms in wall-clock time. To be started and closed; `fault` says why it stopped by itself."""

    def __init__(self, arms: Sequence[Arm | Leader]):
        self._arms, self._closing = arms, threading.Event()
        self._thread = threading.Thread(target=self._run, name="physics", daemon=True)
        self.lost, self.fault, self._began = 0.0, "", 0.0  # lost: seconds that were not simulated
        self.busy = 0.0  # seconds of the processor

    def start(self) -> None:
        sys.setswitchinterval(SWITCH)
        self._began = time.monotonic()
        self._thread.start()

    def close(self) -> None:
        self._closing.set()
        self._thread.join()

    def share(self) -> float:
        """The part of one core that moving the arms takes."""
        return self.busy / max(time.monotonic() - self._began, 1e-9)

    def _run(self) -> None:
        at = time.monotonic()
        while not self._closing.wait(EVERY):
            late = time.monotonic() - at - BEHIND
            if late > 0:
                self.lost, at = self.lost + late, at + late
            steps = int((time.monotonic() - at) / STEP)
            at += steps * STEP
            try:
                self._move(steps)
            except Exception as error:  # unstable physics: what is asked for next is told so
                self.fault = f"the simulation stopped: {error}"
                return
            self.busy = time.thread_time()

    def _move(self, steps: int) -> None:
        for arm in self._arms if steps else ():
            with arm.chain.lock:
                arm.advance(steps)
