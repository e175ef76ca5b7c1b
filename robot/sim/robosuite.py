"""Robots of robosuite 1.5: its tasks, arms and controllers as a `robot.types.Robot`. Needs `vlrl[sim]`."""

from __future__ import annotations

import logging
import math
import random
import re
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from types import ModuleType
from typing import Any

import numpy as np
from PIL import Image

from robot.sim.tabletop import check_stable, load_mujoco, put_state, state_of
from robot.types import ActionSpec, Robot, RobotError, RobotStatus, Snapshot
from vlrl.types import Observation, UserError

# Controls in physical units for robosuite's controllers, which are told numbers from -1 to 1.

HAND = tuple(zip(("x", "y", "z", "rx", "ry", "rz"), ("m",) * 3 + ("rad",) * 3, strict=True))
JOINTS = {"JointPositionController": "rad", "JointVelocityController": "rad/s", "JointTorqueController": "N m"}
HANDS = ("OperationalSpaceController", "InverseKinematicsController")


@dataclass(frozen=True, eq=False)
class Units:
    """Controls, and what robosuite is told for them."""

    controls: ActionSpec
    middle: np.ndarray  # float64 [A]: the control for which a controller is told 0
    scale: np.ndarray  # float64 [A]: physical units for each 1 that it is told

    def normalised(self, control: np.ndarray) -> np.ndarray:
        """float64 [A] for `env.step`, from a control float32 [A]."""
        return (control.astype(np.float64) - self.middle) / self.scale


@dataclass(frozen=True)
class Way:
    """One dimension of a control."""

    name: str
    unit: str
    low: float
    high: float
    middle: float = 0.0
    scale: float = 1.0


def units_of(robots: Sequence[Any]) -> Units:
    """Raises UserError for a body whose controller is not a sum of its parts."""
    ways = [way for robot in robots for way in _body(robot, len(robots) > 1)]
    names, units, *numbers = zip(*((w.name, w.unit, w.low, w.high, w.middle, w.scale) for w in ways), strict=True)
    low, high, middle, scale = np.array(numbers)
    return Units(ActionSpec(names, units, low, high), middle, scale)


def _body(robot: Any, several: bool) -> Iterator[Way]:
    composite = robot.composite_controller
    if composite.name not in ("BASIC", "HYBRID_MOBILE_BASE"):
        raise UserError(f"robot.types: {robot.name} moves by {composite.name}, which is not supported")
    prefix = f"robot{robot.idn}_" if several else ""
    for part, controller in composite.part_controllers.items():
        yield from _part(f"{prefix}{part}_" if several or len(robot.arms) > 1 else prefix, part, controller, composite)
    if composite.name == "HYBRID_MOBILE_BASE":
        yield Way(f"{prefix}drive", "1", -1.0, 1.0)  # above 0 the base moves and the arm goes with it


def _part(prefix: str, part: str, controller: Any, composite: Any) -> Iterator[Way]:
    first, last = composite._action_split_indexes[part]
    kind, count = type(controller).__name__, last - first
    if part in composite.grippers:
        for index in range(count):
            yield Way(f"{prefix}grip{index if count > 1 else ''}", "1", -1.0, 1.0)
    elif kind == "InverseKinematicsController":  # is told metres and radians
        for (name, unit), low, high in zip(HAND, *controller.control_limits, strict=True):
            yield Way(prefix + name, unit, low, high)
    elif kind == "OperationalSpaceController" or kind in JOINTS:
        labels = HAND if kind in HANDS else [(f"joint{index + 1}", JOINTS[kind]) for index in range(count)]
        yield from _scaled(prefix if part in composite.arms else f"{prefix}{part}_", labels[:count], controller)
    else:
        for index in range(count):
            yield Way(f"{prefix}{part}{index}", "1", -1.0, 1.0)


