"""MuJoCo, told to render without a screen where there is none."""

from __future__ import annotations

import atexit
import os
from functools import lru_cache
from types import ModuleType
from typing import Any

from vlrl.types import UserError


@lru_cache(maxsize=1)
def load_mujoco() -> ModuleType:
    """The simulator, told to render without a screen where there is none."""
    if not os.environ.get("DISPLAY"):
        os.environ.setdefault("MUJOCO_GL", "egl")
    try:
        import mujoco
    except ImportError as error:
        raise UserError("simulated robots need MuJoCo: pip install 'vlrl[sim]'") from error
    return mujoco


def renderer(model: Any, size: tuple[int, int]) -> Any:
    """For pictures of `size` (width, height), closed when the interpreter ends. UserError: no way to render."""
    model.vis.global_.offwidth, model.vis.global_.offheight = size
    try:
        made = load_mujoco().Renderer(model, size[1], size[0])
    except Exception as error:  # each of MuJoCo's renderers raises errors of its own
        raise UserError(f"MuJoCo cannot render ({error}); try MUJOCO_GL=osmesa") from error
    atexit.register(made.close)  # at the interpreter's own end it fails, and says so
    return made
