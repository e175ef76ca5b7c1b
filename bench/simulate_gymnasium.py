"""The simulated table as a Gymnasium environment: what `bench/simulate.py` compares the pool with."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict

from robot.tabletop import Tabletop


class Table(gymnasium.Env):
    def __init__(self, job: str, camera: tuple[int, int] | None):
        self.robot = Tabletop(job=job, camera=camera)
        self.action_space = Box(self.robot.controls.low, self.robot.controls.high)
        spaces = {"state": Box(-np.inf, np.inf, (12,), np.float32)}
        if camera:
            spaces["image"] = Box(0, 255, (camera[1], camera[0], 3), np.uint8)
        self.observation_space = Dict(spaces)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        self.robot.home(seed or 0)
        return self._observed(), {}

    def step(self, action: np.ndarray):
        self.robot.move(action)
        signals = self.robot.signals()
        return self._observed(), signals.reward, False, False, {}

    def close(self) -> None:
        self.robot.close()

    def _observed(self) -> dict[str, np.ndarray]:
        shown = self.robot.observe()
        return {"state": shown.state, **({"image": np.asarray(shown.images[0])} if shown.images else {})}