def _scaled(prefix: str, labels: Sequence[tuple[str, str]], controller: Any) -> Iterator[Way]:
    """Dimensions for which the controller stretches its input range onto its output range."""
    ranges = (controller.input_min, controller.input_max, controller.output_min, controller.output_max)
    for (name, unit), *ends in zip(labels, *(np.broadcast_to(each, len(labels)) for each in ranges), strict=True):
        state_low, state_high, low, high = map(float, ends)
        scale = (high - low) / (state_high - state_low)
        yield Way(prefix + name, unit, low, high, (low + high) / 2 - scale * (state_low + state_high) / 2, scale)


# Scripts that do robosuite's Lift, Stack and PickPlaceCan with a Panda under OSC_POSE or OSC_POSITION.
#
# They have no memory: they go on from any state, also after noise.

GAIN = 2.0  # metres asked for per metre to go: the controller stays behind
OPEN, CLOSE = -1.0, 1.0
NEAR = 0.012  # metres beside its spot at which the hand may go down, close or let go
EMPTY, CLOSING = 0.015, 0.072  # metres between the fingers: below there is nothing; above they have not begun to close
STACKED = 0.045  # metres between the middles of two cubes that lie on each other
BIN = (0.1975, 0.4025)  # metres: the middle of the can's place
CARRY = 1.08  # metres: height of a can above the bins' walls
INSIDE = 0.9  # metres: height at which it may fall into its bin
Goal = tuple[np.ndarray, float]  # where the hand should be, and what its fingers should do


@dataclass(frozen=True)
class ScriptView:
    """What a script sees: positions float64 [3] in metres."""

    hand: np.ndarray
    fingers: float  # metres between them
    things: Mapping[str, np.ndarray]

    def offset(self, x: float, y: float, z: float) -> np.ndarray:
        """The spot so many metres away from the hand."""
        return self.hand + np.array((x, y, z))


def expert(task: str, names: Sequence[str]) -> Callable[[np.ndarray], np.ndarray]:
    """The script of a task: from a state float32 [S], whose numbers have these names, the control float32 [7].

    The control (x, y, z, rx, ry, rz, grip) is not yet within limits; `adapted` makes it one of the robot's.

    Raises:
        UserError: no script for the task, or the state lacks what it must see.
    """
    if task not in SCRIPTS:
        raise UserError(f"expert: {task!r}: must be one of {', '.join(SCRIPTS)}")
    script, things = SCRIPTS[task]
    sizes = {"robot0_eef_pos": 3, "robot0_eef_quat": 4, "robot0_gripper_qpos": 2, **dict.fromkeys(things, 3)}
    channels = {name: [f"{name}.{index}" for index in range(size)] for name, size in sizes.items()}
    missing = [name for name, parts in channels.items() if not set(parts) <= set(names)]
    if missing:
        raise UserError(f"expert: the state lacks {', '.join(missing)}")
    columns = {name: [list(names).index(part) for part in parts] for name, parts in channels.items()}

    def act(state: np.ndarray) -> np.ndarray:
        values = {name: state[places].astype(np.float64) for name, places in columns.items()}
        left, right = values["robot0_gripper_qpos"]
        spot, grip = script(view := ScriptView(values["robot0_eef_pos"], left - right, values))
        return np.array([*(GAIN * (spot - view.hand)), *_straight(*values["robot0_eef_quat"]), grip], np.float32)

    return act


def adapted(controls: ActionSpec, control: np.ndarray) -> np.ndarray:
    """An expert's control as the robot's, float32 [7] or without turns [4], within the limits."""
    return controls.checked(control if len(controls) == len(control) else control[[0, 1, 2, -1]])


def _straight(x: float, y: float, z: float, w: float) -> tuple[float, float, float]:
    """The small turn, in radians about x, y and z, from a Panda hand's quaternion to that of one that points down."""
    sign = math.copysign(2.0, x)
    return sign * w, sign * z, -sign * y


def _lift(view: ScriptView) -> Goal:
    cube = view.things["cube_pos"]
    if _held(view, cube, 0.062):
        return view.offset(0, 0, 0.05), CLOSE
    return _fetch(view, cube)


