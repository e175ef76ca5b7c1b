"""ALOHA: two ViperX arms over a table hand over a cube or put a peg into a socket. Needs `vlrl[sims]`.

Zhao et al., Learning Fine-Grained Bimanual Manipulation with Low-Cost Hardware, arXiv:2304.13705; the simulator is
huggingface/gym-aloha.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from robot.gym_make import needs
from robot.gym_robot import RENDER, GymRobot
from robot.simulation import Camera
from vlrl.types import UserError

TASKS = {  # -> id, instruction
    "transfer_cube": ("AlohaTransferCube-v0", "Pick up the cube with the right arm and hand it to the left arm."),
    "insertion": ("AlohaInsertion-v0", "Put the peg into the socket."),
}
CAMERAS = ("top", "angle", "front_close", "left_pillar", "right_pillar")
STATES = ("qpos", "qvel", "env_state")
JOINTS = ("waist", "shoulder", "elbow", "forearm_roll", "wrist_angle", "wrist_rotate", "gripper")
GRIPS = (6, 13)  # among the 14 numbers of a control
REACH = np.insert(np.full(12, 0.5), (6, 12), np.inf)  # radians; targets farther from a joint make MuJoCo unstable
ACTUATORS = (*range(6), *range(8, 14))  # of the other twelve; each gripper has two


class Aloha(GymRobot):
    """gym-aloha as a robot (`robot.robot.Robot`), at 50 Hz.

    A control is where each joint should be, in radians, and how far each gripper should be open, 0 to 1, the left arm
    first. The limits are the motors' own; the environment's space, -1 to 1, leaves out most of them. A target more than
    0.5 rad from where its joint is is held to that. Success: the left
    gripper holds the cube in the air, or the peg touches the socket's end; the reward of a tick is how many of the four
    steps to it are done.

    Args:
        task: `transfer_cube` or `insertion`.
        cameras: of top, angle, front_close, left_pillar, right_pillar.
        size: width and height of the pictures in pixels; 640 x 480 is what papers use.
        state: of `qpos` (14: joints in radians, grippers 0 to 1), `qvel` (14: their speeds) and `env_state` (position
            and quaternion of the cube, or of the peg and the socket).

    Raises:
        UserError: gym-aloha is missing, or does not know what is asked for.
    """

    def __init__(
        self,
        *,
        task: str = "transfer_cube",
        cameras: Sequence[str] = (),
        size: Sequence[int] = (64, 64),
        state: Sequence[str] = ("qpos", "env_state"),
    ):
        needs("gym_aloha", "gym-aloha")
        if task not in TASKS:
            raise UserError(f"robot.task: {task!r}: must be one of {', '.join(TASKS)}")
        unknown = [name for name in cameras if name not in CAMERAS]
        if unknown:
            raise UserError(f"robot.cameras: {', '.join(unknown)}: must be of {', '.join(CAMERAS)}")
        self._names, self._size, self._cameras = tuple(cameras), (size[0], size[1]), ()
        id, instruction = TASKS[task]
        super().__init__(
            id=f"gym_aloha:gym_aloha/{id}",
            instruction=instruction,
            state=state,
            images=(RENDER,) if cameras else (),
            names=[f"{side}_arm_{joint}" for side in ("left", "right") for joint in JOINTS],
            units=["1" if index in GRIPS else "rad" for index in range(14)],
        )

    def close(self) -> None:
        for camera in self._cameras:
            camera.close()
        self._cameras = ()
        super().close()

    def _make(self) -> Any:
        """gym-aloha's own observations draw three pictures of 640 x 480 each tick; here it draws what is looked at."""
        from gymnasium.spaces import Box, Dict

        env = super()._make()
        inner, dm = env.unwrapped, env.unwrapped._env
        reads = {"qpos": dm.task.get_qpos, "qvel": dm.task.get_qvel, "env_state": dm.task.get_env_state}
        limits = np.insert(np.array(dm.physics.model.actuator_ctrlrange)[list(ACTUATORS)], (6, 12), (0, 1), axis=0)
        inner.action_space = Box(*limits.T.astype(np.float32))
        sizes = {name: len(read(dm.physics)) for name, read in reads.items()}
        inner.observation_space = Dict({name: Box(-np.inf, np.inf, (n,), np.float64) for name, n in sizes.items()})
        dm.task.get_observation = lambda physics: {name: read(physics) for name, read in reads.items()}
        inner._format_raw_obs = dict
        inner.render = lambda: self._take(dm.physics)
        return env

    def _within(self, env: Any, control: np.ndarray) -> np.ndarray:
        dm = env.unwrapped._env
        joints = dm.task.get_qpos(dm.physics)
        return self.controls.checked(control.clip(joints - REACH, joints + REACH))

    def _take(self, physics: Any) -> list[Any]:
        if not self._cameras:
            self._cameras = tuple(Camera(physics.model.ptr, name, self._size) for name in self._names)
        return [camera.take(physics.data.ptr) for camera in self._cameras]
