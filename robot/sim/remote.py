"""A simulator that lives in another interpreter, with other versions, as a robot."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from robot.sim.gym import ForeignGenerators, GymRobot
from robot.sim.tabletop import choose_renderer
from robot.types import RobotError, RobotStatus, Snapshot
from vlrl.placement.workers import LocalWorker, WorkerError
from vlrl.system.hub import reach_hub
from vlrl.types import Observation, UserError

HOST = Path(__file__).with_name("remote_host.py")  # a program of its own, in that interpreter
OURS = ("PYTHONHOME", "PYTHONPATH", "VIRTUAL_ENV")  # would show that interpreter our packages
START = 60.0  # seconds that an interpreter may take to start, whatever patience its simulator is given
SEEDS = (0, 1)  # of the scenes by which it is tried


class RemoteEnv:
    """A Gymnasium environment as far as `GymRobot` needs one; the simulator is in the other process.

    A tick is one round trip. Pictures come over only when they are looked at.

    Raises:
        UserError: the interpreter cannot be started, or cannot make it.
        RobotError: it died, hung or raised, here and in every method but `close`.
    """

    def __init__(self, python: str, make: str, options: Mapping[str, Any], patience: float):
        from gymnasium.spaces import Box, Dict

        self._make = make
        self._peer = start_host(python, patience)
        fields, arrays = self._ask("make", {"make": make, "options": dict(options)})
        self.action_space = Box(arrays["low"].astype(np.float32), arrays["high"].astype(np.float32))
        self.observation_space = Dict({
            str(name): Box(0, 255, tuple(shape), np.uint8) if image else Box(-np.inf, np.inf, tuple(shape), np.float64)
            for name, shape, image in fields["parts"]
        })  # fmt: skip
        self.metadata = {"render_fps": fields["hz"]}
        self._has_pictures = any(image for _, _, image in fields["parts"])
        self._parts, self._instruction = dict[str, np.ndarray](), ""
        self.names, self.units, self.has_snapshots = fields["names"], fields["units"], bool(fields["snapshots"])
        self.versions: Mapping[str, str] = fields["versions"]

    def reset(self, *, seed: int) -> tuple[dict[str, Any], dict[str, Any]]:
        self._ask_state("reset", {"seed": seed})
        return {}, {}

    def step(self, action: np.ndarray) -> tuple[dict[str, Any], float, bool, bool, dict[str, float]]:
        fields = self._ask_state("step", {}, {"action": action})
        terminated, truncated = fields["ends"]
        return {}, fields["reward"], terminated, truncated, fields["info"]

    def look(self) -> tuple[dict[str, Any], str]:
        """The parts of the observation by name, and the instruction that the simulator has for this episode."""
        pictures = self._ask("look", {})[1] if self._has_pictures else {}
        return self._parts | {name: Image.fromarray(each) for name, each in pictures.items()}, self._instruction

    def render(self) -> list[Image.Image]:
        return [Image.fromarray(frame) for frame in self._ask("render", {})[1].values()]

    def snapshot(self) -> dict[str, np.ndarray]:
        return self._ask("snapshot", {})[1]

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        self._ask_state("restore", {}, arrays)

    def close(self) -> None:
        self._peer.end()

    def _ask_state(
        self, request: str, fields: Mapping[str, Any], arrays: Mapping[str, np.ndarray] | None = None
    ) -> Any:
        fields, self._parts = self._ask(request, fields, arrays)
        self._instruction = str(fields["instruction"])
        return fields

    def _ask(self, request: str, fields: Mapping[str, Any], arrays: Mapping[str, np.ndarray] | None = None) -> Any:
        try:
            return self._peer.ask(request, fields, arrays)
        except UserError:
            self.close()
            raise
        except WorkerError as error:
            self.close()
            raise RobotError(f"robot.make: {self._make}: {error}") from None


def start_host(python: str, patience: float) -> LocalWorker:
    """The other interpreter with `remote_host.py`, which has nothing of ours in its path.

    Raises:
        UserError: it is none that can run that.
    """
    program = shutil.which(os.path.expanduser(python))
    if program is None:
        raise UserError(f"robot.python: {python!r}: is no program: name an interpreter, such as libero/bin/python")
    choose_renderer()
    environment = {name: value for name, value in os.environ.items() if name not in OURS}
    environment["PYTHONHASHSEED"] = "0"  # scenes that hang on the order of a set are the same in every process
    try:
        peer = LocalWorker([program, str(HOST)], environment, max(patience, START), "the simulator")
        peer.ask("hello", {})
        peer.patience = patience
    except (OSError, ValueError, WorkerError) as error:
        raise UserError(f"robot.python: {python!r}: is no Python of at least 3.8 with numpy: {error}") from None
    return peer


class Remote(GymRobot):
    """An environment that a function makes in another interpreter (`robot.types.Robot`); docs/simulators.md.

    It is what `GymRobot` makes of any: the same parts, controls, rewards and endings. The function gives an environment
    of Gymnasium or of gym, with `action_space` or robosuite's `action_spec`. It may have `hz`, `action_names`,
    `action_units`, `instruction` (of the episode), and `snapshot()` -> arrays by name with `restore(arrays)` -> the
    observation. Without these a snapshot is the seed and the controls so far, which `restore` plays again. Scenes must
    hang on the seed alone, which is tried when the robot is made.

    Args:
        python: the interpreter, such as `~/libero/bin/python`: 3.8 or newer, with numpy.
        make: `module:function` there, or `path/to/file.py:function`. Modules are what it has installed, and then what
            is in the working directory.
        options: named arguments of the function; what JSON can hold.
        hz: ticks a second; none: what the environment says.
        instruction: what a policy is told; empty: what the environment says.
        state: parts of the observation that make up the state; none: all but the pictures.
        images: parts that are pictures, or `render` for `env.render()`.
        success: the number of `info` that says so, or the least reward of a tick; none: nothing counts as success.
        names: of the numbers of a control; none: what the environment says.
        units: of the same.
        patience: seconds after which a simulator that does not answer counts as dead.

    Raises:
        UserError: the interpreter or the environment cannot be had, or is not as said.
        RobotError: it dies, hangs or raises while it is tried.
    """

    GENERATORS = ForeignGenerators

    def __init__(
        self,
        *,
        python: str,
        make: str,
        options: Mapping[str, Any] | None = None,
        hz: float | None = None,
        instruction: str = "",
        state: Sequence[str] | None = None,
        images: Sequence[str] = (),
        success: str | float | None = "is_success",
        names: Sequence[str] | None = None,
        units: Sequence[str] | None = None,
        patience: float = 60.0,
    ):
        if not patience > 0:
            raise UserError(f"robot.patience: {patience}: must be seconds, above 0")
        module, _, function = make.rpartition(":")
        if not (module and function.isidentifier()):
            raise UserError(f"robot.make: {make!r}: must be module:function or path/to/file.py:function")
        self._start = (python, make, dict(options or {}), patience)
        env = RemoteEnv(*self._start)
        self._next: RemoteEnv | None = env
        self._seed, self._sent = 0, list[np.ndarray]()
        self._fixed_instruction = instruction
        try:
            super().__init__(
                id=make, hz=hz, state=state, images=images, success=success, names=names or env.names,
                units=units or env.units,
            )  # fmt: skip
            self._check_repeats()
        except BaseException:
            env.close()
            raise

    @property
    def versions(self) -> Mapping[str, str]:
        return self._open().versions

    def reset(self, seed: int) -> None:
        super().reset(seed)
        self._seed, self._sent = seed, []

    def get_observation(self) -> Observation:
        self._observation, instruction = self._require_reset().look()
        self._instruction = self._fixed_instruction or instruction
        return super().get_observation()

    def send_action(self, control: np.ndarray) -> np.ndarray:
        self._sent.append(super().send_action(control))
        return self._sent[-1]

    def snapshot(self) -> Snapshot:
        env = self._require_reset()
        replay = {"controls": np.array(self._sent, np.float32).reshape(-1, len(self.controls))}
        return Snapshot(self._seed, env.snapshot() if env.has_snapshots else replay)

    def restore(self, snapshot: Snapshot) -> None:
        has_snapshots = self._open().has_snapshots
        if not has_snapshots or self._observation is None or self._seed != snapshot.seed:
            self.reset(snapshot.seed)  # within a scene a simulator's own snapshot is enough
        if has_snapshots:
            self._open().restore(snapshot.arrays)
            self._signals = RobotStatus()
        else:
            for control in snapshot.arrays["controls"]:
                self.send_action(control)

    def _make(self) -> RemoteEnv:
        env, self._next = self._next or RemoteEnv(*self._start), None
        return env

    def _check_repeats(self) -> None:
        """UserError where a seed, or a snapshot of the simulator's own, does not lead to the same bit for bit."""
        first, other = SEEDS
        self.reset(first)
        start = self.snapshot()
        expected = self._play()
        self.reset(other)
        self.reset(first)
        if self._play() != expected:
            raise UserError(
                f"robot.make: {self.id}: seed {first} made two different episodes: all that it draws must hang on "
                "the seed of reset"
            )
        if self._open().has_snapshots and (self.restore(start), self._play())[1] != expected:
            raise UserError(f"robot.make: {self.id}: restore() does not go on from snapshot() bit for bit")
        self._observation = None

    def _play(self) -> list[bytes]:
        """What is shown now and in the next ticks."""
        frames = list[bytes]()
        for share in (0.4, 0.7):
            observation = self.get_observation()
            frames += [np.asarray(observation.state).tobytes(), *(image.tobytes() for image in observation.images)]
            self.send_action(self.controls.low + np.float32(share) * (self.controls.high - self.controls.low))
        return [*frames, np.asarray(self.get_observation().state).tobytes()]