def _stack(view: ScriptView) -> Goal:
    cube, base = view.things["cubeA_pos"], view.things["cubeB_pos"]
    above = cube - base
    aside = float(np.linalg.norm(above[:2]))
    if aside < 1.5 * NEAR and abs(above[2] - STACKED) < NEAR / 2:
        return _let_go(view, 0.062)
    if not _held(view, cube, 0.062):
        return _fetch(view, cube)
    if aside < (NEAR if above[2] > STACKED + NEAR else 1.5 * NEAR):
        return view.offset(*-above[:2], -0.015), CLOSE
    return _carry(view, cube, base[:2], base[2] + STACKED + 0.03), CLOSE


def _can(view: ScriptView) -> Goal:
    can = view.things["Can_pos"]
    aside = float(np.linalg.norm(can[:2] - BIN))
    if aside < 0.07 and can[2] < INSIDE:
        return _let_go(view, 0.06)
    if not _held(view, can, 0.06):
        return _fetch(view, can)
    if aside < 0.05:
        return view.offset(*(BIN - can[:2]), -0.05), CLOSE
    return _carry(view, can, np.array(BIN), CARRY), CLOSE


SCRIPTS: Mapping[str, tuple[Callable[[ScriptView], Goal], tuple[str, ...]]] = {
    "Lift": (_lift, ("cube_pos",)),
    "Stack": (_stack, ("cubeA_pos", "cubeB_pos")),
    "PickPlaceCan": (_can, ("Can_pos",)),
}


def _held(view: ScriptView, thing: np.ndarray, width: float) -> bool:
    """Is the thing between fingers no wider apart than `width`, in metres?"""
    off = view.hand - thing
    return bool(np.linalg.norm(off[:2]) < 2 * NEAR and abs(off[2]) < 2 * NEAR and EMPTY < view.fingers < width)


def _fetch(view: ScriptView, thing: np.ndarray) -> Goal:
    """Over to above the thing with open fingers, down, and closed. Once they close, the hand may shake more."""
    off = view.hand - thing
    aside = float(np.linalg.norm(off[:2]))
    slack = NEAR if view.fingers > CLOSING or view.fingers < EMPTY else 2 * NEAR
    if aside < slack and abs(off[2]) < slack:
        return thing, CLOSE
    if aside < (2 * NEAR if off[2] < 0.06 else NEAR):
        return thing, OPEN
    return np.array([*(view.hand[:2] if off[2] < 0.04 else thing[:2]), thing[2] + 0.08]), OPEN


def _let_go(view: ScriptView, width: float) -> Goal:
    """Still until the fingers are wider apart than the thing, then up."""
    return view.offset(0, 0, 0.05 if view.fingers > width else 0), OPEN


def _carry(view: ScriptView, thing: np.ndarray, place: np.ndarray, height: float) -> np.ndarray:
    """The hand's next spot to bring a held thing to above a place: first up, then over."""
    up = height - thing[2]
    over = place - thing[:2] if up < 0.02 else np.zeros(2)
    return view.offset(*over, up)


# What robosuite keeps for the whole process: its generators, its time step, how it finishes a robot's model.

FLAT: set[str] = set()  # names of meshes that are made shells
_LOCK = threading.RLock()


@contextmanager
def drawing(seed: int, timestep: float) -> Iterator[None]:
    """Within, the process' generators are at the seed and the time step is this one; afterwards all is as it was."""
    from robosuite import macros
    from robosuite.models.robots.robot_model import RobotModel

    with _LOCK, _set(RobotModel, "set_mujoco_model", _finish), _set(macros, "SIMULATION_TIMESTEP", timestep):
        before = np.random.get_state(), random.getstate()
        np.random.seed(seed)
        random.seed(seed)
        try:
            yield
        finally:
            np.random.set_state(before[0])
            random.setstate(before[1])


def _finish(model: Any) -> None:
    """In place of `RobotModel.set_mujoco_model`, which compiles each robot once more, for whole-body IK alone."""
    for mesh in model.asset.findall("mesh"):
        if mesh.get("name") in FLAT:
            mesh.set("inertia", "shell")


