"""A table under a gantry, simulated by MuJoCo: reach a point, touch a thing, push a cube onto a disc, pick it up.

Thousands of ticks a second without pictures. A scene is a seed; success is sparse.
"""

from __future__ import annotations

import atexit
import math
import os
import zlib
from collections.abc import Sequence
from ctypes.util import find_library
from dataclasses import dataclass
from functools import lru_cache
from types import ModuleType
from typing import Any

import numpy as np
from PIL import Image

from robot.types import ActionSpec, Robot, RobotError, RobotStatus, Snapshot
from vlrl.types import Observation, UserError

# MuJoCo: loading it, its whole state, its pictures. Needs the extra `vlrl[sim]`.

UNSTABLE = ("mjWARN_BADQPOS", "mjWARN_BADQVEL", "mjWARN_BADQACC")


def choose_renderer() -> None:
    """Has MuJoCo, here and in processes started from here, render without a screen where there is none."""
    if not os.environ.get("DISPLAY"):
        os.environ.setdefault("MUJOCO_GL", "egl" if find_library("EGL") or not find_library("OSMesa") else "osmesa")


@lru_cache(maxsize=1)
def load_mujoco() -> ModuleType:
    """The simulator, told to render without a screen where there is none: with EGL, or OSMesa where that is missing.

    Raises:
        UserError: it is not installed.
    """
    choose_renderer()
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
        new = load_mujoco().Renderer(model, size[1], size[0])
    except Exception as error:  # each of MuJoCo's renderers raises errors of its own
        raise UserError(f"robot: MuJoCo cannot render ({error}); try MUJOCO_GL=osmesa") from error
    atexit.register(new.close)  # at the interpreter's own end it fails, and says so
    return new


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


# The MJCF of a table under a gantry: a hand on three slides, two fingers, a loose cube, a mark for the goal.
#
# Few bodies and few contacts, so that a step is cheap. The cube is held by friction alone.

STEP, SUBSTEPS = 0.01, 5  # seconds of a step of physics; steps a tick
HZ = round(1 / (STEP * SUBSTEPS))
TABLE = 0.3  # metres: half the table's side
CUBE = 0.022  # metres: half the cube's edge
TABLETOP_MODEL_LOW, HIGH = (-0.28, -0.28, 0.02), (0.28, 0.28, 0.26)  # metres: where the fingers' tips may be driven
OPEN = 0.04  # metres: from the hand's middle to an opened finger
GOALS = ("disc", "point")  # on the table, in the air