class EnvHub(Remote):
    """An environment of lerobot's EnvHub (`robot.types.Robot`): what `make_env` of a repository's `env.py` gives.

    lerobot fetches and runs it, in a process of its own, which is no protection against what its code does.

    Args:
        id: `owner/name@revision` or `owner/name@revision:path/to/env.py`, a repository of the Hugging Face hub, where
            the revision may be left out; or a local folder with an `env.py`, which needs no lerobot.
        trust: whether code of the hub may run here. A folder's may.
        python: the interpreter that has lerobot and what the environment needs; empty: this one.
        hz: ticks a second; none: what the environment says.
        instruction: what a policy is told; empty: what the environment says.
        state: parts of the observation that make up the state; none: all but the pictures.
        images: parts that are pictures, or `render` for `env.render()`.
        success: the number of `info` that says so, or the least reward of a tick; none: nothing counts as success.
        names: of the numbers of a control; none: what the environment says.
        units: of the same.
        patience: seconds after which a simulator that does not answer counts as dead.

    Raises:
        UserError: it is not trusted, the hub has no such repository or cannot be reached; and as `Remote`.
    """

    def __init__(
        self,
        *,
        id: str,
        trust: bool = False,
        python: str = "",
        hz: float | None = None,
        instruction: str = "",
        state: Sequence[str] | None = None,
        images: Sequence[str] = (),
        success: str | float | None = "is_success",
        names: Sequence[str] | None = None,
        units: Sequence[str] | None = None,
        patience: float = 300.0,  # lerobot alone may take a minute to import
    ):
        make, options = find_hub_environment(id, trust)
        try:
            super().__init__(
                python=python or sys.executable, make=make, options=options, hz=hz, instruction=instruction,
                state=state, images=images, success=success, names=names, units=units, patience=patience,
            )  # fmt: skip
        except UserError as error:
            why = str(error).replace("robot.make: ", f"robot.id: {id}: ", 1)
            lacks = f"{LOADER.partition(':')[0]} cannot be imported" in why
            raise UserError(f"{why}; pip install lerobot there" if lacks else why) from error


LOADER = "lerobot.envs.factory:make_env"


def find_hub_environment(id: str, trust: bool) -> tuple[str, dict[str, Any]]:
    """`Remote`'s `make` and `options` for a folder, or a repository as lerobot names one.

    Raises:
        UserError: there is no such folder; the repository is not trusted, or can neither be reached nor is cached.
    """
    if (folder := Path(id).expanduser()).is_dir():
        return f"{folder / 'env.py'}:make_env", {}
    repository, _, file = id.partition(":")
    repository, _, revision = repository.partition("@")
    if repository.count("/") != 1 or repository.startswith((".", "/", "~")):
        raise UserError(f"robot.id: {id!r}: there is no such folder, and it is no owner/name@revision of the hub")
    if not trust:
        pinned = "" if revision else ", and name the revision that you read, owner/name@revision"
        raise UserError(
            f"robot.trust: code of {repository} would run here: set robot.trust to true if you trust it{pinned}"
        )
    try:
        reach_hub(repository, file=file or "env.py")
    except UserError as error:
        raise UserError(f"robot.id: {error}") from None
    return LOADER, {"cfg": id, "trust_remote_code": True}
