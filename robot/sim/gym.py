"""Robots from Gymnasium environments: gym-aloha, gym-hil, gym-pusht, LIBERO and any other."""

from __future__ import annotations

import math
import os
import random
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from robot.sim.tabletop import Camera, load_mujoco
from robot.types import ActionSpec, Robot, RobotError, RobotStatus
from vlrl.types import Observation, UserError

# The process' own generators, numpy's and Python's, as an environment that draws from them sees them.

_LOCK = threading.RLock()


class Generators:
    """Streams of an environment's own, lent to it while it runs: what it draws hangs on its seed alone.

    Some environments draw their scenes from the process' generators, whatever seed they are given. One environment of
    a process runs at a time.
    """

    def __init__(self):
        self.seed(0)

    def seed(self, seed: int) -> None:
        self._numpy, self._python = np.random.RandomState(seed % 2**32).get_state(), random.Random(seed).getstate()

    @contextmanager
    def lent(self) -> Iterator[None]:
        """Within, the process' generators go on where this environment left them; afterwards they are as before."""
        with _LOCK:
            before = np.random.get_state(), random.getstate()
            np.random.set_state(self._numpy)
            random.setstate(self._python)
            try:
                yield
            finally:
                self._numpy, self._python = np.random.get_state(), random.getstate()
                np.random.set_state(before[0])
                random.setstate(before[1])


class ForeignGenerators(Generators):
    """Of an environment in another process, which seeds its own: nothing is lent, which takes a quarter of a tick."""

    def seed(self, seed: int) -> None:
        pass

    @contextmanager
    def lent(self) -> Iterator[None]:
        yield


# Making Gymnasium's environments.


def make_gym_env(id: str, options: Mapping[str, Any], section: str = "robot") -> Any:
    """The environment, made so that MuJoCo renders without a screen and pygame says no hello.

    Args:
        section: of the configuration, which errors name.

    Raises:
        UserError: gymnasium is missing or cannot make it.
    """
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    if find_spec("mujoco"):
        load_mujoco()
    try:
        import gymnasium
    except ImportError as error:
        raise UserError(f"{section}: needs gymnasium: pip install 'vlrl[sims]'") from error
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "pkg_resources is deprecated")  # pygame's
            if options.get("render_mode") == "rgb_array" and find_spec("pygame"):
                os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # pictures need no screen
                import_module("pygame.pkgdata")
            return gymnasium.make(id, disable_env_checker=True, **options)
    except Exception as error:  # environments raise what they like
        line = next(iter(str(error).splitlines()), "") or type(error).__name__
        raise UserError(f"{section}.id: gymnasium cannot make {id!r}: {line}") from error


def needs(module: str, package: str) -> None:
    """Raises UserError where a simulator's module is not installed."""
    if find_spec(module) is None:
        raise UserError(f"robot: needs {package}: pip install 'vlrl[sims]'")


def rate(hz: float | None, env: Any) -> float:
    """Ticks a second, as said or as the environment says.

    Raises:
        UserError: neither says it, or not a rate.
    """
    value = hz if hz is not None else env.metadata.get("render_fps")
    if value is None or not 0 < value < math.inf:
        raise UserError(f"robot.hz: {value}: must be the ticks a second, above 0")
    return float(value)


# Gymnasium's spaces as a robot's controls, state and pictures.

ALONE = "observation"  # name of an observation that has no parts


@dataclass(frozen=True)
class ObservationPart:
    """One part of an observation that may be nested; `name` is its keys with dots between."""

    keys: tuple[Any, ...]
    space: Any

    @property
    def name(self) -> str:
        return ".".join(map(str, self.keys)) or ALONE

    @property
    def is_image(self) -> bool:
        return self.space.dtype == np.uint8 and len(self.space.shape or ()) == 3 and self.space.shape[2] == 3

    def of(self, observation: Any) -> Any:
        for key in self.keys:
            observation = observation[key]
        return observation


def list_observation_parts(space: Any, keys: tuple[Any, ...] = ()) -> Iterator[ObservationPart]:
    """The parts of an observation of this space."""
    from gymnasium.spaces import Dict, Tuple

    if isinstance(space, Dict | Tuple):
        for key, each in space.spaces.items() if isinstance(space, Dict) else enumerate(space.spaces):
            yield from list_observation_parts(each, (*keys, key))
    else:
        yield ObservationPart(keys, space)


