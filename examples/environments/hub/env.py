"""A folder as lerobot's EnvHub has them: `make_env` gives {suite: {task: a vector environment}}.

Here the table of `robot.sim.tabletop`, on which a cube is pushed onto a disc, as Gymnasium has environments.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box
from gymnasium.vector import SyncVectorEnv

from robot.sim.tabletop import STATE, Tabletop


class Push(gymnasium.Env):
    """The state float32 [12] in metres, the hand's speeds float32 [3] in m/s (`robot.sim.tabletop.Tabletop`)."""

    def __init__(self):
        self._robot = Tabletop(job="push")
        controls = self._robot.controls
        self.observation_space = Box(-np.inf, np.inf, (len(STATE),), np.float32)
        self.action_space = Box(controls.low, controls.high, dtype=np.float32)
        self.action_names, self.action_units = list(controls.names), list(controls.units)
        self.metadata = {"render_fps": self._robot.hz}
        self.instruction = ""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._robot.reset(seed or 0)
        self.instruction = self._robot.get_observation().text
        return self._robot.get_observation().state, {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self._robot.send_action(np.asarray(action, np.float32))
        status, state = self._robot.status(), self._robot.get_observation().state
        ends = status.success or status.failure is not None
        return state, status.reward, ends, False, {"is_success": status.success, **status.numbers}


def make_env(n_envs: int = 1, use_async_envs: bool = False) -> dict[str, dict[int, SyncVectorEnv]]:
    return {"tabletop": {0: SyncVectorEnv([Push] * n_envs)}}
