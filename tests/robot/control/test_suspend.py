"""After the machine has slept, what was observed before is old: a time namespace stands for the sleep.

In it CLOCK_BOOTTIME is ahead by as long as the sleep lasted and CLOCK_MONOTONIC is not, as after a real one.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time

import pytest

from vlrl.system.clock import boottime

SLEPT = 1000
UNSHARE = ("unshare", "--time", "--boottime", str(SLEPT), "--fork")
WAKE = """
import sys, time
import numpy as np
from robot.types import Channel, RobotState
from robot.safety.governor import Governor
from robot.safety.limits import Safety
from robot.control.messages import ActionPlan, Timeline
from robot.control.loop import Silence
from vlrl.system.clock import boottime

observed, monotonic = map(float, sys.argv[1:])
assert time.monotonic() - monotonic < 100, "the monotonic clock slept"
channels, where = (Channel("pan", "deg"),), np.zeros(1, np.float32)

def due(expires):
    timeline = Timeline(channels, 10.0)
    timeline.add(ActionPlan(0, 0, where[None], 10.0, expires, observed), 0)
    return timeline.at(0, boottime())

assert due(observed + 100) is None, "an expired plan goes on"
governor = Governor(channels, Safety(), 10.0)
governor.begin(where)
late = governor.govern(where, due(observed + 1e6).age_s, RobotState(boottime(), where, where), where)
unread = governor.govern(where, 0.0, RobotState(observed, where, where), where)
silence = Silence(1.0, 5.0)
silence._last_heard_s = observed  # the last message came before
print([event.stage for event in late.events], [event.stage for event in unread.events], silence.verdict(boottime())[0])
"""


def sleeping_works() -> bool:
    return bool(shutil.which("unshare")) and subprocess.run([*UNSHARE, "true"], capture_output=True).returncode == 0


@pytest.mark.skipif(not sleeping_works(), reason="needs root and time namespaces (Linux 5.6)")
def test_what_was_observed_before_a_sleep_is_stale_after_it() -> None:
    """The lid is closed in the middle of an episode: on waking the arm would carry on with what it saw an hour ago."""
    command = [*UNSHARE, sys.executable, "-c", WAKE, str(boottime()), str(time.monotonic())]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "['stale'] ['age'] stop", done.stderr


def test_the_clock_never_stands_still() -> None:
    """Ages are differences of it, between processes too."""
    before, monotonic = boottime(), time.monotonic()
    time.sleep(0.01)
    assert boottime() - before >= 0.01
    assert boottime() >= monotonic - 1.0
