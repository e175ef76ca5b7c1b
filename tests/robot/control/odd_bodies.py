"""Bodies that note what is done to them, and what can go wrong with one; importable by the motion process too."""

import json
import os
import time
from pathlib import Path

import numpy as np

from robot.types import Channel, RobotDriver, RobotError, RobotState
from vlrl.system.clock import boottime


class Noted(RobotDriver):
    """Two joints that are where they are sent. Each call is a line of JSON in the file `log`, with its process.

    Args:
        fault: what happens from the `at`-th reading on: raise, flicker (one reading in three raises), slow, hang, die,
            nan; or in another call: connect, begin, send, rest; late: to rest takes a second.
    """

    def __init__(self, *, log: str, hz: float = 50.0, fault: str = "", at: int = 10):
        self.hz, self.fault, self.at = hz, fault, at
        self.channels = (Channel("a.pos", "deg"), Channel("b.pos", "deg"))
        self.names = ("a.pos", "b.pos")
        self.ranges = {"a.pos": (-30.0, 30.0)}
        self.at_exit, self.at_fault = "hold", "off"
        self._log, self._where, self._readings = Path(log), np.zeros(2, np.float32), 0
        self._note("make")

    def connect(self):
        self._note("connect")
        self._fail("connect")

    def begin(self, seed):
        self._note("begin", seed=seed)
        self._fail("begin")

    def sense(self):
        t = boottime()
        self._readings += 1
        if self._readings >= self.at:
            self._odd()
        state = np.full(2, np.nan, np.float32) if self.fault == "nan" and self._readings >= self.at else self._where
        return RobotState(t, state.copy(), state.copy())

    def send(self, target):
        self._fail("send")
        self._where = target.copy()
        return target

    def rest(self, how):
        if self.fault == "late":
            time.sleep(1.0)
        self._note("rest", how=how)
        return ["joint b does not answer"] if self.fault == "rest" else []

    def close(self):
        self._note("close")

    def _odd(self):
        if self.fault == "raise" or (self.fault == "flicker" and self._readings % 3 == 0):
            raise OSError(5, "Input/output error")
        if self.fault == "slow":
            time.sleep(1.5 / self.hz)
        if self.fault == "hang":
            time.sleep(3600)
        if self.fault == "die":
            os._exit(77)

    def _fail(self, call):
        if self.fault == call:
            raise RobotError(f"{call} went wrong\nand this is a second line")

    def _note(self, did, **more):
        with self._log.open("a") as file:
            file.write(json.dumps({"did": did, "pid": os.getpid(), "t": boottime(), **more}) + "\n")


class Silent(Noted):
    """A user's own class that cannot be made."""

    def __init__(self):
        raise ValueError("no such thing")
