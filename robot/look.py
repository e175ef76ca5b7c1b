"""Looking at a robot, and at whether what it shows can be shown to a policy."""

from __future__ import annotations

import numpy as np

from robot.robot import Robot, RobotError
from vlrl.types import Observation

LOOKS = 3  # a camera may drop a frame
BLANK = 8  # of 255: a picture whose values all lie so close shows nothing


def look(robot: Robot) -> tuple[Observation, int]:
    """What the robot shows, and how often it had to be asked again.

    Raises:
        RobotError: the state or a camera is no good, also when asked LOOKS times.
    """
    for repeats in range(LOOKS):
        shown = robot.observe()
        problem = _problem(shown)
        if problem is None:
            return shown, repeats
    raise RobotError(problem)


def _problem(shown: Observation) -> str | None:
    state = shown.state
    if state is None or state.dtype != np.float32 or state.ndim != 1:
        return "the state is not float32 [S]"
    if not np.isfinite(state).all():
        return "the state is not finite"
    for number, image in enumerate(shown.images):
        extrema = image.convert("RGB").getextrema()
        if max(high for _, high in extrema) - min(low for low, _ in extrema) < BLANK:
            return f"camera {number} shows nothing"
    return None
