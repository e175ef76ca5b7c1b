"""An episode of a robot that is moved by numbers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from robot.pooled import PooledPlay
from vlrl.types import Frame, Observation, Step


class Driven:
    """An episode (`vlrl.types.Environment`) whose actions are chunks of controls, float32 [K, A]."""

    def __init__(self, play: PooledPlay, chunk: int):
        self._play, self._chunk = play, chunk

    def reset(self) -> Observation:
        return self._play.reset()

    def step(self, action: str | np.ndarray, frames: Sequence[Frame] = ()) -> Step:
        return self._play.step(action, frames)

    def gold(self, frames: Sequence[Frame]) -> np.ndarray:
        """What the robot's script would do next, float32 [chunk, A]."""
        return self._play.plan(self._chunk)

    def close(self) -> None:
        self._play.close()
