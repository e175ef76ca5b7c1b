"""The robot's table as MuJoCo simulates and draws it. One compiled model serves all episodes.

A scene sets its objects' forms, sizes and colours, the target, the surfaces and the lamp.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from robot.simulation import load_mujoco
from robot.simulation import renderer as rendered
from tasks.drawn.robot_model import BASE, FORE, HAND, OPEN, SHOULDER, SLOTS, TARGETS, UPPER, xml

HIDDEN = -5.0  # height of what is not wanted
HOME = (-0.05, 0.0, 0.24, 0.0)  # x, y, z in metres and the angle of the hand, where it begins
FORMS = {"cube": "mjGEOM_BOX", "ball": "mjGEOM_SPHERE", "can": "mjGEOM_CYLINDER"}
PARTS = ("left", "right", "table", *TARGETS, *(f"object{i}" for i in range(SLOTS)))  # bodies whose contacts count
FIRST = PARTS.index("object0")


@dataclass(frozen=True)
class Thing:
    """A loose object: `half` is half its height in metres (a cube's half edge, a ball's radius)."""

    form: str  # of FORMS
    color: str
    rgb: tuple[float, float, float]
    half: float
    x: float
    y: float
    turn: float  # radians

    @property
    def name(self) -> str:
        return f"{self.color} {self.form}"

    @property
    def size(self) -> tuple[float, float, float]:
        return (0.8 * self.half, self.half, 0.0) if self.form == "can" else (self.half, self.half, self.half)


@dataclass(frozen=True)
class Look:
    """What an environment looks like."""

    azimuth: float  # of the camera, degrees
    elevation: float  # degrees
    distance: float  # metres
    table: tuple[str, tuple[float, float, float]]  # surface and colour
    floor: tuple[str, tuple[float, float, float]]
    arm: tuple[float, float, float]
    target: tuple[float, float, float]
    lamp: tuple[float, float, float]  # x, y in metres and brightness


@dataclass(frozen=True)
class Scene:
    things: tuple[Thing, ...]  # SLOTS
    target: str | None  # of TARGETS
    spot: tuple[float, float]  # the target's middle
    look: Look


def joints(x: float, y: float, z: float, angle: float) -> tuple[float, float, float, float, float]:
    """Joint angles that bring the grip there, the hand pointing down and its fingers opening along `angle`."""
    base, far, high = math.atan2(y, x - BASE), math.hypot(x - BASE, y), z + HAND - SHOULDER
    away = min(math.hypot(far, high), UPPER + FORE - 1e-6)
    elbow = math.acos(max(-1.0, (away**2 - UPPER**2 - FORE**2) / (2 * UPPER * FORE)))
    shoulder = math.atan2(far, high) - math.atan2(FORE * math.sin(elbow), UPPER + FORE * math.cos(elbow))
    return base, shoulder, elbow, math.pi - shoulder - elbow, base + math.pi / 2 - angle


@lru_cache(maxsize=1)
def simulator() -> tuple[Any, Any]:
    """MuJoCo's model and data. UserError: no MuJoCo."""
    model = load_mujoco().MjModel.from_xml_string(xml())
    model.geom_sameframe[:] = 0  # compiled to stand where they were written, but they are moved
    return model, load_mujoco().MjData(model)


@lru_cache(maxsize=2)
def renderer(size: tuple[int, int]) -> Any:
    """For pictures of `size` (width, height). UserError: no way to render."""
    model, _ = simulator()
    return rendered(model, size)


@lru_cache(maxsize=1)
def parts() -> np.ndarray:
    """int [geoms]: for each geom the place of its body in PARTS, or len(PARTS)."""
    model, _ = simulator()
    places = {model.body(name).id: place for place, name in enumerate(PARTS)}
    return np.array([places.get(body, len(PARTS)) for body in model.geom_bodyid])


def furnish(scene: Scene) -> None:
    """Makes the simulator's scene this one, at rest, the arm at HOME."""
    model, data = simulator()
    load_mujoco().mj_resetData(model, data)
    for slot, thing in enumerate(scene.things):
        geom = model.geom(f"object{slot}").id
        model.geom_type[geom] = getattr(load_mujoco().mjtGeom, FORMS[thing.form])
        model.geom_size[geom], model.geom_rgba[geom, :3] = thing.size, thing.rgb
        pose = (thing.x, thing.y, thing.half, math.cos(thing.turn / 2), 0, 0, math.sin(thing.turn / 2))
        data.joint(f"object{slot}").qpos[:] = pose
    for name in TARGETS:
        model.body(name).pos[:] = (*scene.spot, 0.0) if name == scene.target else (0, 0, HIDDEN)
    _paint(model, scene.look)
    data.qpos[:5] = data.ctrl[:5] = joints(*HOME)
    data.qpos[5:7] = data.ctrl[5:7] = OPEN


def _paint(model: Any, look: Look) -> None:
    for name, (surface, rgb) in {"table": look.table, "floor": look.floor}.items():
        model.geom(name).matid[:] = model.material(f"{surface}_{name}").id
        model.geom(name).rgba[:3] = rgb
    model.material("arm").rgba[:3], model.material("target").rgba[:3] = look.arm, look.target
    model.light("lamp").pos[:2], model.light("lamp").diffuse[:] = look.lamp[:2], look.lamp[2]


def camera(look: Look) -> Any:
    made = load_mujoco().MjvCamera()
    made.lookat[:] = (0.0, 0.0, 0.06)
    made.distance, made.azimuth, made.elevation = look.distance, look.azimuth, look.elevation
    return made
