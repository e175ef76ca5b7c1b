"""Table scenes with a robot arm, rendered by MuJoCo; the objects' boxes are what its segmentation shows of them.

No assets: a table, an arm of capsules with a gripper, and `SLOTS` objects of each label, those not wanted out of sight.
Rendering without a screen needs EGL or OSMesa (`make system`), the simulator the extra `vlrl[sim]`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from PIL import Image

from rewards.parse import Object
from robot.sim.tabletop import load_mujoco, renderer
from vlrl.types import Split

GEOMS = {  # label -> MuJoCo type and half extents for an object of unit size
    "cube": ("box", (0.5, 0.5, 0.5)),
    "ball": ("sphere", (0.55, 0, 0)),
    "can": ("cylinder", (0.32, 0.6, 0)),
    "plate": ("cylinder", (0.75, 0.1, 0)),
    "bar": ("box", (0.9, 0.22, 0.22)),
}
LABELS = tuple(GEOMS)
SLOTS = 6  # of each label
TABLE = 0.5  # half its side, in metres
HIDDEN = -5.0  # height of what is not wanted
LEAST_SEEN = 12  # pixels; less of an object is not asked for
LINKS = (0.34, 0.3, 0.16)  # lengths of the arm's parts, in metres


def draw_scene(
    rng: np.random.Generator, split: Split, labels: Sequence[str], size: tuple[int, int], side: tuple[float, float]
) -> tuple[Image.Image, tuple[Object, ...]]:
    """A scene of `size` (width, height) pixels with an object of each label, as far as there is room, and the boxes of
    what can be seen of them. `side` bounds an object's size as a share of the table's side. At most SLOTS of a label.

    Light, colours, poses, arm and camera are random, for both splits alike. UserError: no MuJoCo, no way to render.
    """
    model, data, drawer = _simulator(size)
    model.geom_pos[model.geom_group == 1] = (0, 0, HIDDEN)
    chosen = _arrange(rng, model, labels, side)
    model.geom("table").rgba[:3] = rng.uniform(0.15, 0.85, 3)
    model.geom("floor").rgba[:3] = rng.uniform(0.1, 0.7, 3)
    model.light("lamp").pos[:2] = rng.uniform(-1.5, 1.5, 2)
    model.light("lamp").diffuse[:] = rng.uniform(0.4, 0.9)
    data.qpos[:] = rng.uniform((-2.5, -0.9, 0.3, -0.5), (2.5, 0.4, 1.5, 0.5))
    camera = _camera(rng)
    load_mujoco().mj_forward(model, data)
    drawer.update_scene(data, camera)
    image = Image.fromarray(drawer.render())
    drawer.enable_segmentation_rendering()
    drawer.update_scene(data, camera)
    segments = drawer.render()[..., 0].copy()
    drawer.disable_segmentation_rendering()
    pixels_of = ((label, np.argwhere(segments == geom)) for label, geom in chosen)
    return image, tuple(_object(label, pixels) for label, pixels in pixels_of if len(pixels) >= LEAST_SEEN)


def _object(label: str, pixels: np.ndarray) -> Object:
    (top, left), (low, right) = pixels.min(0), pixels.max(0)
    return Object(label, (float(left), float(top), float(right + 1), float(low + 1)))


def _arrange(
    rng: np.random.Generator, model: Any, labels: Sequence[str], side: tuple[float, float]
) -> list[tuple[str, int]]:
    """Puts an object of each label on the table, where there is room: [(label, geom id)]."""
    placed: list[tuple[float, float, float]] = []
    chosen = []
    for label in labels:
        slot = sum(other == label for other, _ in chosen)
        extent = rng.uniform(*side) * 2 * TABLE
        spot = _spot(rng, extent, placed)
        if slot >= SLOTS or spot is None:
            continue
        geom = model.geom(f"{label}{slot}")
        half = extent * np.asarray(GEOMS[label][1])
        height = half[0] if label == "ball" else half[1] if GEOMS[label][0] == "cylinder" else half[2]
        geom.size[:], geom.pos[:], turn = half, (*spot, height), rng.uniform(0, np.pi)
        geom.quat[:] = (np.cos(turn), 0, 0, np.sin(turn))
        geom.rgba[:3] = rng.uniform(0.1, 1.0, 3)
        placed.append((*spot, extent))
        chosen.append((label, geom.id))
    return chosen


def _spot(rng: np.random.Generator, extent: float, placed: list[tuple[float, float, float]]):
    room = TABLE - extent / 2
    for _ in range(40):
        x, y = rng.uniform(-room, room, 2)
        if all(np.hypot(x - a, y - b) > 0.75 * (extent + other) for a, b, other in placed):
            return float(x), float(y)
    return None


def _camera(rng: np.random.Generator) -> Any:
    camera = load_mujoco().MjvCamera()
    camera.lookat[:] = (0, 0, 0.05)
    camera.distance, camera.azimuth, camera.elevation = (
        rng.uniform(1.25, 1.6),
        rng.uniform(0, 360),
        -rng.uniform(45, 80),
    )
    return camera


@lru_cache(maxsize=2)
def _simulator(size: tuple[int, int]) -> tuple[Any, Any, Any]:
    mujoco = load_mujoco()
    model = mujoco.MjModel.from_xml_string(_xml(size))
    model.geom_sameframe[:] = 0  # compiled to stand where they were written, but they are moved
    return model, mujoco.MjData(model), renderer(model, size)


def _xml(size: tuple[int, int]) -> str:
    geoms = "".join(
        f'<geom name="{label}{slot}" type="{kind}" size="{" ".join(map(str, np.asarray(half) * 0.1))}" group="1"/>'
        for label, (kind, half) in GEOMS.items()
        for slot in range(SLOTS)
    )
    upper, lower, hand = LINKS
    return f"""
<mujoco>
  <visual><global offwidth="{size[0]}" offheight="{size[1]}"/><headlight ambient="0.35 0.35 0.35"/></visual>
  <default><geom contype="0" conaffinity="0"/></default>
  <worldbody>
    <light name="lamp" pos="0 0 2.5" dir="0 0 -1" directional="false"/>
    <geom name="floor" type="plane" size="3 3 0.1" pos="0 0 -0.6"/>
    <geom name="table" type="box" size="{TABLE} {TABLE} 0.03" pos="0 0 -0.03"/>
    {geoms}
    <body pos="-{TABLE} 0 0">
      <joint axis="0 0 1"/>
      <geom type="cylinder" size="0.06 0.05" rgba="0.9 0.9 0.92 1"/>
      <body pos="0 0 0.05">
        <joint axis="0 1 0"/>
        <geom type="capsule" fromto="0 0 0 0 0 {upper}" size="0.035" rgba="0.95 0.95 0.95 1"/>
        <body pos="0 0 {upper}">
          <joint axis="0 1 0"/>
          <geom type="capsule" fromto="0 0 0 0 0 {lower}" size="0.03" rgba="0.8 0.8 0.82 1"/>
          <body pos="0 0 {lower}">
            <joint axis="0 1 0"/>
            <geom type="box" size="0.05 0.02 0.02" pos="0 0 0.03" rgba="0.2 0.2 0.22 1"/>
            <geom type="box" size="0.008 0.015 {hand / 4}" pos="0.035 0 {hand / 2}" rgba="0.15 0.15 0.15 1"/>
            <geom type="box" size="0.008 0.015 {hand / 4}" pos="-0.035 0 {hand / 2}" rgba="0.15 0.15 0.15 1"/>
          </body>
        </body>
      </body>
    </body>
  </worldbody>
</mujoco>"""
