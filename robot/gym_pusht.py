"""PushT: a disc pushes a T onto its place on a table seen from above. Needs `vlrl[sims]`.

Chi et al., Diffusion Policy, arXiv:2303.04137; the simulator is huggingface/gym-pusht.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from robot.gym_make import needs
from robot.gym_robot import RENDER, GymRobot
from vlrl.types import UserError

STATES = {"pose": "state", "keypoints": "environment_state_agent_pos"}  # -> gym-pusht's obs_type


class PushT(GymRobot):
    """gym-pusht as a robot (`robot.robot.Robot`), at 10 Hz.

    A control is where the disc should go: x, y in pixels from 0 to 512, y downwards. Success: the T covers 95% of its
    place; the reward of a tick is the share covered, 1 at success. `numbers` has `coverage`.

    Args:
        state: `pose` is the disc's x, y and the T's x, y and turn in radians; `keypoints` the T's eight corners twice
            over (x, y, ...) and the disc's x, y.
        camera: width and height of the picture in pixels; none: the state alone. 96 x 96 is what papers use.

    Raises:
        UserError: gym-pusht is missing, or does not know what is asked for.
    """

    def __init__(self, *, state: str = "pose", camera: Sequence[int] | None = None):
        needs("gym_pusht", "gym-pusht")
        if state not in STATES:
            raise UserError(f"robot.state: {state!r}: must be one of {', '.join(STATES)}")
        if camera is not None and not (len(camera) == 2 and all(8 <= side <= 1024 for side in camera)):
            raise UserError(f"robot.camera: {camera!r}: must be a width and a height of 8 to 1024 pixels")
        size = {"observation_width": camera[0], "observation_height": camera[1]} if camera else {}
        super().__init__(
            id="gym_pusht:gym_pusht/PushT-v0",
            options={"obs_type": STATES[state], **size},
            instruction="Push the T onto its green place.",
            images=(RENDER,) if camera else (),
            names=("x", "y"),
            units=("px", "px"),
        )

    def _make(self) -> Any:
        env = super()._make()
        inner = env.unwrapped
        inner.render = inner._render  # as policies are shown it: without a mark where the last control pointed
        return env
