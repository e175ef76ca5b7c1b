"""What a robot's script would do next, as the chunk of controls that a policy would give."""

from __future__ import annotations

import numpy as np

from robot.robot import Robot, Simulator
from vlrl.types import UserError


def plan(robot: Robot, ticks: int) -> np.ndarray:
    """The script's next controls, float32 [ticks, A], within the limits. The robot is afterwards where it was, exactly.

    The script sees what comes of each control, as if no noise came between. A robot with a script has a method
    `expert() -> float32 [A]`, its control for the present state.

    Raises:
        UserError: the robot has no script or no snapshots.
    """
    expert = getattr(robot, "expert", None)
    if expert is None:
        raise UserError(f"robot: {type(robot).__name__} has no script that could show the job")
    if ticks == 1:
        return expert()[None]
    if not isinstance(robot, Simulator):
        raise UserError(f"robot: {type(robot).__name__} has no snapshots: plan one tick at a time")
    start, controls = robot.snapshot(), []
    for _ in range(ticks):
        controls.append(expert())
        robot.move(controls[-1])
    robot.restore(start)
    return np.stack(controls)