def choose_parts(key: str, wanted: Sequence[str] | None, known: Sequence[ObservationPart]) -> list[ObservationPart]:
    """The parts with these names, in their order; none: all.

    Raises:
        UserError: there is no such part.
    """
    if wanted is None:
        return list(known)
    by_name = {each.name: each for each in known}
    unknown = [name for name in wanted if name not in by_name]
    if unknown:
        raise UserError(f"{key}: {', '.join(unknown)}: must be of {', '.join(by_name) or 'nothing'}")
    return [by_name[name] for name in wanted]


class StateVector:
    """Parts of an observation as one vector; `names` says what each number is.

    Raises:
        UserError: a part that is not so many numbers, always.
    """

    def __init__(self, chosen: Sequence[ObservationPart]):
        from gymnasium.spaces import flatdim, flatten

        self._parts, self._flatten = tuple(chosen), flatten
        try:
            sizes = [flatdim(each.space) for each in chosen]
        except (NotImplementedError, ValueError) as error:
            raise UserError(f"robot.state: {', '.join(each.name for each in chosen)}: {error}") from None
        self.names = tuple(
            each.name if size == 1 else f"{each.name}.{index}"
            for each, size in zip(chosen, sizes, strict=True)
            for index in range(size)
        )

    def of(self, observation: Any) -> np.ndarray:
        """float32 [S]"""
        if not self._parts:
            return np.zeros(0, np.float32)
        return np.concatenate([self._flatten(p.space, p.of(observation)) for p in self._parts]).astype(np.float32)


def controls_of(space: Any, what: str, names: Sequence[str] | None, units: Sequence[str] | None) -> ActionSpec:
    """The controls that an action space allows.

    Raises:
        UserError: it is not made of real numbers within limits, or there are more or fewer names than numbers.
    """
    from gymnasium.spaces import Box

    if not isinstance(space, Box) or space.dtype.kind != "f" or not (space.is_bounded() and space.shape):
        raise UserError(f"robot.id: {what}: its actions are {space}: must be a Box of real numbers with finite limits")
    size = int(np.prod(space.shape))
    names = tuple(names) if names is not None else tuple(f"a{index}" for index in range(size))
    units = tuple(units) if units is not None else ("1",) * size
    for key, texts in (("names", names), ("units", units)):
        if len(texts) != size:
            raise UserError(f"robot.{key}: {len(texts)} given, but {what} takes {size} numbers")
    return ActionSpec(names, units, space.low.reshape(-1), space.high.reshape(-1))


def picture(shown: Any) -> Image.Image:
    """RGB, from what an environment gives as a picture: uint8 [H, W, 3]."""
    return shown if isinstance(shown, Image.Image) else Image.fromarray(np.ascontiguousarray(shown, dtype=np.uint8))


def numbers_of(info: Mapping[str, Any], less: Any) -> dict[str, float]:
    """What of an environment's `info` is a finite number, less the one of this name."""
    kinds = bool | int | float | np.bool_ | np.number
    pairs = ((name, value) for name, value in info.items() if name != less and isinstance(value, kinds))
    return {name: float(value) for name, value in pairs if math.isfinite(value)}


# Any Gymnasium environment with actions of real numbers as a robot. Needs `gymnasium`: `pip install 'vlrl[sims]'`.

RENDER = "render"  # among `images`: what the environment itself draws


