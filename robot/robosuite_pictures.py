"""Pictures of scenes whose model is made anew for every episode, at the price of the picture alone."""

from __future__ import annotations

from typing import Any

import numpy as np
from PIL import Image

from robot.simulation import load_mujoco
from vlrl.types import UserError

COLLISIONS = 0  # robosuite's group of shapes that only collide
ASSETS = ("mesh_vert", "tex_data")


class Pictures:
    """Takes pictures with some of a scene's cameras.

    Making a renderer takes longer than an episode, most of it for meshes and textures. These are the same in all scenes
    of a task, so one renderer serves them all; where they do differ, another is made. Reflections are left out: they
    double the time and change no pixel of Lift by more than 12 of 255. To be closed.

    Raises:
        UserError: no such camera, or a size out of range.
    """

    def __init__(self, model: Any, names: tuple[str, ...], size: tuple[int, ...]):
        known = [model.camera(index).name for index in range(model.ncam)]
        unknown = [name for name in names if name not in known]
        if unknown:
            raise UserError(f"robot.cameras: {', '.join(unknown)}: must be of {', '.join(known)}")
        if not (len(size) == 2 and all(8 <= side <= 1024 for side in size)):
            raise UserError(f"robot.size: {size!r}: must be a width and a height of 8 to 1024 pixels")
        self._names, self._size = names, size
        self._model: Any = None  # whose assets the renderer holds
        self._gl: Any = None
        self._context: Any = None
        self._scene: Any = None

    def take(self, model: Any, data: Any) -> tuple[Image.Image, ...]:
        """RGB, one a camera; positions must be up to date. The first may raise UserError: no way to render."""
        if not self._names:
            return ()
        if self._model is None or not _same(self._model, model):
            self.close()
            self._open(model)
        self._gl.make_current()
        return tuple(self._picture(model, data, name) for name in self._names)

    def close(self) -> None:
        if self._context is not None:
            self._context.free()
        if self._gl is not None:
            self._gl.free()
        self._model = self._gl = self._context = self._scene = None

    def _open(self, model: Any) -> None:
        mujoco, (width, height) = load_mujoco(), self._size
        model.vis.global_.offwidth, model.vis.global_.offheight = width, height
        try:
            self._gl = mujoco.GLContext(width, height)
            self._gl.make_current()
            self._context = mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_100)
            mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN, self._context)
        except Exception as error:  # each of MuJoCo's renderers raises errors of its own
            raise UserError(f"robot: MuJoCo cannot render ({error}); start with MUJOCO_GL=egl or osmesa") from error
        self._scene = mujoco.MjvScene(model, 2 * (model.ngeom + model.nsite) + 100)
        self._scene.flags[mujoco.mjtRndFlag.mjRND_REFLECTION] = 0
        self._model = model

    def _picture(self, model: Any, data: Any, name: str) -> Image.Image:
        mujoco, (width, height) = load_mujoco(), self._size
        camera, option = mujoco.MjvCamera(), mujoco.MjvOption()
        camera.type, camera.fixedcamid = mujoco.mjtCamera.mjCAMERA_FIXED, model.camera(name).id
        option.geomgroup[COLLISIONS] = 0
        mujoco.mjv_updateScene(model, data, option, None, camera, mujoco.mjtCatBit.mjCAT_ALL, self._scene)
        view, pixels = mujoco.MjrRect(0, 0, width, height), np.empty((height, width, 3), np.uint8)
        mujoco.mjr_render(view, self._scene, self._context)
        mujoco.mjr_readPixels(pixels, None, view, self._context)
        return Image.fromarray(pixels[::-1])  # OpenGL counts rows from below


def _same(one: Any, other: Any) -> bool:
    return one is other or all(np.array_equal(getattr(one, name), getattr(other, name)) for name in ASSETS)