def xml(size: tuple[int, int]) -> str:
    """The model, with a buffer for pictures of `size` (width, height)."""
    slides = "".join(
        f'<joint name="{name}" type="slide" axis="{axis}" range="{low} {high}" limited="true"/>'
        for name, axis, low, high in zip("xyz", ("1 0 0", "0 1 0", "0 0 1"), TABLETOP_MODEL_LOW, HIGH, strict=True)
    )
    fingers = "".join(
        f'<body name="{name}"><joint name="{name}" type="slide" axis="0 {side} 0" range="0 {OPEN}" limited="true" '
        f'armature="0.05" damping="4"/><geom type="box" size="0.012 0.006 0.028" pos="0 {side * 0.006} 0.02" '
        f'mass="0.03" rgba="0.12 0.12 0.14 1" contype="1" friction="1.6 0.02 0.001" condim="4" priority="1"/></body>'
        for name, side in (("left", 1), ("right", -1))
    )
    return f"""
<mujoco>
  <option timestep="{STEP}" integrator="implicitfast" iterations="10" ls_iterations="10">
    <flag autoreset="disable"/>
  </option>
  <visual>
    <global offwidth="{size[0]}" offheight="{size[1]}"/>
    <quality shadowsize="0" offsamples="4" numslices="12" numstacks="6"/>
    <headlight ambient="0.45 0.45 0.45" diffuse="0.3 0.3 0.3" specular="0 0 0"/>
  </visual>
  <default>
    <geom contype="0" conaffinity="0" friction="0.6 0.005 0.0001" solref="0.02 1"/>
    <joint armature="0.1" damping="2"/>
    <position kp="600" dampratio="1"/>
  </default>
  <worldbody>
    <light name="lamp" pos="0 0 2" dir="0 0 -1" directional="false" castshadow="false" diffuse="0.6 0.6 0.6"/>
    <camera name="front" pos="0.62 0 0.7" xyaxes="0 1 0 -0.7 0 0.71" fovy="36"/>
    <geom name="floor" type="plane" size="2 2 0.1" pos="0 0 -0.5" rgba="0.35 0.37 0.4 1"/>
    <geom name="table" type="box" size="{TABLE} {TABLE} 0.03" pos="0 0 -0.03" rgba="0.68 0.66 0.62 1" contype="1"/>
    <body name="disc" mocap="true"><geom name="disc" type="cylinder" size="0.035 0.001"/></body>
    <body name="point" mocap="true"><geom name="point" type="sphere" size="0.014"/></body>
    <body name="hand" gravcomp="1">
      {slides}
      <geom type="box" size="0.016 0.05 0.012" pos="0 0 0.06" rgba="0.25 0.26 0.3 1" mass="0.3"/>
      <geom type="capsule" fromto="0 0 0.07 0 0 0.35" size="0.012" rgba="0.6 0.62 0.66 1" mass="0.1"/>
      {fingers}
    </body>
    <body name="cube"><freejoint name="cube"/>
      <geom name="cube" type="box" size="{CUBE} {CUBE} {CUBE}" mass="0.05" contype="1" conaffinity="1"/>
    </body>
  </worldbody>
  <actuator>
    <position joint="x"/><position joint="y"/><position joint="z"/>
    <position joint="left" kp="300" dampratio="1" forcerange="-6 6"/>
    <position joint="right" kp="300" dampratio="1" forcerange="-6 6"/>
  </actuator>
</mujoco>"""


# The scenes of `robot.sim.tabletop`: where things begin, what is wanted, how it looks. Pure functions of the seed.

JOBS = {"reach": "point", "touch": "disc", "push": "disc", "pick": "point"}  # job -> the mark that shows where
ASKED = {  # in whose words -> job -> what is asked for
    "plain": {
        "reach": "Move the hand to the {goal} point.",
        "touch": "Touch the {color} {kind}.",
        "push": "Push the {cube} cube onto the {goal} disc.",
        "pick": "Pick up the {cube} cube and bring it to the {goal} point.",
    },
    "other": {
        "reach": "Go up to the {goal} ball.",
        "touch": "Tap on the {color} {other}.",
        "push": "Shove the {cube} block over the {goal} plate.",
        "pick": "Carry the {cube} block to the {goal} ball.",
    },
}
OTHER = {"disc": "plate", "cube": "block"}
COLORS = {
    "red": (0.85, 0.15, 0.12),
    "green": (0.15, 0.65, 0.2),
    "blue": (0.12, 0.3, 0.85),
    "yellow": (0.95, 0.8, 0.1),
    "purple": (0.55, 0.2, 0.7),
}
APART = {"reach": 0.08, "touch": 0.1, "push": 0.1, "pick": 0.1}  # metres from where it starts to the goal, at least
TOUCHED = {"disc": 0.025, "cube": 0.05}  # metres: height of the fingers' tips that touch it


@dataclass(frozen=True)
class TabletopScene:
    seed: int
    hand: tuple[float, float, float]  # metres
    cube: tuple[float, float]  # metres
    turn: float  # of the cube, radians
    goal: tuple[float, float, float]  # metres
    mark: str  # `disc` or `point`, which shows the goal; with `touch` the disc is there, whatever is asked for
    marked: tuple[float, float, float]  # metres: where it is
    colors: tuple[tuple[float, float, float], tuple[float, float, float]]  # of the goal's mark and the cube, RGB
    lamp: tuple[float, float]  # metres
    instruction: str