class GymRobot(Robot):
    """One environment that `gymnasium.make` makes (`robot.types.Robot`); it has no snapshots.

    Controls are the environment's actions, float32 [A], within the limits of its space. The state is float32 [S],
    `names` says what each number is. Reward and the numbers of `info` are the environment's own. An episode that it
    terminates without success is a failure, one that it truncates is cut; its limit of steps is lifted, as episodes
    have their own. Scenes hang on the seed alone, also where it draws from the process' generators.

    Args:
        id: what `gymnasium.make` is given, such as `Pendulum-v1` or `my_module:MyEnv-v0`.
        options: named arguments for it.
        hz: ticks a second; none: the environment's `render_fps`.
        instruction: what a policy is told.
        state: parts of the observation that make up the state, such as `agent_pos`; none: all but the pictures.
        images: parts of the observation that are pictures, such as `pixels.top`, or `render` for `env.render()`, which
            draws when it is looked at and not at each tick.
        success: the number of `info` that says so, or the least reward of a tick; none: nothing counts as success.
        names: of the numbers of a control.
        units: of the same.

    Raises:
        UserError: gymnasium cannot make it, or it has no such parts, actions or numbers.
    """

    GENERATORS = Generators

    def __init__(
        self,
        *,
        id: str,
        options: Mapping[str, Any] | None = None,
        hz: float | None = None,
        instruction: str = "",
        state: Sequence[str] | None = None,
        images: Sequence[str] = (),
        success: str | float | None = "is_success",
        names: Sequence[str] | None = None,
        units: Sequence[str] | None = None,
    ):
        self.id, self._instruction, self._success = id, instruction, success
        render_options = {"render_mode": "rgb_array"} if RENDER in images else {}
        self._options = {"max_episode_steps": -1, **render_options, **(options or {})}
        self._generators, self._env = self.GENERATORS(), None
        env = self._open()
        self.hz = rate(hz, env)
        self.controls = controls_of(env.action_space, id, names, units)
        known = list(list_observation_parts(env.observation_space))
        self._frames, taken = RENDER in images, [name for name in images if name != RENDER]
        self._images = choose_parts("robot.images", taken, [each for each in known if each.is_image])
        self._numbers = StateVector(choose_parts("robot.state", state, [each for each in known if not each.is_image]))
        self.names = self._numbers.names
        self._check_success()

    def reset(self, seed: int) -> None:
        env = self._open()
        self._generators.seed(seed)
        with self._generators.lent():
            self._observation, _ = env.reset(seed=seed)
        self._signals = RobotStatus()

    def get_observation(self) -> Observation:
        env, observation = self._require_reset(), self._observation
        return Observation((*self._pictures(env, observation), self._instruction), self._numbers.of(observation))

    def send_action(self, control: np.ndarray) -> np.ndarray:
        control, env = self.controls.checked(control), self._require_reset()
        control = self._within(env, control)
        with self._generators.lent():
            self._observation, reward, ended, cut, info = env.step(_action(env, control))
        self._signals = self._judge(float(reward), ended, cut, info)
        return control

    def status(self) -> RobotStatus:
        self._require_reset()
        return self._signals

    def close(self) -> None:
        """Closes the environment; `home` makes it anew."""
        env, self._env = self._env, None
        if env is not None:
            env.close()

    def _make(self) -> Any:
        """The environment; robots that need more than `gymnasium.make` add it here."""
        return make_gym_env(self.id, self._options)

    def _within(self, env: Any, control: np.ndarray) -> np.ndarray:
        """What the body carries out of a control within the limits."""
        return control

    def _open(self) -> Any:
        if self._env is None:
            with self._generators.lent():
                self._env = self._make()
            self._observation: Any = None
            self._signals = RobotStatus()
        return self._env

    def _require_reset(self) -> Any:
        if self._env is None or self._observation is None:
            raise RobotError("home first")
        return self._env

    def _pictures(self, env: Any, seen: Any) -> tuple[Image.Image, ...]:
        rendered_frames = env.render() if self._frames else ()
        rendered_frames = rendered_frames if isinstance(rendered_frames, list | tuple) else (rendered_frames,)
        return tuple(map(picture, (*(each.of(seen) for each in self._images), *rendered_frames)))

    def _judge(self, reward: float, ended: bool, cut: bool, info: Mapping[str, Any]) -> RobotStatus:
        named = isinstance(self._success, str)
        won = bool(info.get(self._success)) if named else self._success is not None and reward >= self._success
        lost = "the environment ended the episode" if ended and not won else None
        stopped = "the environment's own limit" if cut and not (won or lost) else None
        return RobotStatus(won, reward, lost, stopped, numbers_of(info, self._success))

    def _check_success(self) -> None:
        """Tries one tick: a name that `info` never has would make every episode fail."""
        if not isinstance(self._success, str):
            return
        self.reset(0)
        with self._generators.lent():
            info = self._open().step(_action(self._open(), (self.controls.low + self.controls.high) / 2))[4]
        self._observation = None
        if self._success not in info:
            known = ", ".join(map(str, info)) or "nothing"
            raise UserError(f"robot.success: {self.id} tells no {self._success!r}, but {known}; a least reward will do")


