"""What the sensors' stages remember of the ticks before: what was sent, what was read."""

from __future__ import annotations

import math
from collections import deque

import numpy as np

from robot.motion.stages.bounds import Bounds


class History:
    """Counts, channel by channel, ticks with the same reading and ticks far from where the robot was sent.

    Args:
        lag_s: how long a servo may take to where it was sent, seconds.
    """

    def __init__(self, bounds: Bounds, lag_s: float):
        self._bounds, self._sent = bounds, deque(maxlen=math.ceil(lag_s * bounds.hz) + 1)
        self.clear()

    def clear(self) -> None:
        count = len(self._bounds.names)
        self._sent.clear()
        self._measured = np.full(count, np.nan)
        self.still, self.moved = np.zeros(count, int), np.zeros(count)
        self.astray, self.off = np.zeros(count, int), np.zeros(count)

    def add(self, measured: np.ndarray, at: np.ndarray) -> None:
        """One tick: where the robot is, NaN where it does not say, and the target that was sent before."""
        same = (measured == self._measured) & ~self._bounds.speeds
        self.still = np.where(same, self.still + 1, 0)
        self.moved = np.where(same, self.moved + np.abs(at - (self._sent[-1] if self._sent else at)), 0)
        self._measured = measured
        self._sent.append(at)
        sent = np.array(self._sent)
        known = np.where(np.isfinite(measured), measured, at)
        self.off = np.maximum(0, np.maximum(sent.min(0) - known, known - sent.max(0)))
        self.astray = np.where(self.off > self._bounds.disagree, self.astray + 1, 0)