def scene(job: str, seed: int, words: str = "plain") -> TabletopScene:
    """The same on every machine, for any seed of at least 0; `words` change the instruction alone."""
    rng = np.random.default_rng([seed, zlib.crc32(job.encode())])
    hand = (*rng.uniform(-0.1, 0.1, 2), rng.uniform(0.12, 0.2))
    cube = rng.uniform(-0.14, 0.14, 2)
    turn = rng.uniform(-0.25, 0.25) if job == "pick" else rng.uniform(-np.pi / 4, np.pi / 4)
    goal = _goal(rng, job, np.array(hand if job == "reach" else (*cube, 0.0)))
    names = rng.choice(list(COLORS), 2, replace=False).tolist()
    marked, kind = goal, "disc"
    if job == "touch":
        kind = rng.choice(list(TOUCHED)).item()
        place = {"disc": goal[:2], "cube": tuple(map(float, cube))}[kind]
        goal = (*place, TOUCHED[kind])
    facts = {"goal": names[0], "cube": names[1], "color": names[kind == "cube"], "kind": kind, "other": OTHER[kind]}
    return TabletopScene(
        seed,
        tuple(map(float, hand)),
        tuple(map(float, cube)),
        float(turn),
        goal,
        JOBS[job],
        marked,
        (COLORS[names[0]], COLORS[names[1]]),
        tuple(rng.uniform(-0.6, 0.6, 2).tolist()),
        ASKED[words][job].format(**facts),
    )


def _goal(rng: np.random.Generator, job: str, start: np.ndarray) -> tuple[float, float, float]:
    low, high = {
        "reach": ((-0.2, -0.2, 0.08), (0.2, 0.2, 0.22)),
        "touch": ((-0.18, -0.18, 0.0), (0.18, 0.18, 0.0)),
        "push": ((-0.18, -0.18, 0.0), (0.18, 0.18, 0.0)),
        "pick": ((-0.15, -0.15, 0.1), (0.15, 0.15, 0.18)),
    }[job]
    while True:  # most of the room is far enough away
        goal = rng.uniform(low, high)
        if np.linalg.norm(goal - start) >= APART[job]:
            return tuple(goal.tolist())


# A script that does the jobs of `robot.sim.tabletop`. It has no memory: it goes on from any state, also after noise.

GAIN = 6.0  # 1/s: speed asked for per metre to go
TRAVEL, TABLETOP_EXPERT_LOW = 0.09, 0.022  # metres: height of the hand on its way, and at work
BEHIND = 0.052  # metres from the cube's middle at which the hand comes down to push
SLACK = 0.012  # metres by which it may stand beside its line


def expert(job: str, state: np.ndarray) -> np.ndarray:
    """The control float32 [A] that goes on with the job, not yet within limits, from a state float32 [12]."""
    hand, opening, cube, goal = state[:3], state[3], state[4:7], state[9:12]
    if job in ("reach", "touch"):
        return _towards(hand, goal)
    if job == "push":
        return _towards(hand, _push(hand, cube, goal))
    return _pick(hand, opening, cube, goal)


def _towards(hand: np.ndarray, spot: np.ndarray) -> np.ndarray:
    return (GAIN * (spot - hand)).astype(np.float32)


def _push(hand: np.ndarray, cube: np.ndarray, goal: np.ndarray) -> np.ndarray:
    """Where the hand should go: over to behind the cube, down, and on."""
    way = (goal - cube)[:2]
    way = way / max(float(np.linalg.norm(way)), 1e-6)
    away = (hand - cube)[:2]
    along, beside = float(away @ way), float(abs(away[0] * way[1] - away[1] * way[0]))
    low = hand[2] < TABLETOP_EXPERT_LOW + SLACK
    if low and along < 0 and beside < 1.5 * SLACK:
        return np.array([*(cube[:2] + 0.02 * way), TABLETOP_EXPERT_LOW])  # through the cube
    behind = cube[:2] - BEHIND * way
    if np.linalg.norm(hand[:2] - behind) < SLACK:
        return np.array([*behind, TABLETOP_EXPERT_LOW])
    if hand[2] < TRAVEL - SLACK:
        return np.array([*hand[:2], TRAVEL + SLACK])
    return np.array([*behind, TRAVEL])


