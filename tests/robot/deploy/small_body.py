"""An arm that runs into something; importable by the motion process too."""

import numpy as np

from robot.types import Channel, RobotDriver, RobotState, RobotStatus
from vlrl.system.clock import boottime

WALL, DONE = 20.0, 30.0  # degrees: where the way is blocked, and where the job is done


class Walled(RobotDriver):
    """Two joints that are where they are sent, but `pan` does not pass WALL.

    Args:
        gives: so many times it goes back and comes again, then the wall is gone; in every other scene it never is.
    """

    simulated, hz = True, 50.0
    channels = (Channel("pan.pos", "deg"), Channel("lift.pos", "deg"))
    names = ("pan.pos", "lift.pos")

    def __init__(self, gives: int = 2):
        self._gives, self._where, self._hits, self._free = gives, np.zeros(2, np.float32), 0, False
        self._noise = 0.05

    def connect(self):
        pass

    def begin(self, seed):
        self._hits, self._solid, self._free = 0, seed % 2 == 1, True

    def sense(self):
        done = bool(self._where[0] > DONE)
        self._noise = -self._noise  # equal readings would be a bus that repeats itself
        where = self._where + np.float32([0, self._noise])
        return RobotState(boottime(), where, where, signals=RobotStatus(success=done))

    def send(self, target):
        here = target.copy()
        if target[0] > WALL and (self._solid or self._hits <= self._gives):
            self._hits += self._free
            self._free, here[0] = False, WALL
        self._free = self._free or here[0] < WALL - 3
        self._where = here
        return target

    def rest(self, how):
        return []

    def close(self):
        pass


class Ahead:
    """A policy, or one that resets: goes on by so many degrees from where the arm is."""

    version = "1"

    def __init__(self, spec, by, name):
        self.spec, self._by, self.name, self.episodes = spec, by, name, []

    def infer(self, asked):
        self.episodes += [each.episode for each in asked]
        chunk = np.linspace(0.2, 1, self.spec.chunk, dtype=np.float32)[:, None] * np.float32([self._by, 0])
        return [each.state + chunk for each in asked]

    def forget(self, session):
        pass
