"""A robot's simulator of numpy alone, and how an environment's process dies where the file `kill` asks for it."""

import os
import signal
from pathlib import Path

import numpy as np

steps = 0  # of this process


def die_once(pid):
    """Ends a process at the step, of all that this process has taken, that `kill` holds; once."""
    global steps
    steps += 1
    if (order := Path("kill")).exists() and steps == int(order.read_text()):
        order.unlink()
        os.kill(pid, signal.SIGKILL)


class Box:
    """What of a Box a robot reads."""

    low, high = np.array([-1.0, -1.0]), np.array([1.0, 1.0])


class Point:
    """A simulator of no package: a point has won when it is farther from the origin than it began."""

    action_space = Box
    metadata = {"render_fps": 10}  # noqa: RUF012

    def reset(self, *, seed=None):
        self.point, self.ticks = np.random.default_rng(seed).uniform(-1, 1, 2), 0
        self.limit = 1.05 * np.abs(self.point).max()
        return {"point": self.point}, {}

    def step(self, action):
        die_once(os.getpid())
        self.point, self.ticks = self.point + action / 2, self.ticks + 1
        won = bool(self.ticks == 4 and np.abs(self.point).max() > self.limit)
        return {"point": self.point}, float(won), won, False, {"is_success": won}


def make_env(n_envs=1, use_async_envs=False):
    """As a folder of lerobot's EnvHub gives it."""

    class Vector:
        envs = tuple(Point() for _ in range(n_envs))

    return {"points": {0: Vector()}}
