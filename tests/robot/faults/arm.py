"""lerobot's own driver on the emulated arm, in a motion process that sweeps the shoulder to and fro; it is recorded."""

import contextlib
import os
import signal
import sys
import threading
import time

import numpy as np
from ticks import eventually, of_ticked

from robot.control.messages import ActionPlan
from robot.control.process import Motion
from robot.deploy.recorder import TakeWriter
from robot.emulator.control import Emulator
from robot.safety.limits import Safety
from robot.sim.so101 import JOINTS
from vlrl.system.clock import boottime

HZ, SPEED, TURN = 30.0, 30.0, 40.0  # ticks a second, deg/s, deg
SAFETY = Safety.model_validate(
    {"silence_s": 60.0, "stale": {"hold_s": 60.0, "stop_s": 60.0},
     "default": {"speed": 60, "acceleration": 720},
     "health": {"temperature": {"high": 60}, "torque": {"low": 0.5}, "voltage": {"low": 9}, "error": {"high": 0.5}}}
)  # fmt: skip
DRIVER = {"name": "lerobot", "type": "so101_follower", "id": "arm", "hz": HZ, "drive": "speed"}


def hardware(emulator):
    """The emulator as quick as what it stands for, on a busy machine too, as far as this user may."""
    for task in os.listdir(f"/proc/{emulator.pid}/task"):
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, int(task), -15)
    return emulator


class Arm:
    """To be closed. Args: folders: before the packages of the motion process."""

    def __init__(self, folder, safety=SAFETY, folders=()):
        self.emulator = hardware(Emulator().__enter__())
        self.emulator.calibration(folder, "arm")
        body = DRIVER | {"port": self.emulator.port, "calibration_dir": str(folder)}
        before = sys.path[:]
        sys.path[:0] = list(map(str, folders))
        try:
            self.motion = Motion(body, safety, patience=120)
        except BaseException:
            self.emulator.close()
            raise
        finally:
            sys.path[:] = before
        about = self.motion.info
        self.take_writer = TakeWriter(
            folder / "arm.spool", {"hz": about.hz, "channels": [each.name for each in about.channels]}
        )
        self._told, self._way, self._seq, self._ending = [], 1.0, 0, threading.Event()
        self.sweeping = True
        self._lock = threading.Lock()
        self.motion.begin(0)
        self._thread = threading.Thread(target=self._live, daemon=True)
        self._thread.start()

    def ticks(self):
        """All so far."""
        with self._lock:
            for ticked in self.motion.ticks():
                self._told.append(of_ticked(ticked))
                self.take_writer.tick(ticked, {})
            return list(self._told)

    def moving(self, ticks=12):
        """Waits until the arm is moved: in three of four of the last ticks, so many, from now on."""
        start = len(self.ticks())

        def found():
            told = self.ticks()[start:]
            free = [each.free for each in told[-ticks:]]
            return len(free) == ticks and free[-1] and sum(free) >= 0.75 * ticks

        eventually(found, lambda: [(each.source, each.stopped, each.events) for each in self.ticks()[-3:]])
        return self

    def fault(self, kind, **options):
        """boottime() when it began."""
        began = time.monotonic()
        self.emulator.fault(kind, **options)
        log = self.emulator.log(began)
        return next(each["t"] for each in reversed(log) if each["what"] == "fault") + boottime() - time.monotonic()

    def mend(self):
        """All faults end and a person re-arms; waits until the arm moves again."""
        self.emulator.clear()
        until = boottime()
        self.motion.rearm()
        return until

    def kill(self, number=signal.SIGKILL):
        """boottime() when the motion process was sent the signal."""
        began = boottime()
        os.kill(self.motion.pid, number)
        return began

    def pose(self):
        """Where the arm truly is, degrees and percent [6]."""
        truth = self.emulator.truth()["qpos_deg"]
        return np.array([truth[name] for name in JOINTS])

    def torque(self):
        """Who is under torque."""
        return {name for name, on in self.emulator.truth()["torque"].items() if on}

    def stop(self):
        """No plans any more."""
        self._ending.set()
        self._thread.join()

    def close(self):
        """How the motion process ended; once more is no harm."""
        self.stop()
        ended = self.motion.close()
        self.ticks()
        self.take_writer.close()
        self.emulator.close()
        return ended

    def _live(self):
        while not self._ending.wait(0.1):
            self.ticks()
            latest = self.motion.latest()
            if latest is None or not self.motion.alive:
                continue
            if not self.sweeping:
                self.motion.pet()
                continue
            pan = latest.sensed.measured[0]
            self._way = -1.0 if pan > TURN else 1.0 if pan < -TURN else self._way
            actions = np.zeros((60, 6), np.float32)
            actions[:, 0] = self._way * SPEED
            now, self._seq = boottime(), self._seq + 1
            self.motion.plan(ActionPlan(self._seq, None, actions, HZ, now + 3.0, now))
