"""Making Gymnasium's environments."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from robot.simulation import load_mujoco
from vlrl.types import UserError


def make(id: str, options: Mapping[str, Any]) -> Any:
    """The environment, made so that MuJoCo renders without a screen and pygame says no hello.

    Raises:
        UserError: gymnasium is missing or cannot make it.
    """
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    if find_spec("mujoco"):
        load_mujoco()
    try:
        import gymnasium
    except ImportError as error:
        raise UserError("robot: needs gymnasium: pip install 'vlrl[sims]'") from error
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "pkg_resources is deprecated")  # pygame's
            return gymnasium.make(id, disable_env_checker=True, **options)
    except Exception as error:  # environments raise what they like
        line = next(iter(str(error).splitlines()), "") or type(error).__name__
        raise UserError(f"robot.id: gymnasium cannot make {id!r}: {line}") from error


def needs(module: str, package: str) -> None:
    """Raises UserError where a simulator's module is not installed."""
    if find_spec(module) is None:
        raise UserError(f"robot: needs {package}: pip install 'vlrl[sims]'")


def rate(hz: float | None, env: Any) -> float:
    """Ticks a second, as said or as the environment says.

    Raises:
        UserError: neither says it, or not a rate.
    """
    said = hz if hz is not None else env.metadata.get("render_fps")
    if said is None or not 0 < said < math.inf:
        raise UserError(f"robot.hz: {said}: must be the ticks a second, above 0")
    return float(said)