@contextmanager
def _set(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


# What robosuite remembers from tick to tick beside MuJoCo's state, as arrays by name: goals of controllers, what a
# gripper was told, clocks, recent values.

PLAIN = (bool, int, float, np.bool_, np.number, np.ndarray)
FOLLOWED = tuple(f"robosuite.{name}" for name in ("robots", "controllers", "utils.buffers", "utils.traj_utils"))
GRIPPERS = "robosuite.models.grippers"  # remember what they were told, and hold a model besides


def remember(env: Any) -> dict[str, np.ndarray]:
    """Everything that `recall` needs."""
    plain = {
        f"{path}.{name}": np.array(value)
        for path, part in _find_stateful(env)
        for name, value in vars(part).items()
        if isinstance(value, PLAIN)
    }
    if hasattr(env, "wiped_markers"):  # Wipe alone keeps objects, and what it wiped is no longer to be seen
        plain["wiped"] = np.array([marker in env.wiped_markers for marker in env.model.mujoco_arena.markers])
        plain["colors"] = np.array(env.sim.model.geom_rgba)
    return plain


def recall(env: Any, arrays: Mapping[str, np.ndarray]) -> None:
    """Puts back what `remember` gave, for an environment with the same options and scene."""
    for path, part in _find_stateful(env):
        for name, value in vars(part).items():
            if value is None or isinstance(value, PLAIN):
                then = arrays.get(f"{path}.{name}")
                setattr(part, name, None if then is None else then.copy() if then.ndim else then.item())
    if "wiped" in arrays:
        markers = zip(env.model.mujoco_arena.markers, arrays["wiped"], strict=True)
        env.wiped_markers = [marker for marker, wiped in markers if wiped]
        env.sim.model.geom_rgba[:] = arrays["colors"]


def _find_stateful(env: Any) -> list[tuple[str, Any]]:
    """The objects that remember, each once, by the path to it."""
    objects: list[tuple[str, Any]] = [("env", env)]
    known = set()
    waiting = [(f"robot{index}", each) for index, each in enumerate(env.robots)]
    while waiting:
        path, part = waiting.pop()
        if id(part) not in known:
            known.add(id(part))
            objects.append((path, part))
            waiting += _below(path, part)
    return objects


def _below(path: str, part: Any) -> Iterator[tuple[str, Any]]:
    if type(part).__module__.startswith(GRIPPERS):
        return
    for name, value in vars(part).items():
        for key, each in value.items() if isinstance(value, dict) else [("", value)]:
            if type(each).__module__.startswith((*FOLLOWED, GRIPPERS)) and hasattr(each, "__dict__"):
                yield f"{path}.{name}{key and f'.{key}'}", each


# Pictures of scenes whose model is made anew for every episode, at the price of the picture alone.

COLLISIONS = 0  # robosuite's group of shapes that only collide
ASSETS = ("mesh_vert", "tex_data")


class SceneCameras:
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
    assets = [[getattr(model, name) for name in ASSETS] for model in (one, other)]
    return one is other or all(map(np.array_equal, *assets))


# Making robosuite's environments.

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


def make_robosuite_env(
    task: str, robots: tuple[str, ...], controller: str | None, hz: float, timestep: float, shaped: bool
) -> Any:
    """An environment that neither renders nor ends by itself.

    Raises:
        UserError: robosuite does not know or cannot make it.
    """
    suite = load_robosuite()
    if task not in INSTRUCTIONS:
        raise UserError(f"robot.task: {task!r}: must be one of {', '.join(INSTRUCTIONS)}")
    for name in robots:
        if name not in suite.ALL_ROBOTS:
            raise UserError(f"robot.types: {name!r}: must be one of {', '.join(sorted(suite.ALL_ROBOTS))}")
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


# robosuite's environments: starting them from a seed, and one tick of them.


def start(env: Any, seed: int, timestep: float) -> None:
    """Builds the scene of a seed anew, whatever came before."""
    with drawing(seed, timestep):
        for generator in _generators(env):  # written, not replaced: samplers share it
            generator.bit_generator.state = np.random.default_rng(seed).bit_generator.state
        env.sim = None  # else robosuite collects garbage, which takes longer than all the rest
        env.reset()
    settle(env)


def tick(env: Any, action: np.ndarray, substeps: int) -> float:
    """One control of `env.step`, less its observations, which nobody may ask for. The reward.

    Raises:
        RobotError: positions, speeds or forces that are not finite or have grown huge.
    """
    env.timestep += 1
    for substep in range(substeps):
        env.sim.step1()
        env._pre_action(action, policy_step=substep == 0)
        env.sim.step2()
    env.cur_time += env.control_timestep
    settle(env)
    check_stable(env.sim.data._data)
    return float(env._post_action(action)[0])


def settle(env: Any) -> None:
    """Brings what MuJoCo derives up to the state, which it leaves as it is, the solver's warm start included."""
    data = env.sim.data._data
    warm = data.qacc_warmstart.copy()
    env.sim.forward()
    data.qacc_warmstart[:] = warm


def _generators(env: Any) -> Iterator[np.random.Generator]:
    sampler = getattr(env, "placement_initializer", None)
    for each in (env, sampler, *getattr(sampler, "samplers", {}).values()):
        if isinstance(rng := getattr(each, "rng", None), np.random.Generator):
            yield rng


VIEW = "agentview"  # a camera of all its scenes
PROPRIO = ("eef_pos", "eef_quat", "gripper_qpos")  # with the objects, what robomimic's policies see


class RobosuiteRobot(Robot):
    """One robosuite task with its arms (`robot.types.Robot`). docs/robosuite.md lists tasks, states and speeds.

    Controls are what the arm's controller is told, in physical units per tick (docs/robosuite.md); a gripper's is 1 to
    close, -1 to open, 0 to hold. The state is float32 [S], `names` says what each number is: by default the hand's
    position and quaternion (x, y, z, w), the fingers, and what the task says of its objects, in metres and radians.
    Unlike robosuite's own observations, which are a tick old, it is of the moment. Images come before the instruction;
    what is not looked at is not rendered. Every draw is made at home, so a snapshot holds no generator.

    Args:
        task: a name robosuite knows: Lift, Stack, PickPlaceCan, Door, NutAssemblySquare, TwoArmLift, ...
        robot: an arm (Panda, Sawyer, UR5e, IIWA, Kinova3, Jaco, ...), or one for each that the task needs.
        controller: OSC_POSE, OSC_POSITION, IK_POSE, JOINT_POSITION, JOINT_VELOCITY or JOINT_TORQUE; none: its own.
        cameras: names of the scene's cameras: agentview, frontview, robot0_eye_in_hand, ...
        size: width and height of the pictures in pixels.
        hz: ticks a second; a tick is a whole number of physics steps.
        timestep: seconds of one physics step. 0.005 is twice as fast as robosuite's 0.002, and another simulation.
        state: names of robosuite's observables that make up the state; none: as said above.
        shaped: reward as robosuite shapes it; else its sparse one, 1 for success where there is one thing to do.

    Raises:
        UserError: robosuite is missing, or does not know or cannot make what is asked for.
    """

    def __init__(
        self,
        *,
        task: str = "Lift",
        robot: str | Sequence[str] = "Panda",
        controller: str | None = None,
        cameras: Sequence[str] = (),
        size: Sequence[int] = (64, 64),
        hz: float = 20,
        timestep: float = 0.002,
        state: Sequence[str] | None = None,
        shaped: bool = False,
    ):
        self._substeps = round(1 / (hz * timestep)) if hz > 0 and timestep > 0 else 0
        if self._substeps < 1 or abs(self._substeps * hz * timestep - 1) > 1e-6:
            raise UserError(f"robot.hz: {hz}: a tick must be a whole number of physics steps of {timestep} s")
        robots = (robot,) if isinstance(robot, str) else tuple(robot)
        self.task, self.hz, self._timestep = task, float(hz), timestep
        self._env = make_robosuite_env(task, robots, controller, hz, timestep, shaped)
        start(self._env, 0, timestep)  # before it, robosuite does not know which objects it shows
        self._units = units_of(self._env.robots)
        self.controls = self._units.controls
        self._chosen = _chosen(self._env, state)
        self.names = _names(self._env, self._chosen)
        self._pictures = SceneCameras(self._env.sim.model._model, tuple(cameras), tuple(size))
        self._views: dict[tuple[int, int], SceneCameras] = {}  # for videos, by size, made when first needed
        self._script: Callable[[np.ndarray], np.ndarray] | None = None  # made when first needed
        self._seed: int | None = None
        self._reward = 0.0

    def reset(self, seed: int) -> None:
        start(self._env, seed, self._timestep)
        self._seed, self._reward = seed, 0.0

    def get_observation(self) -> Observation:
        sim = self._require_reset()
        images = self._pictures.take(sim.model._model, sim.data._data)
        return Observation((*images, INSTRUCTIONS[self.task]), self._state())

    def picture(self, size: tuple[int, int]) -> Image.Image:
        """The scene in `agentview`, RGB, width and height in pixels; for videos, whatever the policy is shown."""
        sim = self._require_reset()
        if size not in self._views:
            self._views[size] = SceneCameras(sim.model._model, (VIEW,), size)
        return self._views[size].take(sim.model._model, sim.data._data)[0]

    def expert(self) -> np.ndarray:
        """The script's next control, float32 [A], within the limits (`robot.sim.robosuite`).

        Raises:
            UserError: there is no script for the task, or the state does not show what it must see.
        """
        if self._script is None:
            self._script = expert(self.task, self.names)
        return adapted(self.controls, self._script(self._state()))

    def _state(self) -> np.ndarray:
        self._require_reset()
        observables = _read_observables(self._env)
        return np.concatenate([np.atleast_1d(observables[name]) for name in self._chosen]).astype(np.float32)

    def send_action(self, control: np.ndarray) -> np.ndarray:
        control = self.controls.checked(control)
        self._require_reset()
        self._reward = tick(self._env, self._units.normalised(control), self._substeps)
        return control

    def status(self) -> RobotStatus:
        self._require_reset()
        return RobotStatus(bool(self._env._check_success()), self._reward)

    def snapshot(self) -> Snapshot:
        sim = self._require_reset()
        physics = state_of(sim.model._model, sim.data._data)
        return Snapshot(self._seed, {"physics": physics, "reward": np.array(self._reward), **remember(self._env)})

    def restore(self, snapshot: Snapshot) -> None:
        if self._seed != snapshot.seed:  # within a scene the model stays as it is
            self.reset(snapshot.seed)
        sim = self._require_reset()
        put_state(sim.model._model, sim.data._data, snapshot.arrays["physics"])
        recall(self._env, snapshot.arrays)
        self._reward = float(snapshot.arrays["reward"])
        settle(self._env)

    def close(self) -> None:
        for pictures in (self._pictures, *self._views.values()):
            pictures.close()
        self._views.clear()

    def _require_reset(self):
        """The simulation."""
        if self._seed is None:
            raise RobotError("home first")
        return self._env.sim


def _read_observables(env) -> dict[str, np.ndarray]:
    """Every observable as it is now. They read each other's values from a cache, some before these are there."""
    env._update_observables(force=True)
    return env._get_observations(force_update=True)


def _chosen(env, state: Sequence[str] | None) -> tuple[str, ...]:
    known = [name for name, each in env._observables.items() if each.is_enabled() and each.is_active()]
    if state is None:
        objects = [name for name in known if env._observables[name].modality == "object"]
        return tuple([name for name in known if name.endswith(PROPRIO) and name not in objects] + objects)
    unknown = [name for name in state if name not in known]
    if unknown or not state:
        raise UserError(f"robot.state: {unknown or 'nothing'}: must be of {', '.join(known)}")
    return tuple(state)


def _names(env, chosen: tuple[str, ...]) -> tuple[str, ...]:
    """A name for each number of the state: the observable's and its index."""
    observables = _read_observables(env)
    sizes = {name: np.atleast_1d(observables[name]).size for name in chosen}
    return tuple(f"{name}.{index}" if size > 1 else name for name, size in sizes.items() for index in range(size))