def _action(env: Any, control: np.ndarray) -> np.ndarray:
    return control.astype(env.action_space.dtype).reshape(env.action_space.shape)


# ALOHA: two ViperX arms over a table hand over a cube or put a peg into a socket. Needs `vlrl[sims]`.
#
# Zhao et al., Learning Fine-Grained Bimanual Manipulation with Low-Cost Hardware, arXiv:2304.13705; the simulator is
# huggingface/gym-aloha.

GYM_ALOHA_TASKS = {  # -> id, instruction
    "transfer_cube": ("AlohaTransferCube-v0", "Pick up the cube with the right arm and hand it to the left arm."),
    "insertion": ("AlohaInsertion-v0", "Put the peg into the socket."),
}
GYM_ALOHA_CAMERAS = ("top", "angle", "front_close", "left_pillar", "right_pillar")
GYM_ALOHA_STATES = ("qpos", "qvel", "env_state")
JOINTS = ("waist", "shoulder", "elbow", "forearm_roll", "wrist_angle", "wrist_rotate", "gripper")
GRIPS = (6, 13)  # among the 14 numbers of a control
REACH = np.insert(np.full(12, 0.5), (6, 12), np.inf)  # radians; targets farther from a joint make MuJoCo unstable
ACTUATORS = (*range(6), *range(8, 14))  # of the other twelve; each gripper has two


class Aloha(GymRobot):
    """gym-aloha as a robot (`robot.types.Robot`), at 50 Hz.

    A control is where each joint should be, in radians, and how far each gripper should be open, 0 to 1, the left arm
    first. The limits are the motors' own; the environment's space, -1 to 1, leaves out most of them. A target more than
    0.5 rad from where its joint is is held to that. Success: the left
    gripper holds the cube in the air, or the peg touches the socket's end; the reward of a tick is how many of the four
    steps to it are done.

    Args:
        task: `transfer_cube` or `insertion`.
        cameras: of top, angle, front_close, left_pillar, right_pillar.
        size: width and height of the pictures in pixels; 640 x 480 is what papers use.
        state: of `qpos` (14: joints in radians, grippers 0 to 1), `qvel` (14: their speeds) and `env_state` (position
            and quaternion of the cube, or of the peg and the socket).

    Raises:
        UserError: gym-aloha is missing, or does not know what is asked for.
    """

    def __init__(
        self,
        *,
        task: str = "transfer_cube",
        cameras: Sequence[str] = (),
        size: Sequence[int] = (64, 64),
        state: Sequence[str] = ("qpos", "env_state"),
    ):
        needs("gym_aloha", "gym-aloha")
        if task not in GYM_ALOHA_TASKS:
            raise UserError(f"robot.task: {task!r}: must be one of {', '.join(GYM_ALOHA_TASKS)}")
        unknown = [name for name in cameras if name not in GYM_ALOHA_CAMERAS]
        if unknown:
            raise UserError(f"robot.cameras: {', '.join(unknown)}: must be of {', '.join(GYM_ALOHA_CAMERAS)}")
        self._names, self._size, self._cameras = tuple(cameras), (size[0], size[1]), ()
        id, instruction = GYM_ALOHA_TASKS[task]
        super().__init__(
            id=f"gym_aloha:gym_aloha/{id}",
            instruction=instruction,
            state=state,
            images=(RENDER,) if cameras else (),
            names=[f"{side}_arm_{joint}" for side in ("left", "right") for joint in JOINTS],
            units=["1" if index in GRIPS else "rad" for index in range(14)],
        )

    def close(self) -> None:
        for camera in self._cameras:
            camera.close()
        self._cameras = ()
        super().close()

    def _make(self) -> Any:
        """gym-aloha's own observations draw three pictures of 640 x 480 each tick; here it draws what is looked at."""
        from gymnasium.spaces import Box, Dict

        env = super()._make()
        inner, dm = env.unwrapped, env.unwrapped._env
        reads = {"qpos": dm.task.get_qpos, "qvel": dm.task.get_qvel, "env_state": dm.task.get_env_state}
        limits = np.insert(np.array(dm.physics.model.actuator_ctrlrange)[list(ACTUATORS)], (6, 12), (0, 1), axis=0)
        inner.action_space = Box(*limits.T.astype(np.float32))
        sizes = {name: len(read(dm.physics)) for name, read in reads.items()}
        inner.observation_space = Dict({name: Box(-np.inf, np.inf, (n,), np.float64) for name, n in sizes.items()})
        dm.task.get_observation = lambda physics: {name: read(physics) for name, read in reads.items()}
        inner._format_raw_obs = dict
        inner.render = lambda: self._take(dm.physics)
        return env

    def _within(self, env: Any, control: np.ndarray) -> np.ndarray:
        dm = env.unwrapped._env
        joints = dm.task.get_qpos(dm.physics)
        return self.controls.checked(control.clip(joints - REACH, joints + REACH))

    def _take(self, physics: Any) -> list[Any]:
        if not self._cameras:
            self._cameras = tuple(Camera(physics.model.ptr, name, self._size) for name in self._names)
        return [camera.take(physics.data.ptr) for camera in self._cameras]


