"""Faults of the bus and the servos, under lerobot's unmodified driver: what the motion process does about them.

The arm sweeps at 30 deg/s. Where nothing else is said, a servo's fault is the shoulder's, which moves.
"""

import contextlib
import queue
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from arm import Arm
from scenario import Fault, check, ids, tell
from ticks import Safe, eventually, safe

from robot.deploy.recorder import read_take

JUMPING = Path(__file__).parent / "jumping_clock"
PAN = {"servo": "shoulder_pan"}
ROUND = 40  # ticks in which every servo is asked for everything about its health once, and 4 more


def of(kind, **options):
    return lambda arm: arm.fault(kind, **options)


PASSING = [
    Fault("answer lost", "bus", "drop, 1", of("drop", count=1)),
    Fault("three answers lost", "bus", "drop, 3", of("drop", count=3)),
    Fault("late answer", "bus", "late, 80 ms, 1", of("late", ms=80, count=1)),
    Fault("three late answers", "bus", "late, 80 ms, 3", of("late", ms=80, count=3)),
    Fault("flipped bits", "bus", "corrupt, 2", of("corrupt", count=2)),
    Fault("answer twice", "bus", "duplicate, 3", of("duplicate", count=3)),
    Fault("answer cut short", "bus", "short, 2", of("short", count=2)),
    Fault("noise on the line", "bus", "noise, 5", of("noise", count=5)),
    Fault("silent for 0.3 s", "bus", "silent, 0.3 s", of("silent", seconds=0.3)),
    Fault("servo silent for 0.3 s", "servo", "mute, 0.3 s", of("mute", seconds=0.3, **PAN)),
]

STOPPING = [
    Fault("silent bus", "bus", "silent", of("silent"), code=4, says="bus hold: no reading"),
    Fault("unplugged in a move", "bus", "unplug", of("unplug"), code=4, says="bus hold: no"),
    Fault("servo dead", "servo", "dead", of("dead", **PAN), code=4, says="bus hold: no reading"),
    Fault("power lost", "servo", "power", of("power"), code=4, says="bus hold: no reading"),
    Fault("power lost for 0.2 s", "servo", "power, 0.2 s", of("power", seconds=0.2), code=3, limit=8),
    Fault(
        "overheats",
        "servo",
        "overheat, 8 deg C/s",
        of("overheat", rate=8, **PAN),
        code=3,
        limit=None,
        says="temperature",
    ),
    Fault("torque lost", "servo", "torque", of("torque", **PAN), code=3, limit=ROUND, says=""),
    Fault("restarts", "servo", "reset", of("reset", **PAN), code=3, limit=ROUND, says=""),
    Fault("overload", "servo", "overload", of("overload", **PAN), code=3, limit=ROUND, says="error"),
    Fault("low voltage", "servo", "voltage, 5 V", of("voltage", volts=5), code=3, limit=ROUND),
    Fault("encoder stuck", "servo", "stuck", of("stuck", **PAN), code=3, limit=18, says="stuck"),
    Fault("joint blocked", "servo", "jam", of("jam", **PAN), code=3, limit=None, says="error"),
    Fault("motion process killed", "process", "SIGKILL", lambda arm: arm.kill(), code=-9),
    Fault("motion process hangs", "process", "SIGSTOP", lambda arm: arm.kill(signal.SIGSTOP), code=-9),
]


class Spares:
    """Arms that are made ready while others are being harmed. To be closed."""

    def __init__(self, folder):
        self._folder, self._ready, self._ending = folder, queue.Queue(1), threading.Event()
        self._thread = threading.Thread(target=self._make, daemon=True)
        self._thread.start()

    def take(self):
        """A new arm, that moves."""
        arm = self._ready.get(timeout=180)
        if isinstance(arm, Exception):
            raise arm
        return arm.moving()

    def close(self):
        self._ending.set()
        while self._thread.is_alive() or not self._ready.empty():  # one is ready, and another may be in the making
            with contextlib.suppress(queue.Empty):
                arm = self._ready.get(timeout=0.1)
                if not isinstance(arm, Exception):
                    arm.close()

    def _make(self):
        number = 0
        while not self._ending.is_set():
            number += 1
            folder = self._folder / str(number)
            folder.mkdir()
            try:
                made = Arm(folder)
            except Exception as error:
                made = error
            self._ready.put(made)


