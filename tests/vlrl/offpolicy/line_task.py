"""A task of a user's own, for these tests: a point on a line goes to its goal. No simulator, so runs take moments."""

from __future__ import annotations

import os
import signal
from types import SimpleNamespace

import numpy as np

from robot.types import ActionSpec
from tasks.base import Rendered, Task
from vlrl.types import Environment, Observation, RobotTask, Sample, Score, Step

CONTROLS = ActionSpec(("speed",), ("m/s",), np.array([-1.0]), np.array([1.0]))
ABOUT = SimpleNamespace(hz=10.0, controls=CONTROLS, names=("place", "goal"), script=True)
NEAR, EDGE = 0.1, 1.45  # metres


class Line(Environment):
    """An episode: state [place, goal]; a control moves the point by a tenth; beyond the edge it is lost."""

    def __init__(self, seed: int, ticks: int, chunk: int):
        self.place, self.left, self.chunk = 0.0, ticks, chunk
        self.goal = float(np.random.default_rng(seed).choice([-1, 1]) * (0.4 + 0.4 * (seed % 7) / 7))

    def reset(self) -> Observation:
        return Observation(("go",), np.array([self.place, self.goal], np.float32))

    def step(self, action, frames=()) -> Step:
        info, done, ticks = {}, False, 0
        for speed in np.clip(action[:, 0], -1, 1):
            self.place, self.left, ticks = self.place + 0.1 * float(speed), self.left - 1, ticks + 1
            info = {"success": 1.0} if abs(self.place - self.goal) < NEAR else {}
            info = info or ({"failure": 1.0} if abs(self.place) > EDGE else {})
            done = bool(info)
            if done or not self.left:
                break
        cut = not done and not self.left
        paid = -abs(self.place - self.goal)
        return Step(self.reset(), paid, done, cut, info or ({"time_out": 1.0} if cut else {}), ticks / len(action))

    def gold(self, frames) -> np.ndarray:
        return np.full((self.chunk, 1), 0.8 * np.sign(self.goal - self.place), np.float32)

    def close(self) -> None:
        pass


class LineTask(Task, RobotTask):
    """Samples: goals. The environment variable LINE_STOPS, `signal:number`, ends the process in that environment."""

    weights = {"success": 1.0}  # noqa: RUF012
    made = 0
    line = Line

    def __init__(self, *, ticks: int = 12, chunk: int = 3, scenes: int = 20):
        self.ticks, self.chunk, self.scenes = ticks, chunk, scenes
        self.pool, self.max_parallel_envs = SimpleNamespace(info=ABOUT), 2

    def samples(self, split):
        first = 0 if split == "train" else 1000
        return Rendered(self.scenes, lambda i: Sample(f"line/{split}/{i}", Observation(()), first + i))

    def environment(self, sample) -> Line:
        self.made += 1
        name, _, number = os.environ.get("LINE_STOPS", "").partition(":")
        if name and self.made == int(number):
            os.kill(os.getpid(), signal.Signals[name])
        return self.line(sample.answer, self.ticks, self.chunk)

    def score(self, episode) -> Score:
        won = float("success" in episode.turns[-1].step.info)
        return Score({"success": won}, won, None, None if won else "lost")

    def gold(self, sample, frames) -> str:
        return ""