# gym-hil's Panda, which lifts a cube or sorts boxes: the simulator of lerobot's HIL-SERL. Needs `vlrl[sims]`.
#
# Luo et al., Precise and Dexterous Robotic Manipulation via Human-in-the-Loop RL, arXiv:2410.21845; the simulator is
# huggingface/gym-hil.

STEP = 0.025  # metres a tick, as gym-hil's own wrapper for people and policies
GYM_HIL_TASKS = {  # -> id, options, instruction
    "pick_cube": ("PandaPickCubeBase-v0", {"random_block_position": True}, "Pick up the cube."),
    "arrange_boxes": ("PandaArrangeBoxesBase-v0", {}, "Put each box onto the mark of its colour."),
}


class Hil(GymRobot):
    """gym-hil's Panda as a robot (`robot.types.Robot`), at 10 Hz.

    A control is a step of the hand, x, y, z in metres, and by how much the gripper closes (above 0) or opens, 1 being
    the whole way. Success: the cube is 0.1 m up, or each box within 0.03 m of its mark; reward 1 then, else 0. A cube
    that leaves its field is a failure. The state: 18 numbers of the arm (7 joints in radians, their speeds, the
    gripper's command from 0 to 255, the hand's x, y, z) and x, y, z of the cube, or of each box and of each mark.

    Args:
        task: `pick_cube`, with the cube anywhere in its field, or `arrange_boxes`.
        camera: width and height of the two pictures, from the front and from the hand; none: the state alone.

    Raises:
        UserError: gym-hil is missing, or does not know what is asked for, or there is no way to render: it always does.
    """

    def __init__(self, *, task: str = "pick_cube", camera: Sequence[int] | None = None):
        needs("gym_hil", "gym-hil")
        if task not in GYM_HIL_TASKS:
            raise UserError(f"robot.task: {task!r}: must be one of {', '.join(GYM_HIL_TASKS)}")
        if camera is not None and not (len(camera) == 2 and all(8 <= side <= 1024 for side in camera)):
            raise UserError(f"robot.camera: {camera!r}: must be a width and a height of 8 to 1024 pixels")
        id, options, instruction = GYM_HIL_TASKS[task]
        self._size = tuple(camera or (8, 8))
        super().__init__(
            id=f"gym_hil:gym_hil/{id}",
            options={"render_mode": None, **options},  # it draws in any mode and knows none
            hz=10,
            instruction=instruction,
            state=("agent_pos", "environment_state"),
            images=(RENDER,) if camera else (),
            success="succeed",
            names=("x", "y", "z", "grip"),
            units=("m", "m", "m", "1"),
        )

    def _make(self) -> Any:
        """gym-hil takes seven numbers, of which it leaves out the three turns, and steps of metres."""
        load_mujoco()  # before gym-hil does
        from gym_hil import GymRenderingSpec
        from gymnasium.spaces import Box
        from gymnasium.wrappers import TransformAction

        self._options["render_spec"] = GymRenderingSpec(width=self._size[0], height=self._size[1])
        env, limits = super()._make(), np.array([STEP, STEP, STEP, 1], np.float32)
        if hasattr(env.unwrapped, "_get_sensors"):
            env = _with_all_boxes(env)
        return TransformAction(env, lambda control: np.insert(control, 3, (0, 0, 0)), Box(-limits, limits))