@pytest.fixture(scope="module")
def spares(tmp_path_factory):
    made = Spares(tmp_path_factory.mktemp("arms"))
    yield made
    made.close()


class Shared:
    """One arm for the faults that pass. To be closed."""

    def __init__(self, spares):
        self._spares, self._arm = spares, None

    def get(self):
        if self._arm is None or not self._arm.motion.alive:
            self.close()
            self._arm = self._spares.take()
        return self._arm

    def close(self):
        if self._arm is not None:
            self._arm.close()


@pytest.fixture(scope="module")
def shared(spares):
    made = Shared(spares)
    yield made
    made.close()


def recorded(arm):
    """The ticks of the recording: all that came are there, none is missing between them."""
    seen = [each.tick for each in arm.ticks()]
    arm.take_writer.close()
    told = [fields["tick"] for fields, _ in read_take(arm.take_writer.path) if fields["kind"] == "tick"]
    assert told == list(range(told[0], told[0] + len(told))) and told == seen
    return told


def lag(arm, since):
    """By how much readings differ from where the arm was when they were begun: degrees, the median while it moves."""
    samples = arm.emulator.samples(since)
    times, pan = [t for t, _ in samples], [pose[0] for _, pose in samples]
    ticks = [each for each in arm.ticks() if times[0] < each.t < times[-1]]
    return float(np.median([abs(each.measured[0] - np.interp(each.t, times, pan)) for each in ticks]))


@pytest.mark.parametrize("fault", PASSING, ids=ids)
def test_is_passed_over(shared, fault, record_property):
    """A bench's ordinary disturbance must not end a run, and must not leave the readings one cycle late for ever."""
    arm = shared.get().moving()
    began = fault.begin(arm)
    eventually(lambda: not arm.emulator.truth()["faults"], "the fault is over")
    after = time.monotonic()
    arm.moving(30)
    found = safe(arm.ticks(), began, after)
    told = [each for each in arm.ticks() if began < each.t and not each.free]
    assert not any(each.stopped for each in told)
    assert lag(arm, after) < 0.5  # one cycle late is 1 degree
    did = "goes on" if not told else f"holds {len(told)} ticks, goes on"
    tell(record_property, fault, did, found if told else None, None)


@pytest.fixture
def another(spares):
    """A new arm for a fault that ends it."""
    taken = spares.take()
    yield taken
    taken.close()


@pytest.mark.parametrize("fault", STOPPING, ids=ids)
def test_stops(another, fault, record_property):
    """The arm must be held in time and then left without torque; what was recorded stays."""
    arm = another
    began = fault.begin(arm)
    if fault.kind == "process":
        eventually(lambda: not arm.motion.alive, "it ends")
        held = of_log(arm, began)
    else:
        eventually(lambda: not arm.motion.alive or arm.ticks()[-1].stopped, lambda: arm.ticks()[-2:])
        held = safe(arm.ticks(), began)
    arm.stop()
    code = arm.motion.close().code
    told = recorded(arm)
    moved = travel(arm, began)
    tell(
        record_property,
        fault,
        f"held, then torque off ({', '.join(sorted(arm.torque())) or 'none'} left)",
        held,
        code,
        moved=moved,
    )
    assert code == fault.code
    assert told[-1] >= 12
    check(fault, held)


def travel(arm, began):
    """How far the shoulder went after a fault began, degrees."""
    pans = [pose[0] for t, pose in arm.emulator.samples(began)]
    return round(max(pans) - min(pans), 1) if pans else 0.0


def of_log(arm, began):
    """As `safe`, by what was written to the servos: the motion process can tell no more."""
    eventually(lambda: not arm.torque(), "torque off")
    log = arm.emulator.log(began)
    goals = len({each["t"] for each in log if each["what"] == "goal"})
    off = min(each["t"] for each in log if each["what"] == "torque")
    return Safe(goals, goals, 1e3 * (off - began), "guardian: torque off")
