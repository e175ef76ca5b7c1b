"""gym-hil's Panda, which lifts a cube or sorts boxes: the simulator of lerobot's HIL-SERL. Needs `vlrl[sims]`.

Luo et al., Precise and Dexterous Robotic Manipulation via Human-in-the-Loop RL, arXiv:2410.21845; the simulator is
huggingface/gym-hil.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from robot.gym_make import needs
from robot.gym_robot import RENDER, GymRobot
from robot.simulation import load_mujoco
from vlrl.types import UserError

STEP = 0.025  # metres a tick, as gym-hil's own wrapper for people and policies
TASKS = {  # -> id, options, instruction
    "pick_cube": ("PandaPickCubeBase-v0", {"random_block_position": True}, "Pick up the cube."),
    "arrange_boxes": ("PandaArrangeBoxesBase-v0", {}, "Put each box onto the mark of its colour."),
}


class Hil(GymRobot):
    """gym-hil's Panda as a robot (`robot.robot.Robot`), at 10 Hz.

    A control is a step of the hand, x, y, z in metres, and by how much the gripper closes (above 0) or opens, 1 being
    the whole way. Success: the cube is 0.1 m up, or each box within 0.03 m of its mark; reward 1 then, else 0. A cube
    that leaves its field is a failure. The state: 18 numbers of the arm (7 joints in radians, their speeds, the
    gripper's command from 0 to 255, the hand's x, y, z) and x, y, z of the cube, or of each box and of each mark.

    Args:
        task: `pick_cube`, with the cube anywhere in its field, or `arrange_boxes`.
        camera: width and height of the two pictures, from the front and from the hand; none: the state alone.

    Raises:
        UserError: gym-hil is missing, or does not know what is asked for, or there is no way to render: it always does.
    """

    def __init__(self, *, task: str = "pick_cube", camera: Sequence[int] | None = None):
        needs("gym_hil", "gym-hil")
        if task not in TASKS:
            raise UserError(f"robot.task: {task!r}: must be one of {', '.join(TASKS)}")
        if camera is not None and not (len(camera) == 2 and all(8 <= side <= 1024 for side in camera)):
            raise UserError(f"robot.camera: {camera!r}: must be a width and a height of 8 to 1024 pixels")
        id, options, instruction = TASKS[task]
        self._size = tuple(camera or (8, 8))
        super().__init__(
            id=f"gym_hil:gym_hil/{id}",
            options={"render_mode": None, **options},  # it draws in any mode and knows none
            hz=10,
            instruction=instruction,
            state=("agent_pos", "environment_state"),
            images=(RENDER,) if camera else (),
            success="succeed",
            names=("x", "y", "z", "grip"),
            units=("m", "m", "m", "1"),
        )

    def _make(self) -> Any:
        """gym-hil takes seven numbers, of which it leaves out the three turns, and steps of metres."""
        load_mujoco()  # before gym-hil does
        from gym_hil import GymRenderingSpec
        from gymnasium.spaces import Box
        from gymnasium.wrappers import TransformAction

        self._options["render_spec"] = GymRenderingSpec(width=self._size[0], height=self._size[1])
        env, limits = super()._make(), np.array([STEP, STEP, STEP, 1], np.float32)
        if hasattr(env.unwrapped, "_get_sensors"):
            env = _with_all_boxes(env)
        return TransformAction(env, lambda control: np.insert(control, 3, (0, 0, 0)), Box(-limits, limits))


def _with_all_boxes(env: Any) -> Any:
    """gym-hil shows the first box alone."""
    from gymnasium.spaces import Box, Dict
    from gymnasium.wrappers import TransformObservation

    def seen(shown: dict[str, Any]) -> dict[str, Any]:
        boxes, marks = env.unwrapped._get_sensors()
        return {**shown, "environment_state": np.concatenate([each.data for each in (*boxes, *marks)])}

    size = 3 * 2 * env.unwrapped.no_blocks
    parts = {"agent_pos": env.observation_space["agent_pos"], "environment_state": Box(-np.inf, np.inf, (size,))}
    return TransformObservation(env, seen, Dict(parts))
