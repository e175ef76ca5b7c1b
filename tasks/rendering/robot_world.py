"""The simulated arm of robot videos: model, world, looks, jobs, scripted expert, events."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from robot.sim.tabletop import load_mujoco
from robot.sim.tabletop import renderer as rendered

# The MJCF model of a table with a robot arm, four loose objects and things to put them on.
#
# An arm of five joints with a hand that points down and two fingers, all moved by position actuators; the fingers'
# force
# is bounded. Objects are held by friction alone: there are no welds.

SLOTS = 4  # loose objects
TARGETS = ("plate", "tray", "bin")
TOPS = {"plate": 0.012, "tray": 0.012, "bin": 0.008}  # height of what an object comes to stand on, in metres
SURFACES = ("plain", "dotted", "checked")  # of table and floor
LARGEST = 0.042  # metres: half an object's greatest extent; MuJoCo's bounds for collisions are compiled from it
STEP, SUBSTEPS = 0.02 / 3, 3  # seconds of a step of physics; steps for one of control
CONTROL = STEP * SUBSTEPS  # seconds
BASE, SHOULDER, UPPER, FORE, HAND = -0.4, 0.14, 0.38, 0.36, 0.15  # the arm, in metres; HAND: wrist to grip
OPEN = 0.056  # metres from the grip's middle to an opened finger


def xml() -> str:
    """The model in MJCF."""
    materials = "".join(
        f'<material name="plain_{name}"/>'
        f'<material name="dotted_{name}" texture="dotted" texrepeat="{many} {many}"/>'
        f'<material name="checked_{name}" texture="checked" texrepeat="{many} {many}"/>'
        for name, many in (("table", 5), ("floor", 12))
    )
    objects = "".join(
        f'<body name="object{i}" pos="{i} 2 0.03"><joint name="object{i}" type="free" damping="0.0002"/>'
        f'<inertial pos="0 0 0" mass="0.08" diaginertia="5e-5 5e-5 5e-5"/>'
        f'<geom name="object{i}" type="box" size="{LARGEST} {LARGEST} {LARGEST}" contype="1" conaffinity="1"/></body>'
        for i in range(SLOTS)
    )
    return f"""
<mujoco>
  <option timestep="{STEP}" integrator="implicitfast" iterations="8" ls_iterations="8"/>
  <visual>
    <quality shadowsize="0" offsamples="4" numslices="16" numstacks="8"/>
    <headlight ambient="0.4 0.4 0.4" diffuse="0.3 0.3 0.3" specular="0 0 0"/>
  </visual>
  <asset>
    <texture name="dotted" type="2d" builtin="gradient" rgb1="1 1 1" rgb2="0.7 0.7 0.7" width="32" height="32"/>
    <texture name="checked" type="2d" builtin="checker" rgb1="1 1 1" rgb2="0.7 0.7 0.7" width="32" height="32"/>
    <material name="arm" rgba="1 1 1 1"/><material name="target" rgba="1 1 1 1"/>{materials}
  </asset>
  <default>
    <geom contype="0" conaffinity="0" friction="0.9 0.005 0.0001" solref="0.015 1"/>
    <joint armature="0.08" damping="1"/>
    <position kp="900" dampratio="1"/>
    <default class="target"><geom type="box" material="target" contype="1"/></default>
  </default>
  <worldbody>
    <light name="lamp" pos="0 0 2.5" dir="0 0 -1" directional="false" castshadow="false"/>
    <geom name="floor" type="plane" size="3 3 0.1" pos="0 0 -0.5" material="plain_floor"/>
    <body name="table">
      <geom name="table" type="box" size="0.5 0.42 0.03" pos="0 0 -0.03" material="plain_table"/>
      <geom type="plane" size="0.5 0.42 0.1" contype="1" group="4"/>
    </body>
    <body name="plate"><geom class="target" type="cylinder" size="0.15 0.006" pos="0 0 0.006"/></body>
    <body name="tray"><geom class="target" size="0.15 0.09 0.006" pos="0 0 0.006"/></body>
    <body name="bin">
      <geom class="target" size="0.16 0.075 0.004" pos="0 0 0.004"/>
      <geom class="target" size="0.005 0.075 0.025" pos="0.16 0 0.025"/>
      <geom class="target" size="0.005 0.075 0.025" pos="-0.16 0 0.025"/>
      <geom class="target" size="0.16 0.005 0.025" pos="0 0.075 0.025"/>
      <geom class="target" size="0.16 0.005 0.025" pos="0 -0.075 0.025"/>
    </body>
    {_arm()}
    {objects}
  </worldbody>
  <actuator>
    <position joint="base"/><position joint="shoulder"/><position joint="elbow"/>
    <position joint="wrist"/><position joint="roll"/>
    <position joint="left" kp="500" dampratio="1" forcerange="-9 9"/>
    <position joint="right" kp="500" dampratio="1" forcerange="-9 9"/>
  </actuator>
