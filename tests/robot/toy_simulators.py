"""Simulators of no package, made in another interpreter by `robot.sim.remote`: numpy alone, and what can go wrong."""

import os
import sys
import time

import numpy as np

LOW, HIGH = np.array([-1.0, -0.5]), np.array([1.0, 0.5])


class Limits:
    """What of a Box a robot reads."""

    low, high = LOW, HIGH


class Walk:
    """A point in the plane, as Gymnasium would have it: it has won past x = 1, and is lost below -1."""

    action_space = Limits
    metadata = {"render_fps": 10}  # noqa: RUF012
    action_names = ("vx", "vy")
    action_units = ("m/s", "m/s")

    def __init__(self, fault="", at=3):
        self.fault, self.at, self.ticks, self.point, self.drift = fault, at, 0, np.zeros(2), 0.0
        print("simulators greet whoever is there", flush=True)

    @property
    def instruction(self):
        return f"Go to the right by {1 - self.point[0]:.0f} m."

    def reset(self, *, seed=None):
        self.ticks = 0
        self.rng = np.random.default_rng(None if self.fault == "unseeded" else seed)
        self.point, self.drift = self.rng.uniform(-0.5, 0.5, 2), self.rng.normal()
        return self.seen(), {}

    def step(self, action):
        self.ticks += 1
        if self.ticks == self.at:
            self.fail()
        self.point = self.point + action / 10 + 1e-4 * self.drift
        x = float(self.point[0])
        return self.seen(), x, abs(x) > 1, False, {"is_success": np.bool_(x > 1), "x": np.array([x]), "who": "walk"}

    def fail(self):
        print("tick", self.at, flush=True)
        if self.fault == "raise":
            raise ArithmeticError("the matrix is singular\nat step 7")
        if self.fault == "die":
            os.kill(os.getpid(), 9)
        if self.fault == "exit":
            sys.exit(3)
        if self.fault == "hang":
            time.sleep(3600)
        if self.fault == "nan":
            self.point = self.point * np.nan

    def seen(self):
        return {"agent": {"pos": self.point, "ticks": self.ticks}, "top": self.picture(12, 8), "note": "no number"}

    def picture(self, width, height):
        rows, columns = np.mgrid[:height, :width]
        shades = [20 * rows, 20 * columns, np.full_like(rows, 100 * abs(self.point[0]) % 255)]
        return np.stack(shades, -1).astype(np.uint8)

    def render(self):
        return self.picture(40, 30)[::-1]  # rows from below, as OpenGL has them


class OldWalk(Walk):
    """The same as gym had it before 0.26: four results, and a seed that is set beforehand."""

    def seed(self, seed):
        self.next_seed = seed

    def reset(self):
        return super().reset(seed=self.next_seed)[0]

    def step(self, action):
        observation, reward, terminated, _, info = super().step(action)
        cut = self.ticks >= 20
        return observation, reward, terminated or cut, {**info, "TimeLimit.truncated": cut and not terminated}


class SuiteWalk(Walk):
    """The same as robosuite 1.4 has it: limits and no space, scenes drawn from numpy's generator of the process."""

    action_space = None
    action_spec = (LOW, HIGH)
    metadata = None
    control_freq = 10

    def reset(self):
        return super().reset(seed=np.random.randint(2**31))[0]

    def step(self, action):
        observation, reward, terminated, _, info = super().step(action)
        return observation, reward, terminated, info


class SavedWalk(Walk):
    """The same with snapshots of its own. Args: fault: `forgets` leaves a part out."""

    def snapshot(self):
        arrays = {"point": self.point, "drift": np.array(self.drift), "ticks": np.array(self.ticks)}
        return {name: each for name, each in arrays.items() if self.fault != "forgets" or name != "drift"}

    def restore(self, arrays):
        self.point, self.ticks = arrays["point"], int(arrays["ticks"])
        self.drift = float(arrays.get("drift", 0.0))
        return self.seen()


class Switch(Walk):
    """One whose actions are a choice of three."""

    class action_space:  # noqa: N801
        n = 3


KINDS = {"gymnasium": Walk, "gym": OldWalk, "robosuite": SuiteWalk, "saved": SavedWalk, "switch": Switch}


def make(kind="gymnasium", fault="", at=3):
    if fault == "make":
        raise RuntimeError("no such asset")
    return KINDS[kind](fault, at)


def hub(n_envs=1):
    """As a folder of lerobot's EnvHub gives it."""

    class Vector:
        envs = tuple(Walk() for _ in range(n_envs))

    return {"suite": {0: Vector()}}


def nothing():
    return 3
