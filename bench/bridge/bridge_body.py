"""What both sides of `costs` drive and show: a robot that does nothing, and pictures like a camera's."""

from __future__ import annotations

import time
from typing import Literal

import numpy as np

from robot.types import Channel, RobotDriver, RobotState, RobotStatus

CAMERAS = ("front", "wrist")
JOINTS = ("shoulder_pan", "shoulder_lift", "elbow_flex", "wrist_flex", "wrist_roll", "gripper")
CHUNK = 50
STEP = 2.0  # degrees that a joint moves from one reading to the next: lerobot drops observations less than 1 apart


def frames(height: int, width: int, count: int = 8, seed: int = 0) -> list[dict[str, np.ndarray]]:
    """Pictures uint8 [height, width, 3] of CAMERAS: smooth shapes and a sensor's noise."""
    from PIL import Image

    draws = np.random.default_rng(seed)

    def picture() -> np.ndarray:
        coarse = Image.fromarray(draws.integers(0, 256, (12, 16, 3), dtype=np.uint8))
        smooth = np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC), np.float32)
        return np.clip(smooth + draws.normal(0, 3, smooth.shape), 0, 255).astype(np.uint8)

    return [{name: picture() for name in CAMERAS} for _ in range(count)]


class Still(RobotDriver):
    """A perfect robot (`robot.types.RobotDriver`): it is where it was sent. Its state turns so that each is new.

    Args:
        real: whether the motion process treats it as a robot (guardian, priority) or as a simulator.
    """

    def __init__(self, *, hz: float, height: int, width: int, real: bool):
        self.hz, self.simulated = float(hz), not real
        self.channels = tuple(Channel(f"{name}.pos", "deg") for name in JOINTS)
        self.names = tuple(channel.name for channel in self.channels)
        self._frames, self._count = frames(height, width), 0
        self._at = np.zeros(len(JOINTS), np.float32)

    def connect(self) -> None: ...

    def begin(self, seed: int) -> None: ...

    def sense(self) -> RobotState:
        began, self._count = time.monotonic(), self._count + 1
        images = self._frames[self._count % len(self._frames)]
        return RobotState(began, turned(self._at, self._count), self._at, images, {}, RobotStatus())

    def send(self, target: np.ndarray) -> np.ndarray:
        self._at = target.copy()
        return self._at

    def rest(self, how: Literal["hold", "off"]) -> list[str]:
        return []

    def close(self) -> None: ...


def turned(at: np.ndarray, count: int) -> np.ndarray:
    """The state of the count-th reading, float32 [S]."""
    return at + np.float32(STEP * (count % 45))