</mujoco>"""


def _arm() -> str:
    """The arm: base, shoulder, elbow, wrist, and the hand with its two fingers."""
    fingers = "".join(
        f'<body name="{name}" pos="0 0 {HAND}"><joint name="{name}" type="slide" axis="0 {side} 0" range="0 {OPEN}" '
        f'limited="true" armature="0.05" damping="4"/>'
        f'<geom type="box" size="0.014 0.007 0.035" pos="0 {side * 0.007} -0.012" mass="0.03" rgba="0.1 0.1 0.12 1" '
        f'contype="1" friction="1.6 0.02 0.001" condim="4" priority="1" solref="0.01 1"/></body>'
        for name, side in (("left", 1), ("right", -1))
    )
    return f"""<body pos="{BASE} 0 0" gravcomp="1">
      <joint name="base" axis="0 0 1"/>
      <geom type="cylinder" size="0.07 {SHOULDER / 2 - 0.02}" pos="0 0 {SHOULDER / 2 - 0.02}" material="arm" mass="1"/>
      <body pos="0 0 {SHOULDER}" gravcomp="1">
        <joint name="shoulder" axis="0 1 0"/>
        <geom type="capsule" fromto="0 0 0 0 0 {UPPER}" size="0.04" material="arm" mass="0.5"/>
        <body pos="0 0 {UPPER}" gravcomp="1">
          <joint name="elbow" axis="0 1 0"/>
          <geom type="capsule" fromto="0 0 0 0 0 {FORE}" size="0.032" material="arm" mass="0.4"/>
          <body pos="0 0 {FORE}" gravcomp="1">
            <joint name="wrist" axis="0 1 0"/>
            <geom type="capsule" fromto="0 0 0 0 0 0.05" size="0.03" rgba="0.25 0.25 0.28 1" mass="0.1"/>
            <body gravcomp="1">
              <joint name="roll" axis="0 0 1"/>
              <geom type="box" size="0.018 0.062 0.015" pos="0 0 {HAND - 0.06}" rgba="0.25 0.25 0.28 1" mass="0.1"/>
              <site name="grip" pos="0 0 {HAND}"/>
              {fingers}
            </body>
          </body>
        </body>
      </body>
    </body>"""


HIDDEN = -5.0  # height of what is not wanted
HOME = (-0.05, 0.0, 0.24, 0.0)  # x, y, z in metres and the angle of the hand, where it begins
FORMS = {"cube": "mjGEOM_BOX", "ball": "mjGEOM_SPHERE", "can": "mjGEOM_CYLINDER"}
PARTS = ("left", "right", "table", *TARGETS, *(f"object{i}" for i in range(SLOTS)))  # bodies whose contacts count
FIRST = PARTS.index("object0")


@dataclass(frozen=True)
class LooseObject:
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
class WorldLook:
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
class WorldScene:
    things: tuple[LooseObject, ...]  # SLOTS
    target: str | None  # of TARGETS
    spot: tuple[float, float]  # the target's middle
    look: WorldLook


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
def find_geom_parts() -> np.ndarray:
    """int [geoms]: for each geom the place of its body in PARTS, or len(PARTS)."""
    model, _ = simulator()
    places = {model.body(name).id: place for place, name in enumerate(PARTS)}
    return np.array([places.get(body, len(PARTS)) for body in model.geom_bodyid])


def furnish(scene: WorldScene) -> None:
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


def _paint(model: Any, look: WorldLook) -> None:
    for name, (surface, rgb) in {"table": look.table, "floor": look.floor}.items():
        model.geom(name).matid[:] = model.material(f"{surface}_{name}").id
        model.geom(name).rgba[:3] = rgb
    model.material("arm").rgba[:3], model.material("target").rgba[:3] = look.arm, look.target
    model.light("lamp").pos[:2], model.light("lamp").diffuse[:] = look.lamp[:2], look.lamp[2]


def camera(look: WorldLook) -> Any:
    view = load_mujoco().MjvCamera()
    view.lookat[:] = (0.0, 0.0, 0.06)
    view.distance, view.azimuth, view.elevation = look.distance, look.azimuth, look.elevation
    return view


# What the robot did and when, read from the record of the simulator's state alone; the script is not asked.
#
# Of an object that both fingers held in the air:
# - reached: from when the hand began to come nearer until the object was between the fingers;
# - grasped: from then until, between both fingers, it no longer touched what it stood on;
# - lifted: from then until it had risen by all but a twentieth of what it rose in all;
# - moved: from then until it was above the place where it came to rest;
# - placed: from then until it lay at rest on its support and no finger touched it.

NEAR = 0.016  # metres between grip and object: it is between the fingers
SLACK = 0.01  # metres of the way to the object that do not count as coming nearer
OVER = 0.02  # metres beside the place of rest
RISEN = 0.95  # of the height gained
ROBOT_EVENTS_CALM = 5  # steps of control: a contact may flicker for as long, what lies still does so for longer
STILL = 0.002  # metres that an object at rest trembles at most
LIFTED = 0.03  # metres: to rise less is no lift
LEFT, RIGHT = PARTS.index("left"), PARTS.index("right")
STATIC = [PARTS.index(name) for name in ("table", *TARGETS)]


@dataclass(frozen=True, eq=False)
class StateTrace:
    """The simulator's state at every step of control: step i is the state at i * CONTROL seconds."""

    qpos: np.ndarray  # float64 [n, nq]
    grip: np.ndarray  # float64 [n, 3], metres
    objects: np.ndarray  # float64 [n, SLOTS, 3], metres
    touch: np.ndarray  # bool [n, PARTS, PARTS], symmetric: which parts touch

    @property
    def duration(self) -> float:
        return len(self.qpos) * CONTROL


