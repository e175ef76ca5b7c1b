"""Making robosuite's environments."""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Callable
from functools import lru_cache
from types import ModuleType
from typing import Any

from robot.robosuite_globals import FLAT, drawing
from robot.simulation import load_mujoco
from vlrl.types import UserError

# not PickPlaceSingle and NutAssemblySingle: they choose their object by the hash of strings, another in each process
INSTRUCTIONS = {
    "Lift": "Pick up the cube.",
    "Stack": "Put the red cube onto the green cube.",
    "PickPlace": "Put each object into its bin.",
    "PickPlaceMilk": "Put the milk into its bin.",
    "PickPlaceBread": "Put the bread into its bin.",
    "PickPlaceCereal": "Put the cereal into its bin.",
    "PickPlaceCan": "Put the can into its bin.",
    "NutAssembly": "Put each nut onto its peg.",
    "NutAssemblySquare": "Put the square nut onto the square peg.",
    "NutAssemblyRound": "Put the round nut onto the round peg.",
    "Door": "Open the door.",
    "Wipe": "Wipe the table clean.",
    "ToolHang": "Put the frame into the stand and hang the tool on it.",
    "TwoArmLift": "Lift the pot by both handles.",
    "TwoArmPegInHole": "Put the peg into the hole.",
    "TwoArmHandover": "Hand the hammer over.",
    "TwoArmTransport": "Bring the hammer to the other table's bin.",
}


@lru_cache(maxsize=1)
def load_robosuite() -> ModuleType:
    """robosuite, which then logs its errors but no longer its advice.

    Raises:
        UserError: it is not installed.
    """
    load_mujoco()  # first: robosuite would choose the renderer
    logging.getLogger("robosuite_logs").addFilter(lambda record: record.levelno >= logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)  # of its own texts, where it is compiled for the first time
            import robosuite
    except ImportError as error:
        raise UserError(f"robot: needs robosuite ({error}): pip install 'vlrl[sim]'") from error
    return robosuite


def make(task: str, robots: tuple[str, ...], controller: str | None, hz: float, timestep: float, shaped: bool) -> Any:
    """An environment that neither renders nor ends by itself.

    Raises:
        UserError: robosuite does not know or cannot make it.
    """
    suite = load_robosuite()
    if task not in INSTRUCTIONS:
        raise UserError(f"robot.task: {task!r}: must be one of {', '.join(INSTRUCTIONS)}")
    for name in robots:
        if name not in suite.ALL_ROBOTS:
            raise UserError(f"robot.robot: {name!r}: must be one of {', '.join(sorted(suite.ALL_ROBOTS))}")
    options = dict(
        robots=list(robots),
        controller_configs=_configs(robots, controller),
        has_renderer=False,
        has_offscreen_renderer=False,
        use_camera_obs=False,
        renderer="mujoco",
        control_freq=hz,
        ignore_done=True,
        **({"reward_shaping": True} if shaped else {}),
    )
    try:
        with drawing(0, timestep):
            return _mended(lambda: suite.make(task, **options))
    except Exception as error:  # robosuite's checks are assertions
        what = f"{task} with {', '.join(robots)} and {controller or 'its own controller'}"
        line = next(iter(str(error).splitlines()), "") or type(error).__name__
        raise UserError(f"robot.task: robosuite cannot make {what}: {line}") from error


def _mended(make: Callable[[], Any]) -> Any:
    """What `make` makes, with meshes that MuJoCo finds too flat for a volume as shells.

    These are looks of Sawyer's and Baxter's heads alone: their bodies say their own mass.
    """
    while True:
        try:
            return make()
        except ValueError as error:
            flat = re.search(r"mesh volume is too small: (\S+)", str(error))
            if not flat or flat[1] in FLAT:
                raise
            FLAT.add(flat[1])


def _configs(robots: tuple[str, ...], controller: str | None) -> list[dict] | None:
    if controller is None:
        return None
    from robosuite.controllers import ALL_PART_CONTROLLERS, load_part_controller_config
    from robosuite.controllers.composite.composite_controller_factory import refactor_composite_controller_config
    from robosuite.models.robots.robot_model import REGISTERED_ROBOTS

    if controller not in ALL_PART_CONTROLLERS:
        raise UserError(f"robot.controller: {controller!r}: must be one of {', '.join(sorted(ALL_PART_CONTROLLERS))}")
    part = load_part_controller_config(default_controller=controller)
    return [refactor_composite_controller_config(part, name, REGISTERED_ROBOTS[name].arms) for name in robots]
