"""LIBERO's 130 tasks through lerobot's environment. Needs an environment of its own, see docs/simulators.md.

Liu et al., LIBERO, arXiv:2306.03310; hf-libero and huggingface/lerobot. Its meshes and textures are fetched at its
first use and could not be had when this was written: it was tried with boxes in their place.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from robot.gym_robot import GymRobot
from robot.simulation import load_mujoco
from vlrl.types import UserError

SUITES = {"libero_spatial": 10, "libero_object": 10, "libero_goal": 10, "libero_10": 10, "libero_90": 90}  # -> tasks
CAMERAS = {"agentview": "pixels.image", "robot0_eye_in_hand": "pixels.image2"}
STATE = ("robot_state.eef.pos", "robot_state.eef.quat", "robot_state.gripper.qpos")
LIMITS = np.array([0.05, 0.05, 0.05, 0.5, 0.5, 0.5, 1.0])  # of robosuite's OSC_POSE, which is told -1 to 1
INSTALL = "pip install 'lerobot[libero]==0.6.1' into an environment of its own: it takes robosuite 1.4"
ASSETS = ("articulated_objects", "stable_scanned_objects", "turbosquid_objects", "stable_hope_objects")


class LiberoRobot(GymRobot):
    """One task of LIBERO (`robot.robot.Robot`), at 20 Hz. Untried with LIBERO's own meshes and textures.

    A control is a step of the Panda's hand, x, y, z in metres and rx, ry, rz in radians, and the gripper, which closes
    above 0. The state is float32 [9]: the hand's position and quaternion (x, y, z, w) and the fingers. Every tick draws
    both pictures, looked at or not; they are upright and mirrored, as published data and policies have them.

    Args:
        suite: libero_spatial, libero_object, libero_goal, libero_10 or libero_90.
        task: its number in the suite, from 0.
        cameras: of agentview and robot0_eye_in_hand.
        size: width and height of the pictures in pixels.
        published: begin at one of the 50 starts that come with a task, seed modulo 50, on which others train and test
            alike; else where the things stand is drawn by the seed.

    Raises:
        UserError: LIBERO or a part of it is missing, or it does not know what is asked for.
    """

    def __init__(
        self,
        *,
        suite: str = "libero_spatial",
        task: int = 0,
        cameras: Sequence[str] = ("agentview",),
        size: Sequence[int] = (256, 256),
        published: bool = False,
    ):
        if suite not in SUITES:
            raise UserError(f"robot.suite: {suite!r}: must be one of {', '.join(SUITES)}")
        if not 0 <= task < SUITES[suite]:
            raise UserError(f"robot.task: {task}: {suite} has tasks 0 to {SUITES[suite] - 1}")
        unknown = [name for name in cameras if name not in CAMERAS]
        if unknown:
            raise UserError(f"robot.cameras: {', '.join(unknown)}: must be of {', '.join(CAMERAS)}")
        check_installed()
        self._suite, self._task, self._size, self._published = suite, task, tuple(size), published
        super().__init__(
            id=f"{suite}/{task}",
            hz=20,
            state=STATE,
            images=[CAMERAS[name] for name in cameras],
            names=("x", "y", "z", "rx", "ry", "rz", "grip"),
            units=("m",) * 3 + ("rad",) * 3 + ("1",),
        )
        self._instruction = self._open().unwrapped.task_description

    def home(self, seed: int) -> None:
        self._open().unwrapped.init_state_id = seed  # else each start follows the one before
        super().home(seed)

    def _make(self) -> Any:
        load_mujoco()
        from gymnasium.spaces import Box
        from gymnasium.wrappers import TransformAction, TransformObservation
        from lerobot.envs.libero import LiberoEnv
        from libero.libero.benchmark import get_benchmark_dict

        width, height = self._size
        env = LiberoEnv(
            get_benchmark_dict()[self._suite](),
            self._task,
            self._suite,
            obs_type="pixels_agent_pos",
            observation_width=width,
            observation_height=height,
            init_states=self._published,
        )
        limits = LIMITS.astype(np.float32)
        env = TransformAction(env, lambda control: control / limits, Box(-limits, limits))
        return TransformObservation(env, _turned, env.observation_space)


def check_installed() -> None:
    """Raises UserError: what of LIBERO is missing, and how to get it. Imports none of it: its import asks questions."""
    for module in ("libero", "lerobot"):
        if find_spec(module) is None:
            raise UserError(f"robot: needs LIBERO ({module} is missing): {INSTALL}")
    config = Path(os.environ.get("LIBERO_CONFIG_PATH", "~/.libero")).expanduser() / "config.yaml"
    if not config.is_file():
        raise UserError(f"robot: LIBERO is not set up ({config} is missing): run python -c 'import libero.libero' once")
    home = Path(find_spec("libero").submodule_search_locations[0])
    places = (home / "libero" / "assets", Path("~/.cache/libero/assets").expanduser())
    if not any(all((place / part).is_dir() for part in ASSETS) for place in places):
        fetch = "python -c 'from libero.libero import get_assets_path; get_assets_path()'"
        raise UserError(f"robot: LIBERO's meshes and textures are missing in {places[1]}: fetch them with {fetch}")


def _turned(seen: dict[str, Any]) -> dict[str, Any]:
    """Pictures turned by half a turn, as lerobot and OpenVLA do: LIBERO gives rows from below."""
    return {**seen, "pixels": {name: image[::-1, ::-1] for name, image in seen["pixels"].items()}}