@dataclass(frozen=True)
class Handling:
    """One object's way through the hand: the steps at which its phases begin and end."""

    what: int
    support: int  # of PARTS: what it came to rest on
    steps: tuple[int, int, int, int, int, int]  # reach, grasp, lift, move, place, end


def handled(record: StateTrace) -> tuple[Handling, ...]:
    """The objects that were lifted and put down again, in order of time.

    An object that was lifted and lost, or lifted twice, is told up to nothing: it is not in the list.
    """
    handlings: list[Handling] = []
    flights = [(start, end, what) for what in range(record.objects.shape[1]) for start, end in _flights(record, what)]
    for start, end, what in sorted(flights):
        if sum(other == what for _, _, other in flights) == 1:
            one = _handling(record, what, start, end, handlings[-1].steps[-1] if handlings else 0)
            handlings += [one] if one else []
    return tuple(handlings)


def _flights(record: StateTrace, what: int) -> list[tuple[int, int]]:
    """Steps [start, end): from when the object last left its support until the fingers no longer both touch it."""
    part, height = FIRST + what, record.objects[:, what, 2]
    both = record.touch[:, LEFT, part] & record.touch[:, RIGHT, part]
    supported = record.touch[:, part].sum(1) > both * 2
    flights = []
    for start, end in _runs(both):
        high = np.flatnonzero(height[start:end] > height[start] + LIFTED)
        if len(high):
            below = np.flatnonzero(supported[start : start + high[0]])
            flights.append((start + int(below[-1]) + 1 if len(below) else start, end))
    return flights


