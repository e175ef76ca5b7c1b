"""The leader: an arm that a hand leads along a path, or that follows its servos while they have torque. No physics."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from robot import so101_model as model
from robot.emulator.chain import Chain
from robot.so101_scenes import HOME

FASTEST = 300.0  # degrees a second of a servo without load


class Leader:
    """A pose, degrees and percent [6]. Its methods are to be called with the chain's lock held, or by one thread."""

    def __init__(self, chain: Chain):
        self.chain, self._pose, self._path = chain, np.array(HOME), []
        for servo, degrees in zip(chain.servos, np.degrees(model.to_radians(self._pose)), strict=True):
            servo.goal(float(degrees))
        self.advance(0)

    def lead(self, path: Sequence[tuple[float, Sequence[float]]]) -> None:
        """The hand goes through poses, each reached so many seconds after the one before."""
        self._path = [(float(seconds), np.array(pose).clip(*model.USER_LIMITS.T)) for seconds, pose in path]

    def pose(self) -> dict[str, float]:
        """Degrees and percent by joint."""
        return dict(zip(model.JOINTS, self._pose.tolist(), strict=True))

    def advance(self, steps: int) -> None:
        seconds, before = steps * model.STEP, self._pose
        self._pose = self._led(seconds)
        speeds = (self._pose - before) / seconds if seconds else np.zeros(6)
        degrees = np.degrees(model.to_radians(self._pose))
        self.chain.suffer()
        for servo, angle, speed in zip(self.chain.servos, degrees.tolist(), speeds.tolist(), strict=True):
            servo.sense(angle, speed, 0.0, seconds)

    def _led(self, seconds: float) -> np.ndarray:
        """The pose after so many seconds: servos with torque are stronger than the hand."""
        pose = self._by_hand(seconds)
        now = np.degrees(model.to_radians(self._pose))
        for i, servo in enumerate(self.chain.servos):
            law = servo.law(seconds)
            if law.stiffness:
                step = np.clip(np.degrees(law.target) - now[i], -FASTEST * seconds, FASTEST * seconds)
                now[i] += step
                pose[i] = model.to_user(np.radians(now))[i]
        return pose

    def _by_hand(self, seconds: float) -> np.ndarray:
        pose = self._pose.copy()
        while self._path and seconds >= self._path[0][0]:
            left, pose = self._path.pop(0)
            pose, seconds = pose.copy(), seconds - left
        if self._path:
            left, aim = self._path[0]
            self._path[0] = (left - seconds, aim)
            pose += (aim - pose) * seconds / left
        return pose
