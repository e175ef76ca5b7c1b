"""The robot of bridge_body, as lerobot sees one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from bridge_body import CAMERAS, JOINTS, frames, turned
from lerobot.robots import Robot, RobotConfig


@RobotConfig.register_subclass("bench_still")
@dataclass(kw_only=True)
class StillConfig(RobotConfig):
    height: int
    width: int


class Still(Robot):
    """A perfect robot: it is where it was sent. Its state turns so that each is new."""

    config_class, name = StillConfig, "bench_still"

    def __init__(self, config: StillConfig):
        super().__init__(config)
        self.config, self._frames, self._count = config, frames(config.height, config.width), 0
        self._at = np.zeros(len(JOINTS), np.float32)
        self.action_features = {f"{name}.pos": float for name in JOINTS}
        size = (config.height, config.width, 3)
        self.observation_features = self.action_features | dict.fromkeys(CAMERAS, size)
        self.is_connected, self.is_calibrated = False, True

    observation_features = action_features = is_connected = is_calibrated = None  # set above; abstract in lerobot

    def connect(self, calibrate: bool = True) -> None:
        self.is_connected = True

    def calibrate(self) -> None: ...

    def configure(self) -> None: ...

    def get_observation(self) -> dict[str, Any]:
        self._count += 1
        state = turned(self._at, self._count)
        joints = {f"{name}.pos": float(value) for name, value in zip(JOINTS, state, strict=True)}
        return joints | self._frames[self._count % len(self._frames)]

    def send_action(self, action: dict[str, Any]) -> dict[str, Any]:
        self._at = np.array(list(action.values()), np.float32)
        return action

    def disconnect(self) -> None:
        self.is_connected = False