def _pick(hand: np.ndarray, opening: float, cube: np.ndarray, goal: np.ndarray) -> np.ndarray:
    off = float(np.linalg.norm((hand - cube)[:2]))
    held = off < 1.5 * SLACK and abs(hand[2] - cube[2]) < 1.5 * SLACK
    if held:
        spot = hand + (goal - cube) if opening < CUBE + 0.003 else cube
        return np.append(_towards(hand, spot), np.float32(0.0))
    height = TABLETOP_EXPERT_LOW if off < SLACK else max(TRAVEL, float(cube[2]) + 0.06)
    spot = hand.copy() if off >= SLACK and hand[2] < TRAVEL - SLACK else cube.copy()
    spot[2] = height
    return np.append(_towards(hand, spot), np.float32(OPEN))


SPEED = 0.4  # m/s along each axis
NEAR = {"reach": 0.015, "touch": 0.03, "push": 0.03, "pick": 0.025}  # metres to the goal at which the job is done
FALLEN = -0.05  # metres
WAYS = tuple("xyz")
STATE = ("hand x", "hand y", "hand z", "opening", "cube x", "cube y", "cube z", "turn sin", "turn cos", "goal x",
         "goal y", "goal z")  # fmt: skip


class Tabletop(Robot):
    """A gantry over a table (`robot.types.Robot`).

    Controls are speeds of the hand in m/s, and for `pick` the distance in metres of each finger from the middle that
    is asked for. The state is float32 [12]: hand x, y, z and opening, cube x, y, z, the sine and cosine of four times
    its turn (a cube looks the same after a quarter), goal x, y, z, in metres. Images come before the instruction.

    Args:
        job: `reach` (the hand to a point in the air), `touch` (the disc or the cube, as the instruction says), `push`
            (the cube onto the disc) or `pick` (the cube into the air).
        camera: width and height of the picture in pixels; none: the state alone.
        state: the numbers of the state to show, by name; what is left out must be seen in the picture.
        words: `plain` instructions, or the same in `other` words, which a policy may never have met.
        askew: degrees, -180 to 180, by which the gantry is turned against the table: x and y of the controls are its.
    """

    def __init__(
        self,
        *,
        job: str = "push",
        camera: Sequence[int] | None = None,
        state: Sequence[str] = STATE,
        words: str = "plain",
        askew: float = 0.0,
    ):
        if job not in JOBS:
            raise UserError(f"robot.job: {job!r}: must be one of {', '.join(JOBS)}")
        if camera is not None and not (len(camera) == 2 and all(8 <= side <= 1024 for side in camera)):
            raise UserError(f"robot.camera: {camera!r}: must be a width and a height of 8 to 1024 pixels")
        if words not in ASKED:
            raise UserError(f"robot.words: {words!r}: must be one of {', '.join(ASKED)}")
        if not -180 <= askew <= 180:
            raise UserError(f"robot.askew: {askew}: must be -180 to 180 degrees")
        unknown = [name for name in state if name not in STATE]
        if unknown or not state:
            raise UserError(f"robot.state: {unknown or 'nothing'}: must be of {', '.join(STATE)}")
        self.job, self.words, self.names = job, words, tuple(state)
        self.hz, self.controls = float(HZ), _controls(job)
        c, s = math.cos(math.radians(askew)), math.sin(math.radians(askew))
        self._turn = np.array(((c, -s, 0.0), (s, c, 0.0), (0.0, 0.0, 1.0)))  # from the gantry's axes to the table's
        self._state_indices = [STATE.index(name) for name in state]
        size = (camera[0], camera[1]) if camera else (64, 64)
        self.model: Any = load_mujoco().MjModel.from_xml_string(xml(size))
        self.data: Any = load_mujoco().MjData(self.model)
        self._size = size if camera else None
        self._cameras: dict[tuple[int, int], Camera] = {}  # by size, made when first needed
        self._scene: TabletopScene | None = None

    def reset(self, seed: int) -> None:
        self._scene = scene(self.job, seed, self.words)
        data, now = self.data, self._scene
        load_mujoco().mj_resetData(self.model, data)
        opening = OPEN if self.job == "pick" else 0.0
        data.qpos[:5] = data.ctrl[:5] = (*now.hand, opening, opening)
        data.qpos[5:] = (*now.cube, CUBE, math.cos(now.turn / 2), 0, 0, math.sin(now.turn / 2))
        self._furnish(now)
        data.mocap_pos[:] = [now.marked if mark == now.mark else (0, 0, -5) for mark in GOALS]

    def get_observation(self) -> Observation:
        return Observation((*self._pictures(), self._require_reset().instruction), self._state()[self._state_indices])

    def picture(self, size: tuple[int, int]) -> Image.Image:
        """The table from the front, RGB, width and height in pixels; for videos, whatever the policy is shown."""
        self._require_reset()
        if size not in self._cameras:
            self._cameras[size] = Camera(self.model, "front", size)
        return self._cameras[size].take(self.data)

    def expert(self) -> np.ndarray:
        """The script's next control, float32 [A], within the limits (`robot.sim.tabletop`)."""
        control = expert(self.job, self._state())
        control[:3] = self._turn.T @ control[:3]
        return self.controls.checked(control)

    def _state(self) -> np.ndarray:
        qpos = self.data.qpos
        w, turned = qpos[8], qpos[11]
        turn = 4 * 2 * math.atan2(turned, w)
        opening = (qpos[3] + qpos[4]) / 2
        return np.array([*qpos[:3], opening, *qpos[5:8], math.sin(turn), math.cos(turn), *self._goal()], np.float32)

    def send_action(self, control: np.ndarray) -> np.ndarray:
        control, ctrl = self.controls.checked(control), self.data.ctrl
        self._require_reset()
        goal = ctrl[:3] + self._turn @ control[:3] / self.hz
        sent = control.copy()
        within = goal.clip(TABLETOP_MODEL_LOW, HIGH)
        if (within != goal).any():
            sent[:3] = (self._turn.T @ (within - ctrl[:3]) * self.hz).clip(-SPEED, SPEED)
        ctrl[:3] = within
        if self.job == "pick":
            ctrl[3:] = control[3]
        advance(self.model, self.data, SUBSTEPS)
        return sent

    def status(self) -> RobotStatus:
        self._require_reset()
        hand, cube = self.data.qpos[:3], self.data.qpos[5:8]
        by_hand = self.job in ("reach", "touch")
        distance = float(np.linalg.norm((hand if by_hand else cube) - self._goal()))
        done = distance < NEAR[self.job]
        fell = not by_hand and cube[2] < FALLEN
        return RobotStatus(
            done, float(done), "the cube fell off the table" if fell else None, None, {"distance": distance}
        )

    def snapshot(self) -> Snapshot:
        return Snapshot(self._require_reset().seed, {"state": state_of(self.model, self.data)})

    def restore(self, snapshot: Snapshot) -> None:
        self._scene = scene(self.job, snapshot.seed, self.words)
        self._furnish(self._scene)
        put_state(self.model, self.data, snapshot.arrays["state"])

    def close(self) -> None:
        for camera in self._cameras.values():
            camera.close()
        self._cameras.clear()

    def _require_reset(self) -> TabletopScene:
        if self._scene is None:
            raise RuntimeError("home first")
        return self._scene

    def _furnish(self, now: TabletopScene) -> None:
        """What of a scene the model holds, and no state: its looks."""
        for name in ("cube", *GOALS):
            self.model.geom(name).rgba[:3] = now.colors[name == "cube"]
        self.model.light("lamp").pos[:2] = now.lamp

    def _goal(self) -> np.ndarray:
        """float64 [3]: for a disc the middle of a cube that stands on it."""
        x, y, z = self._require_reset().goal
        return np.array((x, y, z + CUBE * (self.job == "push")))

    def _pictures(self) -> tuple[Image.Image, ...]:
        return (self.picture(self._size),) if self._size else ()


def _controls(job: str) -> ActionSpec:
    grip = 1 if job == "pick" else 0
    return ActionSpec(
        WAYS + ("grip",) * grip,
        ("m/s",) * 3 + ("m",) * grip,
        np.array([-SPEED] * 3 + [0.0] * grip),
        np.array([SPEED] * 3 + [OPEN] * grip),
    )
