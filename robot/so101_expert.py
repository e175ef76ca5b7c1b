"""A script that touches the disc: inverse kinematics by damped least squares. It has no memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from robot.simulation import load_mujoco
from robot.so101_scenes import HOME

GAIN, POSE_GAIN = 5.0, 1.0  # 1/s: of the way to go, and of the way back to a tidy pose where that costs nothing
SPEED = np.array((60.0, 60.0, 60.0, 60.0, 60.0, 40.0))  # degrees and percent a second, at most
DAMPING = 0.03  # metres per radian: how near to a singular pose joints are slowed down
ABOVE, HIGHEST = 0.004, 0.06  # metres over the goal: aimed at from straight above, and on the way


def expert(model: Any, data: Any, goal: np.ndarray) -> np.ndarray:
    """The joints' speeds float64 [6] in degrees and percent a second that go on with the job.

    Args:
        data: scratch data whose `qpos` holds the arm's pose.
        goal: float64 [3], metres.
    """
    mujoco = load_mujoco()
    mujoco.mj_kinematics(model, data)
    mujoco.mj_comPos(model, data)
    tip, jacobian = data.site("grip").xpos, np.empty((3, model.nv))
    mujoco.mj_jacSite(model, data, jacobian, None, data.site("grip").id)
    jacobian = jacobian[:, :4]  # the wrist's roll and the gripper move no tip
    spot = goal + np.array((0, 0, ABOVE + min(float(np.linalg.norm((goal - tip)[:2])), HIGHEST)))
    inverse = jacobian.T @ np.linalg.inv(jacobian @ jacobian.T + DAMPING**2 * np.eye(3))
    pose = np.degrees(data.qpos)
    free = np.radians(POSE_GAIN * (np.array(HOME[:4]) - pose[:4]))
    speeds = np.degrees(inverse @ (GAIN * (spot - tip)) + free - inverse @ (jacobian @ free))
    asked = np.append(speeds, (-POSE_GAIN * pose[4], 0.0))
    return asked / max(1.0, float(np.max(np.abs(asked) / SPEED)))  # slowed down together, the way stays the same
