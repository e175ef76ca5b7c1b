"""A robot without physics, and what can go wrong with one; importable by worker processes too."""

import os
import time

import numpy as np
from PIL import Image

from robot.types import ActionSpec, Robot, RobotError, RobotStatus, Snapshot
from vlrl.types import Observation


class Slide(Robot):
    """A point in the plane that shall pass x = 1. Falls off below x = -1.

    Args:
        fault: what happens at tick `at` of an episode, or when it is made (`make`) or sent home (`home`).
    """

    hz = 10.0
    controls = ActionSpec(("vx", "vy"), ("m/s", "m/s"), np.array([-1, -0.5]), np.array([1, 0.5]))

    def __init__(self, *, fault: str = "", at: int = 3, camera: bool = False):
        self.fault, self.at, self.camera = fault, at, camera
        self.moved: list[np.ndarray] = []
        self.looks = 0
        self.closed = False
        self.seed, self.state, self.ticks = 0, np.zeros(2, np.float32), 0
        if fault == "make":
            raise RuntimeError("no such port")

    def reset(self, seed):
        if self.fault == "home":
            raise RobotError("joint 3 does not answer")
        self.seed, self.ticks = seed, 0
        self.state = np.random.default_rng(seed).uniform(-0.5, 0.5, 2).astype(np.float32)

    def get_observation(self):
        self.looks += 1
        due = self.ticks >= self.at
        state = np.full(2, np.nan, np.float32) if due and self.fault == "nan_state" else self.state.copy()
        images = []
        if self.camera:
            black = due and (self.fault == "black" or (self.fault == "flicker" and self.looks % 2))
            images.append(
                Image.new("RGB", (8, 6)) if black else Image.linear_gradient("L").resize((8, 6)).convert("RGB")
            )
        return Observation((*images, "Go to the right."), state)

    def send_action(self, control):
        control = self.controls.checked(control)
        self.moved.append(control)
        self.ticks += 1
        if self.ticks == self.at:
            self._fail()
        self.state = self.state + control / np.float32(self.hz)
        return control

    def _fail(self):
        if self.fault == "raise":
            raise ArithmeticError("the matrix is singular\nat step 7")
        if self.fault == "die":
            os._exit(7)
        if self.fault == "hang":
            time.sleep(3600)

    def status(self):
        number = float("nan") if self.fault == "nan_signal" and self.ticks >= self.at else float(self.state[0])
        won = bool(self.state[0] > 1)
        lost = "it fell off" if self.state[0] < -1 else None
        return RobotStatus(
            won, float(won), lost, "a hand was in the way" if self.fault == "hand" else None, {"x": number}
        )

    def snapshot(self):
        return Snapshot(self.seed, {"state": self.state.copy(), "ticks": np.array(self.ticks)})

    def restore(self, snapshot):
        self.seed, self.state = snapshot.seed, snapshot.arrays["state"].copy()
        self.ticks = int(snapshot.arrays["ticks"])

    def close(self):
        self.closed = True


class Real(Robot):
    """The same without snapshots, as a real robot."""

    def __init__(self):
        self._slide = Slide()
        self.hz, self.controls = self._slide.hz, self._slide.controls

    def reset(self, seed):
        self._slide.reset(seed)

    def get_observation(self):
        return self._slide.get_observation()

    def send_action(self, control):
        return self._slide.send_action(control)

    def status(self):
        return self._slide.status()

    def close(self):
        self._slide.close()
