"""The last target and how fast it went there: what the next one is measured against."""

from __future__ import annotations

import numpy as np

from robot.motion.stages.asked import read
from robot.motion.stages.bounds import Bounds


class Sent:
    """`at` float64 [A], None while nobody knows where the robot is; `rate` float64 [A], of a `speed` its value."""

    def __init__(self, bounds: Bounds):
        self._bounds, self.at = bounds, None
        self.rate = np.zeros(len(bounds.names))
        self._low, self._high = _inside(bounds.low, bounds.high)
        self._verdict: np.ndarray | None = None  # float32 [A]
        self._before: np.ndarray | None = None  # the last target but one
        self._fresh = True

    def begin(self) -> None:
        """The robot may have been moved by hand since."""
        self._fresh = True

    def settle(self, measured: np.ndarray, last: object) -> None:
        """Takes over what the robot was really sent, where that is not what the governor chose.

        At a beginning a last target that is further than `jump` from where the robot is says nothing any more; nor
        does any without `last`.
        """
        bounds = self._bounds
        sent = None if last is None else read(last, bounds.names)[0]
        rest = np.where(bounds.speeds, 0, measured)
        if sent is not None and (self._verdict is None or (sent != self._verdict).any()):
            moved = 0 if self._before is None else (sent - self._before) * bounds.hz
            self.rate = np.where(bounds.speeds, sent, moved).clip(-bounds.speed, bounds.speed)
            self.at = sent
        if self.at is None and np.isfinite(rest).all():
            self.at, self.rate = rest, np.zeros_like(rest)
        elif self.at is not None and self._fresh:
            gone = ~bounds.speeds & (np.isfinite(rest) if last is None else np.abs(rest - self.at) > bounds.jump)
            self.at, self.rate = np.where(gone, rest, self.at), np.where(gone, 0, self.rate)
        self._fresh = self._fresh and self.at is None

    def send(self, target: np.ndarray) -> np.ndarray:
        """The next target float64 [A] as float32 [A] within the limits; it is the last one from now on."""
        bounds, at = self._bounds, self.at.astype(np.float32)
        low = np.where(bounds.speeds, self._low, np.minimum(self._low, at))
        high = np.where(bounds.speeds, self._high, np.maximum(self._high, at))
        self._verdict = target.astype(np.float32).clip(low, high)
        sent = self._verdict.astype(np.float64)
        self.rate = np.where(bounds.speeds, sent, (sent - self.at) * bounds.hz)
        self._before, self.at = self.at, sent
        return self._verdict.copy()

    def again(self) -> np.ndarray | None:
        """The last target, float32 [A]; speeds are 0."""
        return None if self.at is None else np.where(self._bounds.speeds, 0, self.at).astype(np.float32)


def _inside(low: np.ndarray, high: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The limits as float32 [A], rounded inwards."""
    lower, upper = low.astype(np.float32), high.astype(np.float32)
    lower = np.where(lower < low, np.nextafter(lower, np.float32(np.inf)), lower)
    return lower, np.where(upper > high, np.nextafter(upper, np.float32(-np.inf)), upper)