def _runs(held: np.ndarray) -> list[tuple[int, int]]:
    """Steps [start, end) for which bool [n] is true, but for moments: a contact may flicker."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], held, [0]])))
    joined: list[tuple[int, int]] = []
    for start, end in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
        if joined and start - joined[-1][1] <= ROBOT_EVENTS_CALM:
            start = joined.pop()[0]
        joined.append((start, end))
    return joined


def _handling(record: StateTrace, what: int, start: int, end: int, since: int) -> Handling | None:
    """The phases around a flight; None where one of them is missing."""
    spots = record.objects[:, what]
    apart = np.linalg.norm(record.grip - spots, axis=1)
    away = np.flatnonzero(apart[since:start] >= NEAR) + since
    rest = _rest(record, what, end)
    if not len(away) or rest is None:
        return None
    between = int(away[-1]) + 1
    reach = since + int(np.flatnonzero(apart[since:between] >= apart[since:between].max() - SLACK)[-1])
    gained = spots[start:end, 2] - spots[start, 2]
    risen = start + int(np.argmax(gained >= RISEN * gained.max()))
    over = risen + int(np.argmax(np.linalg.norm(spots[risen:rest, :2] - spots[rest, :2], axis=1) < OVER))
    steps = (reach, between, start, risen, over, rest)
    return Handling(what, _support(record, what, rest), steps) if list(steps) == sorted(set(steps)) else None


def _rest(record: StateTrace, what: int, end: int) -> int | None:
    """The first step after a flight from which the object lies still for CALM steps, untouched by the fingers."""
    part, spots = FIRST + what, record.objects[:, what]
    for step in range(end, len(spots) - ROBOT_EVENTS_CALM):
        moved = np.abs(spots[step : step + ROBOT_EVENTS_CALM] - spots[step]).max()
        touched = record.touch[step : step + ROBOT_EVENTS_CALM, part].any(0)
        if moved < STILL and touched.any() and not touched[LEFT] and not touched[RIGHT]:
            return step
    return None


def _support(record: StateTrace, what: int, step: int) -> int:
    """What the object lies on: a target before the table, and either before another object that it leans on."""
    touched = record.touch[step : step + ROBOT_EVENTS_CALM, FIRST + what].any(0)  # at rest a contact may flicker, too
    fixed = [part for part in STATIC if touched[part]]
    return fixed[-1] if fixed else FIRST + int(np.argmax(touched[FIRST:]))


# A script that picks and places, with noise: what the hand is told to do, at every step of control.
#
# It knows where the objects are when it starts a move and nothing later. Whether a grasp holds is for the physics to
# say.

CARRY = 0.2  # metres: height of the grip while it travels
SHUT = 0.0
STRAY, ROBOT_EXPERT_CALM = 0.004, 0.3  # metres that the hand strays from its path, and the seconds that takes to change
MISS = 0.003  # metres by which it misses the object's middle

Pose = tuple[float, float, float, float]  # x, y, z in metres, angle of the fingers in radians


def commands(rng: np.random.Generator, start: Pose, source: Pose, goal: Pose) -> np.ndarray:
    """float [n, 5]: pose and half opening of the hand in steps of CONTROL seconds, for one object.

    From `start` over `source`, down, shut, up, over `goal`, down, open and up again.
    """
    source = (*rng.normal(source[:2], MISS), source[2], source[3])
    above, over = (*source[:2], CARRY, source[3]), (*goal[:2], CARRY, goal[3])
    pace = rng.uniform(0.8, 1.35)
    path = [
        _still(start, OPEN, rng.uniform(0.05, 0.4)),
        _go(start, above, OPEN, pace),
        _go(above, source, OPEN, pace),
        _still(source, SHUT, rng.uniform(0.35, 0.6)),
        _go(source, above, SHUT, pace),
        _go(above, over, SHUT, pace),
        _go(over, goal, SHUT, pace),
        _still(goal, SHUT, 0.1),
        _still(goal, OPEN, rng.uniform(0.25, 0.4)),
        _go(goal, over, OPEN, pace),
    ]
    joined = np.concatenate(path)
    joined[:, :3] += _stray(rng, len(joined))
    return joined


def fingers_along(x: float, y: float, turn: float | None) -> float:
    """The angle along which the fingers open at a place: across a cube turned by `turn`, or across the arm."""
    across = math.atan2(y, x - BASE) + math.pi / 2
    if turn is None:
        return across
    return across + (turn - across + math.pi / 4) % (math.pi / 2) - math.pi / 4


def _go(start: Pose, end: Pose, opening: float, pace: float) -> np.ndarray:
    """A smooth way (minimum jerk) between two poses."""
    a, b = np.array(start), np.array(end)
    n = max(2, round((0.25 + np.linalg.norm(b[:3] - a[:3]) / 0.4) / pace / CONTROL))
    t = (np.arange(n) + 1)[:, None] / n
    way = a + (b - a) * (10 * t**3 - 15 * t**4 + 6 * t**5)
    return np.column_stack([way, np.full(n, opening)])


def _still(pose: Pose, opening: float, seconds: float) -> np.ndarray:
    return np.tile([*pose, opening], (max(1, round(seconds / CONTROL)), 1))


def _stray(rng: np.random.Generator, n: int) -> np.ndarray:
    """metres [n, 3]: smooth noise, a line through random points; none at the beginning, little in height."""
    knots = np.arange(0, n * CONTROL + ROBOT_EXPERT_CALM, ROBOT_EXPERT_CALM)
    points = rng.normal(0, STRAY / 2, (len(knots), 3)).clip(-STRAY, STRAY) * (1, 1, 0.5)
    points[0] = points[-1] = 0
    times = np.arange(n) * CONTROL
    return np.stack([np.interp(times, knots, column) for column in points.T], axis=1)


# Environments of the robot's videos: training's own, and held-out ones that share no colour and no camera with them.
#
# Three levels as SEED-Bench-R1 has them (2503.24376): L1 is like training; L2 has held-out cameras, surfaces, light,
# colours of the arm and of the objects; L3 has those and tasks that training never shows.

RGB = tuple[float, float, float]
LEVELS = ("L1", "L2", "L3")


@dataclass(frozen=True)
class LookRanges:
    """What looks are drawn from: (low, high) of numbers, and the colours that there are."""

    azimuth: tuple[float, float]  # degrees; the arm stands at 180 and looks to 0
    elevation: tuple[float, float]  # degrees
    surfaces: tuple[str, ...]  # of robot_world.SURFACES
    tables: tuple[RGB, ...]
    floors: tuple[RGB, ...]
    arms: tuple[RGB, ...]
    targets: tuple[RGB, ...]
    lamp_side: int  # of y: -1 or 1
    brightness: tuple[float, float]
    objects: tuple[tuple[str, RGB], ...]  # name of a colour, colour


TRAINED = LookRanges(
    azimuth=(105, 160),
    elevation=(-48, -36),
    surfaces=("plain", "dotted"),
    tables=((0.72, 0.55, 0.38), (0.55, 0.57, 0.6), (0.4, 0.3, 0.22)),
    floors=((0.35, 0.36, 0.4), (0.6, 0.58, 0.52)),
    arms=((0.92, 0.92, 0.94), (0.95, 0.55, 0.15)),
    targets=((0.95, 0.95, 0.9), (0.25, 0.25, 0.28)),
    lamp_side=1,
    brightness=(0.6, 0.75),
    objects=(("red", (0.85, 0.1, 0.1)), ("blue", (0.1, 0.2, 0.9)), ("green", (0.1, 0.62, 0.15)),
             ("yellow", (0.97, 0.85, 0.1))),
)  # fmt: skip
HELD_OUT = LookRanges(
    azimuth=(200, 255),
    elevation=(-62, -52),
    surfaces=("checked",),
    tables=((0.3, 0.42, 0.36), (0.75, 0.72, 0.78), (0.28, 0.3, 0.42)),
    floors=((0.5, 0.35, 0.3), (0.2, 0.28, 0.25)),
    arms=((0.3, 0.5, 0.75), (0.55, 0.75, 0.35)),
    targets=((0.85, 0.6, 0.3), (0.4, 0.25, 0.2)),
    lamp_side=-1,
    brightness=(0.8, 1.0),
    objects=(("purple", (0.5, 0.12, 0.65)), ("pink", (0.98, 0.5, 0.7)), ("cyan", (0.1, 0.85, 0.9)),
             ("white", (0.97, 0.97, 0.97))),
)  # fmt: skip
ENVIRONMENTS = {"L1": TRAINED, "L2": HELD_OUT, "L3": HELD_OUT}


def draw_look(rng: np.random.Generator, environment: LookRanges) -> WorldLook:
    """A camera, light and surfaces of that environment."""

    def one(options):
        return options[int(rng.integers(len(options)))]

    lamp = (rng.uniform(-1, 1), environment.lamp_side * rng.uniform(0.3, 1.2), rng.uniform(*environment.brightness))
    return WorldLook(
        azimuth=rng.uniform(*environment.azimuth),
        elevation=rng.uniform(*environment.elevation),
        distance=rng.uniform(0.95, 1.05),
        table=(one(environment.surfaces), one(environment.tables)),
        floor=(one(environment.surfaces), one(environment.floors)),
        arm=one(environment.arms),
        target=one(environment.targets),
        lamp=lamp,
    )


# What the robot is told to do: a goal in words, the scene for it, and the moves that reach it.
#
# Training puts one to three objects on a plate or a tray, one after another. Held out for L3: objects into a bin,
# objects
# on top of each other, cubes in the order of their sizes.

HALVES = (0.03, 0.038)  # metres: half an object's height
SIZES = (0.022, 0.028, 0.035, 0.042)  # metres: half the edges of cubes that are told apart by size
APART = 0.135  # metres between two objects: room for the fingers
TARGET_SIDE = 0.2  # metres from the middle of the table
SPOTS = (0.1, 0.0, -0.1)  # metres from the target's middle, along its length


@dataclass(frozen=True)
class Move:
    """The robot takes thing `what` and puts it on the target at `spot`, or on thing `onto`."""

    what: int
    spot: tuple[float, float] = (0.0, 0.0)  # metres on the table
    onto: int | None = None


@dataclass(frozen=True)
class RenderJob:
    name: str
    goal: str
    scene: WorldScene
    moves: tuple[Move, ...]


def draw_job(rng: np.random.Generator, level: str) -> RenderJob:
    """A job of that level; every object of its scene has another colour."""
    jobs = JOBS["L3" if level == "L3" else "L1"]
    names = list(jobs)
    name = names[int(rng.integers(len(names)))]
    return jobs[name](rng, name, ENVIRONMENTS[level])


def _placing(rng: np.random.Generator, name: str, environment: LookRanges) -> RenderJob:
    """Some of the objects go onto the target, in the order said."""
    side = float(rng.choice((-1.0, 1.0)))
    things = _things(rng, environment, side, [rng.choice(list(FORMS)) for _ in range(SLOTS)])
    order = [int(i) for i in rng.permutation(SLOTS)[: rng.integers(1, 4)]]
    scene = _scene(rng, environment, things, name, side)
    where = f"{'in' if name == 'bin' else 'on'} the {name}"
    rest = "".join(f", then the {things[i].name}" for i in order[1:])
    return RenderJob(name, f"Put the {things[order[0]].name} {where}{rest}.", scene, _rows(scene, order))


def _sizes(rng: np.random.Generator, name: str, environment: LookRanges) -> RenderJob:
    """Three of four cubes go onto the target by size; the words name none of them."""
    side, word = float(rng.choice((-1.0, 1.0))), str(rng.choice(("smallest", "largest")))
    things = _things(rng, environment, side, ["cube"] * SLOTS, rng.permutation(SIZES).tolist())
    order = sorted(range(SLOTS), key=lambda i: things[i].half, reverse=word == "largest")[:3]
    scene = _scene(rng, environment, things, str(rng.choice(("plate", "tray"))), side)
    return RenderJob(
        name, f"Put the three {word} cubes on the {scene.target}, the {word} first.", scene, _rows(scene, order)
    )


def _stacking(rng: np.random.Generator, name: str, environment: LookRanges) -> RenderJob:
    """One or two cubes go on top of another."""
    things = _things(rng, environment, float(rng.choice((-1.0, 1.0))), ["cube"] * SLOTS)
    moves = [Move(i + 1, onto=i) for i in range(int(rng.integers(1, 3)))]
    phrases = [f"the {things[move.what].name} on the {things[move.onto].name}" for move in moves]
    return RenderJob(
        name, f"Stack {', then '.join(phrases)}.", _scene(rng, environment, things, None, 1.0), tuple(moves)
    )


JOBS: dict[str, dict[str, Callable[..., RenderJob]]] = {
    "L1": {"plate": _placing, "tray": _placing},  # L2 has the same
    "L3": {"bin": _placing, "stack": _stacking, "sizes": _sizes},
}


def _scene(
    rng: np.random.Generator, environment: LookRanges, things: tuple[LooseObject, ...], target: str | None,
    side: float,
) -> WorldScene:  # fmt: skip
    return WorldScene(things, target, (0.02, side * TARGET_SIDE), draw_look(rng, environment))


def _rows(scene: WorldScene, order: Sequence[int]) -> tuple[Move, ...]:
    """Side by side on the target, the first at either end."""
    x, y = scene.spot
    return tuple(Move(what, (x + along, y)) for what, along in zip(order, SPOTS, strict=False))


def _things(
    rng: np.random.Generator, environment: LookRanges, side: float, forms: Sequence[str],
    halves: Sequence[float] | None = None,
) -> tuple[LooseObject, ...]:  # fmt: skip
    """Objects on the part of the table that the target leaves free, far enough from each other."""
    extents = rng.uniform(*HALVES, len(forms)) if halves is None else halves
    colors = [environment.objects[i] for i in rng.permutation(len(environment.objects))[: len(forms)]]
    spots: list[tuple[float, float]] = []
    while len(spots) < len(forms):
        spot = rng.uniform(-0.14, 0.2), -side * rng.uniform(-0.02, 0.27)
        if all(np.hypot(spot[0] - x, spot[1] - y) > APART for x, y in spots):
            spots.append(spot)
        elif rng.random() < 0.02:  # no room left for the last one
            spots.clear()
    return tuple(
        LooseObject(str(form), *color, float(half), float(x), float(y), float(rng.uniform(0, 2 * np.pi)))
        for form, color, half, (x, y) in zip(forms, colors, extents, spots, strict=True)
    )


# Plays a job in the simulator and records its state at every step of control.

SETTLING = 10  # steps of control before the robot starts
IDLE = (10, 40)  # steps of control after it has ended
DROP = 0.004  # metres above its support at which an object is let go


def played(rng: np.random.Generator, job: RenderJob) -> StateTrace:
    """The job as the physics lets it happen."""
    mujoco = load_mujoco()
    model, data = simulator()
    furnish(job.scene)
    states: list[tuple] = []
    mujoco.mj_step(model, data, SETTLING * SUBSTEPS)
    start = HOME
    for move in job.moves:
        source, goal = _ends(job, move, data)
        for x, y, z, angle, opening in commands(rng, start, source, goal).tolist():
            data.ctrl[:] = (*joints(x, y, z, angle), opening, opening)
            states.append(_state(data))
            mujoco.mj_step(model, data, SUBSTEPS)
        start = (x, y, z, angle)
    for _ in range(int(rng.integers(*IDLE))):
        states.append(_state(data))
        mujoco.mj_step(model, data, SUBSTEPS)
    return _recorded(states)


def _state(data: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return data.qpos.copy(), data.site_xpos[0].copy(), data.contact.geom.copy()


def _recorded(states: Sequence[tuple]) -> StateTrace:
    qpos = np.stack([state[0] for state in states])
    touch = np.zeros((len(states), len(PARTS) + 1, len(PARTS) + 1), bool)
    steps = np.repeat(np.arange(len(states)), [len(state[2]) for state in states])
    first, second = find_geom_parts()[np.concatenate([state[2] for state in states])].T
    touch[steps, first, second] = touch[steps, second, first] = True
    objects = qpos[:, 7:].reshape(len(states), SLOTS, 7)[..., :3]
    return StateTrace(qpos, np.stack([state[1] for state in states]), objects, touch[:, :-1, :-1])


def _ends(job: RenderJob, move: Move, data: Any) -> tuple[tuple, tuple]:
    """Poses of the hand at which it takes the object and lets it go, as the objects lie now."""
    thing = job.scene.things[move.what]
    x, y, z, w, _, _, turn = data.joint(f"object{move.what}").qpos.tolist()
    angle = fingers_along(x, y, 2 * np.arctan2(turn, w) if thing.form == "cube" else None)
    if move.onto is None:
        spot, top = move.spot, TOPS[job.scene.target]
    else:
        below = data.joint(f"object{move.onto}").qpos
        spot, top = tuple(below[:2].tolist()), float(below[2]) + job.scene.things[move.onto].half
    return (x, y, z, angle), (*spot, top + thing.half + DROP, np.pi / 2)
