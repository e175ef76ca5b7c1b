"""A simulated robot as a Gymnasium environment: what `bench/bridge.py simulate` compares the pool with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict

from robot.workers import worker_find


class Environment(gymnasium.Env):
    def __init__(self, robot: str, options: Mapping[str, Any]):
        self.robot = worker_find(robot)(**options)
        self.action_space = Box(self.robot.controls.low, self.robot.controls.high)
        self.robot.reset(0)
        shown = self.robot.get_observation()
        spaces = {"state": Box(-np.inf, np.inf, shown.state.shape, np.float32)}
        if shown.images:
            width, height = shown.images[0].size
            spaces["image"] = Box(0, 255, (height, width, 3), np.uint8)
        self.observation_space = Dict(spaces)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        self.robot.reset(seed or 0)
        return self._observed(), {}

    def step(self, action: np.ndarray):
        self.robot.send_action(action)
        signals = self.robot.status()
        return self._observed(), signals.reward, False, False, {}

    def close(self) -> None:
        self.robot.close()

    def _observed(self) -> dict[str, np.ndarray]:
        shown = self.robot.get_observation()
        return {"state": shown.state, **({"image": np.asarray(shown.images[0])} if shown.images else {})}