def _with_all_boxes(env: Any) -> Any:
    """gym-hil shows the first box alone."""
    from gymnasium.spaces import Box, Dict
    from gymnasium.wrappers import TransformObservation

    def add_boxes(shown: dict[str, Any]) -> dict[str, Any]:
        boxes, marks = env.unwrapped._get_sensors()
        return {**shown, "environment_state": np.concatenate([each.data for each in (*boxes, *marks)])}

    size = 3 * 2 * env.unwrapped.no_blocks
    parts = {"agent_pos": env.observation_space["agent_pos"], "environment_state": Box(-np.inf, np.inf, (size,))}
    return TransformObservation(env, add_boxes, Dict(parts))


# PushT: a disc pushes a T onto its place on a table seen from above. Needs `vlrl[sims]`.
#
# Chi et al., Diffusion Policy, arXiv:2303.04137; the simulator is huggingface/gym-pusht.

GYM_PUSHT_STATES = {"pose": "state", "keypoints": "environment_state_agent_pos"}  # -> gym-pusht's obs_type


class PushT(GymRobot):
    """gym-pusht as a robot (`robot.types.Robot`), at 10 Hz.

    A control is where the disc should go: x, y in pixels from 0 to 512, y downwards. Success: the T covers 95% of its
    place; the reward of a tick is the share covered, 1 at success. `numbers` has `coverage`.

    Args:
        state: `pose` is the disc's x, y and the T's x, y and turn in radians; `keypoints` the T's eight corners twice
            over (x, y, ...) and the disc's x, y.
        camera: width and height of the picture in pixels; none: the state alone. 96 x 96 is what papers use.

    Raises:
        UserError: gym-pusht is missing, or does not know what is asked for.
    """

    def __init__(self, *, state: str = "pose", camera: Sequence[int] | None = None):
        needs("gym_pusht", "gym-pusht")
        if state not in GYM_PUSHT_STATES:
            raise UserError(f"robot.state: {state!r}: must be one of {', '.join(GYM_PUSHT_STATES)}")
        if camera is not None and not (len(camera) == 2 and all(8 <= side <= 1024 for side in camera)):
            raise UserError(f"robot.camera: {camera!r}: must be a width and a height of 8 to 1024 pixels")
        size = {"observation_width": camera[0], "observation_height": camera[1]} if camera else {}
        super().__init__(
            id="gym_pusht:gym_pusht/PushT-v0",
            options={"obs_type": GYM_PUSHT_STATES[state], **size},
            instruction="Push the T onto its green place.",
            images=(RENDER,) if camera else (),
            names=("x", "y"),
            units=("px", "px"),
        )

    def _make(self) -> Any:
        env = super()._make()
        inner = env.unwrapped
        inner.render = inner._render  # as policies are shown it: without a mark where the last control pointed
        return env


# LIBERO's 130 tasks through lerobot's environment. Needs an environment of its own, see docs/simulators.md.
#
# Liu et al., LIBERO, arXiv:2306.03310; hf-libero and huggingface/lerobot. Its meshes and textures are fetched at its
# first use and could not be had when this was written: it was tried with boxes in their place.

SUITES = {"libero_spatial": 10, "libero_object": 10, "libero_goal": 10, "libero_10": 10, "libero_90": 90}  # -> tasks
LIBERO_ROBOT_CAMERAS = {"agentview": "pixels.image", "robot0_eye_in_hand": "pixels.image2"}
STATE = ("robot_state.eef.pos", "robot_state.eef.quat", "robot_state.gripper.qpos")
LIMITS = np.array([0.05, 0.05, 0.05, 0.5, 0.5, 0.5, 1.0])  # of robosuite's OSC_POSE, which is told -1 to 1
INSTALL = "pip install 'lerobot[libero]==0.6.1' into an environment of its own: it takes robosuite 1.4"
ASSETS = ("articulated_objects", "stable_scanned_objects", "turbosquid_objects", "stable_hope_objects")


