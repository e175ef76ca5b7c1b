"""MuJoCo: loading it, its whole state, its pictures. Needs the extra `vlrl[sim]`."""

from __future__ import annotations

import atexit
import os
from ctypes.util import find_library
from functools import lru_cache
from types import ModuleType
from typing import Any

import numpy as np
from PIL import Image

from robot.robot import RobotError
from vlrl.types import UserError

UNSTABLE = ("mjWARN_BADQPOS", "mjWARN_BADQVEL", "mjWARN_BADQACC")


@lru_cache(maxsize=1)
def load_mujoco() -> ModuleType:
    """The simulator, told to render without a screen where there is none: with EGL, or OSMesa where that is missing.

    Raises:
        UserError: it is not installed.
    """
    if not os.environ.get("DISPLAY"):
        os.environ.setdefault("MUJOCO_GL", "egl" if find_library("EGL") or not find_library("OSMesa") else "osmesa")
    try:
        import mujoco
    except ImportError as error:
        raise UserError("robot: needs MuJoCo: pip install 'vlrl[sim]'") from error
    return mujoco


def state_of(model: Any, data: Any) -> np.ndarray:
    """float64 [n]: all that the next step hangs on, the solver's warm start included."""
    whole = load_mujoco().mjtState.mjSTATE_INTEGRATION
    state = np.empty(load_mujoco().mj_stateSize(model, whole))
    load_mujoco().mj_getState(model, data, state, whole)
    return state


def put_state(model: Any, data: Any, state: np.ndarray) -> None:
    """Makes `data` go on from `state_of`, bit for bit."""
    load_mujoco().mj_resetData(model, data)  # counts of warnings, and whatever else a state leaves out
    load_mujoco().mj_setState(model, data, state, load_mujoco().mjtState.mjSTATE_INTEGRATION)


def advance(model: Any, data: Any, steps: int) -> None:
    """As many steps of physics.

    Raises:
        RobotError: positions, speeds or forces that are not finite or have grown huge.
    """
    load_mujoco().mj_step(model, data, steps)
    check_stable(data)


def check_stable(data: Any) -> None:
    """RobotError where positions, speeds or forces are not finite or have grown huge."""
    if data.warning.number.any():
        for name in UNSTABLE:
            if data.warning[getattr(load_mujoco().mjtWarning, name)].number:
                raise RobotError(f"the simulation is unstable ({name})")


def renderer(model: Any, size: tuple[int, int]) -> Any:
    """MuJoCo's renderer for pictures of `size` (width, height), closed when the interpreter ends.

    Raises:
        UserError: no way to render.
    """
    model.vis.global_.offwidth, model.vis.global_.offheight = size
    try:
        made = load_mujoco().Renderer(model, size[1], size[0])
    except Exception as error:  # each of MuJoCo's renderers raises errors of its own
        raise UserError(f"robot: MuJoCo cannot render ({error}); try MUJOCO_GL=osmesa") from error
    atexit.register(made.close)  # at the interpreter's own end it fails, and says so
    return made


class Camera:
    """Takes pictures with one of the model's cameras. To be closed.

    Args:
        size: width, height in pixels.

    Raises:
        UserError: no way to render.
    """

    def __init__(self, model: Any, name: str, size: tuple[int, int]):
        self._model, self._name, self._renderer = model, name, renderer(model, size)

    def take(self, data: Any) -> Image.Image:
        """RGB, of the positions as they are now: after a step, MuJoCo's own derived ones are those before it."""
        load_mujoco().mj_kinematics(self._model, data)
        load_mujoco().mj_camlight(self._model, data)
        self._renderer.update_scene(data, self._name)
        return Image.fromarray(self._renderer.render())

    def close(self) -> None:
        self._renderer.close()
        atexit.unregister(self._renderer.close)
