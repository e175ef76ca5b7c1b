"""A car learns fast laps by practice from slow ones (FastRLAP, arXiv 2304.09831), on 40 m: see circuit.yaml."""

import math

import numpy as np

from robot.types import ActionSpec, Robot, RobotStatus
from vlrl.types import Observation

WIDTH, GRIP, SLOW = 1.0, 8.0, 2.0  # metres to either side; m/s^2 that the tyres hold; m/s of the script


def center(angle: float) -> np.ndarray:
    """The point of the center line in this direction, metres [2]."""
    return (6 + math.sin(3 * angle)) * np.array([math.cos(angle), math.sin(angle)])


class Car(Robot):
    """A point with a heading; the faster it is, the less curvature its tyres hold."""

    hz, names = 10.0, ("offset", "turn", "speed", "sine", "cosine")
    controls = ActionSpec(("curvature", "acceleration"), ("1/m", "m/s^2"), [-0.6, -6.0], [0.6, 3.0])

    def reset(self, seed: int) -> None:
        self.angle = float(np.random.default_rng(seed).uniform(-math.pi, math.pi))
        self.place, self.speed, self.heading, self.lap, self.paid = center(self.angle), 0.0, 0.0, 0.0, 0.0
        self.heading = self._turn()

    def _turn(self) -> float:
        """Radians to the left of its heading at which the center line lies a quarter of a radian ahead."""
        x, y = center(self.angle + 0.25) - self.place
        return math.remainder(math.atan2(y, x) - self.heading, math.tau)

    def _offset(self) -> float:
        return float(np.linalg.norm(self.place) - np.linalg.norm(center(self.angle)))

    def get_observation(self) -> Observation:
        state = [self._offset(), self._turn(), self.speed, math.sin(3 * self.angle), math.cos(3 * self.angle)]
        return Observation(("Drive a lap.",), np.array(state, np.float32))

    def send_action(self, control: np.ndarray) -> np.ndarray:
        sent = self.controls.checked(control)
        self.speed = max(0.1, self.speed + float(sent[1]) / self.hz)
        self.heading += float(sent[0].clip(-(held := GRIP / self.speed**2), held)) * self.speed / self.hz
        self.place += self.speed / self.hz * np.array([math.cos(self.heading), math.sin(self.heading)])
        before, self.angle = self.angle, math.atan2(self.place[1], self.place[0])
        self.paid = math.remainder(self.angle - before, math.tau)
        self.lap += self.paid
        return sent

    def status(self) -> RobotStatus:
        failure = "off the track" if abs(self._offset()) > WIDTH else None
        return RobotStatus(self.lap >= math.tau, self.paid, failure)

    def expert(self) -> np.ndarray:
        return self.controls.checked(np.array([1.2 * math.sin(self._turn()), 2 * (SLOW - self.speed)]))

    def close(self) -> None:
        """Nothing is held."""
