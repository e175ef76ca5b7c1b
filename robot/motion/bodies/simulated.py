"""A simulated robot as a body: it advances by one tick with each target that is sent."""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np

from robot.motion.body import Channel, Sensed
from robot.registry import resolve
from robot.robot import Robot, Signals
from robot.worker import find
from vlrl.system.clock import boottime
from vlrl.types import Observation, UserError


class Simulated:
    """Any robot of `robot.registry` (`robot.motion.body.Body`). What is in a unit a second is a speed.

    A position's measured value is the number of the state that has the same name; where there is none, NaN: the robot
    does not say. Pictures are `camera1`, `camera2`, ... in the order that the robot shows them.

    Args:
        robot: a short name, or `my_module:MyRobot`.
        options: of that robot.

    Raises:
        UserError: there is no such robot, or it cannot be made of these options.
    """

    simulated = True  # it stands still with this process, and loses nothing while it waits

    def __init__(self, *, robot: str, **options: Any):
        try:
            self._robot: Robot = find(resolve(robot))(**options)
        except TypeError as error:
            raise UserError(f"robot: {str(error).splitlines()[0]}") from None
        controls = self._robot.controls
        self.hz = float(self._robot.hz)
        self.channels = tuple(
            Channel(name, unit, "speed" if unit.endswith("/s") else "position")
            for name, unit in zip(controls.names, controls.units, strict=True)
        )
        self.names = tuple(getattr(self._robot, "names", ()))
        self.ranges = {
            each.name: (float(low), float(high))
            for each, low, high in zip(self.channels, controls.low, controls.high, strict=True)
            if each.kind == "position"
        }
        self.task = ""  # the instruction of the scene
        self._moved = False

    def connect(self) -> None:
        """Makes scene 0, so that there is something to sense."""
        self.begin(0)
        shown = self._robot.observe()
        if shown.state is None:
            raise UserError(f"robot: {type(self._robot).__name__} shows no state: the motion process needs one")
        self.names = self.names or tuple(f"state{number}" for number in range(1, len(shown.state) + 1))

    def begin(self, seed: int) -> None:
        self._robot.home(seed)
        self._moved = False

    def sense(self) -> Sensed:
        began = boottime()
        shown = self._robot.observe()
        self.task = shown.text
        signals = self._robot.signals() if self._moved else Signals()
        return Sensed(began, shown.state, self._measured(shown), _pictures(shown), {}, signals)

    def send(self, target: np.ndarray) -> np.ndarray:
        self._moved = True
        return self._robot.move(target)

    def rest(self, how: Literal["hold", "off"]) -> list[str]:
        """Nothing to do: it moves only when it is sent something."""
        return []

    def close(self) -> None:
        self._robot.close()

    def _measured(self, shown: Observation) -> np.ndarray:
        state = dict(zip(self.names, shown.state, strict=False))
        return np.array(
            [0.0 if channel.kind == "speed" else state.get(channel.name, math.nan) for channel in self.channels],
            np.float32,
        )


def _pictures(shown: Observation) -> dict[str, np.ndarray]:
    return {f"camera{number}": np.asarray(image.convert("RGB")) for number, image in enumerate(shown.images, 1)}