class LiberoRobot(GymRobot):
    """One task of LIBERO (`robot.types.Robot`), at 20 Hz. Untried with LIBERO's own meshes and textures.

    A control is a step of the Panda's hand, x, y, z in metres and rx, ry, rz in radians, and the gripper, which closes
    above 0. The state is float32 [9]: the hand's position and quaternion (x, y, z, w) and the fingers. Every tick draws
    both pictures, looked at or not; they are upright and mirrored, as published data and policies have them.

    Args:
        suite: libero_spatial, libero_object, libero_goal, libero_10 or libero_90.
        task: its number in the suite, from 0.
        cameras: of agentview and robot0_eye_in_hand.
        size: width and height of the pictures in pixels.
        published: begin at one of the 50 starts that come with a task, seed modulo 50, on which others train and test
            alike; else where the things stand is drawn by the seed.

    Raises:
        UserError: LIBERO or a part of it is missing, or it does not know what is asked for.
    """

    def __init__(
        self,
        *,
        suite: str = "libero_spatial",
        task: int = 0,
        cameras: Sequence[str] = ("agentview",),
        size: Sequence[int] = (256, 256),
        published: bool = False,
    ):
        if suite not in SUITES:
            raise UserError(f"robot.suite: {suite!r}: must be one of {', '.join(SUITES)}")
        if not 0 <= task < SUITES[suite]:
            raise UserError(f"robot.task: {task}: {suite} has tasks 0 to {SUITES[suite] - 1}")
        unknown = [name for name in cameras if name not in LIBERO_ROBOT_CAMERAS]
        if unknown:
            raise UserError(f"robot.cameras: {', '.join(unknown)}: must be of {', '.join(LIBERO_ROBOT_CAMERAS)}")
        check_installed()
        self._suite, self._task, self._size, self._published = suite, task, tuple(size), published
        super().__init__(
            id=f"{suite}/{task}",
            hz=20,
            state=STATE,
            images=[LIBERO_ROBOT_CAMERAS[name] for name in cameras],
            names=("x", "y", "z", "rx", "ry", "rz", "grip"),
            units=("m",) * 3 + ("rad",) * 3 + ("1",),
        )
        self._instruction = self._open().unwrapped.task_description

    def reset(self, seed: int) -> None:
        self._open().unwrapped.init_state_id = seed  # else each start follows the one before
        super().reset(seed)

    def _make(self) -> Any:
        load_mujoco()
        from gymnasium.spaces import Box
        from gymnasium.wrappers import TransformAction, TransformObservation
        from lerobot.envs.libero import LiberoEnv
        from libero.libero.benchmark import get_benchmark_dict

        width, height = self._size
        env = LiberoEnv(
            get_benchmark_dict()[self._suite](),
            self._task,
            self._suite,
            obs_type="pixels_agent_pos",
            observation_width=width,
            observation_height=height,
            init_states=self._published,
        )
        limits = LIMITS.astype(np.float32)
        env = TransformAction(env, lambda control: control / limits, Box(-limits, limits))
        return TransformObservation(env, _turned, env.observation_space)


def check_installed() -> None:
    """Raises UserError: what of LIBERO is missing, and how to get it. Imports none of it: its import asks questions."""
    for module in ("libero", "lerobot"):
        if find_spec(module) is None:
            raise UserError(f"robot: needs LIBERO ({module} is missing): {INSTALL}")
    config = Path(os.environ.get("LIBERO_CONFIG_PATH", "~/.libero")).expanduser() / "config.yaml"
    if not config.is_file():
        raise UserError(f"robot: LIBERO is not set up ({config} is missing): run python -c 'import libero.libero' once")
    home = Path(find_spec("libero").submodule_search_locations[0])
    places = (home / "libero" / "assets", Path("~/.cache/libero/assets").expanduser())
    if not any(all((place / part).is_dir() for part in ASSETS) for place in places):
        fetch = "python -c 'from libero.libero import get_assets_path; get_assets_path()'"
        raise UserError(f"robot: LIBERO's meshes and textures are missing in {places[1]}: fetch them with {fetch}")


def _turned(seen: dict[str, Any]) -> dict[str, Any]:
    """Pictures turned by half a turn, as lerobot and OpenVLA do: LIBERO gives rows from below."""
    return {**seen, "pixels": {name: image[::-1, ::-1] for name, image in seen["pixels"].items()}}
