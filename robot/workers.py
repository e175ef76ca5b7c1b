"""Robots in worker processes: a pool's episodes, and several robots that take turns in one process."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from threading import RLock
from typing import Any

import numpy as np
from PIL import Image

from robot.env import RobotEnv, VideoWriter, plan_chunk
from robot.types import ActionSpec, Ending, Robot, RobotStatus, Snapshot, fault, send_home
from vlrl.placement.workers import (
    Arrays,
    LostWorkerError,
    Packed,
    Worker,
    WorkerError,
    WorkerPool,
    WorkerService,
    pack_images,
    unpack_images,
)
from vlrl.plugins import load_plugin
from vlrl.types import TRIES, Environment, Frame, Observation, Step, UserError, Video, is_hopeless


def write_observation(observation: Observation) -> Packed:
    """Fields and arrays. `content` has texts, and None where an image stands."""
    if any(isinstance(part, Video) for part in observation.content):
        raise ValueError("a robot shows images, no videos")
    content = [part if isinstance(part, str) else None for part in observation.content]
    state = {} if observation.state is None else {"state": observation.state}
    return {"content": content}, pack_images(observation.images) | state


def read_observation(fields: Mapping[str, Any], arrays: Arrays) -> Observation:
    images = iter(unpack_images(arrays))
    return Observation(tuple(next(images) if part is None else part for part in fields["content"]), arrays.get("state"))


def read_start(seed: int, arrays: Arrays) -> int | Snapshot:
    """A seed, or with arrays a snapshot."""
    return Snapshot(seed, arrays) if arrays else seed


# One episode on one of a pool's workers: what `robot.env.RobotEnv` is, with the robot in another process.


class PooledRobotEnv(Environment):
    """An episode (`vlrl.types.Environment`); it has a worker from its reset to its end. Threads take turns."""

    def __init__(self, pool: RobotPool, start: int | Snapshot, ticks: int, video: Mapping[str, Any] | None = None):
        self._pool, self._start, self._ticks, self._video = pool, start, ticks, video
        self._worker: Worker | None = None
        self._observation: Observation | None = None
        self._turn = RLock()

    def reset(self) -> Observation:
        """Begins on a worker, or on another where that fails.

        Raises:
            UserError: TRIES workers raised or LOST_MOST were lost, none was free in time, or the robot says what
                the user can mend.
        """
        with self._turn:
            if self._observation is not None:
                raise RuntimeError("an environment is made for one episode: make a new one")
            errors: list[WorkerError] = []
            while True:
                try:
                    self._observation = self._begin()
                    return self._observation
                except WorkerError as error:
                    errors.append(error)
                    self._lose(str(error))
                lost = sum(isinstance(each, LostWorkerError) for each in errors)
                if is_hopeless(len(errors), lost):
                    problem = f"an episode could not begin on {len(errors)} workers: {errors[-1]}"
                    raise UserError(f"robot.workers: {problem}")

    def step(self, action: str | np.ndarray, frames: Sequence[Frame] = ()) -> Step:
        with self._turn:
            try:
                step = self._step(self._held(), action)
            except WorkerError as error:
                self._lose(str(error))
                ending = Ending("error", str(error))
                lost = isinstance(error, LostWorkerError)
                return Step(self._observation, truncated=True, info=ending.info(), fault=ending.void, worker_lost=lost)
            if step.truncated and "error" in step.info:  # its simulator may be in any state
                self._lose(next((key[len("error: ") :] for key in step.info if key.startswith("error: ")), "unnamed"))
            elif step.terminated or step.truncated:
                self.close()
            return step

    def snapshot(self) -> Snapshot:
        """Where the episode stands, to begin others from.

        Raises:
            UserError: the robot has no snapshots.
            WorkerError: its worker is lost.
        """
        with self._turn:
            try:
                fields, arrays = self._held().ask("snapshot", {})
            except WorkerError as error:
                self._lose(str(error))
                raise
            return Snapshot(fields["seed"], arrays)

    def plan(self, ticks: int) -> np.ndarray:
        """What the robot's script would do next, float32 [ticks, A] (see `robot.env.plan_chunk`).

        Raises:
            UserError: it has no script, or no snapshots.
            WorkerError: its worker is lost.
        """
        with self._turn:
            try:
                return self._held().ask("plan", {"ticks": ticks})[1]["plan"]
            except WorkerError as error:
                self._lose(str(error))
                raise

    def close(self) -> None:
        """Gives the worker back, once the request under way has been answered."""
        with self._turn:
            try:
                if self._video and self._worker is not None:
                    self._worker.ask("leave", {})
            except WorkerError as error:
                self._lose(str(error))
            worker, self._worker = self._worker, None
            if worker is not None:
                self._pool.give(worker)

    def _begin(self) -> Observation:
        self._worker = self._pool.take()
        seed, arrays = self._start, {}
        if isinstance(self._start, Snapshot):
            seed, arrays = self._start.seed, self._start.arrays
        fields, arrays = self._worker.ask("reset", {"seed": seed, "ticks": self._ticks, "video": self._video}, arrays)
        return read_observation(fields, arrays)

    def _step(self, worker: Worker, action: str | np.ndarray) -> Step:
        numbers = isinstance(action, np.ndarray) and action.dtype.kind in "fiu"
        sent = {"action": action.astype(np.float64, copy=False)} if numbers else {}
        fields, arrays = worker.ask("step", {}, sent)
        self._observation = read_observation(fields, arrays)
        names = ("reward", "terminated", "truncated", "info", "executed", "fault")
        return Step(self._observation, **{name: fields[name] for name in names})

    def _held(self) -> Worker:
        if self._worker is None:
            raise RuntimeError("step after reset, and not after the end")
        return self._worker

    def _lose(self, reason: str) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            self._pool.bury(worker, reason)


# Robots in processes of their own, which outlive episodes: as many episodes at a time as there are workers.


@dataclass(frozen=True, eq=False)
class PoolInfo:
    """What the robots of a pool are."""

    hz: float
    controls: ActionSpec
    names: tuple[str, ...]  # of the numbers of the state; (): it does not say
    script: bool  # whether they have one that shows the job
    versions: Mapping[str, str]  # of a simulator's packages


class RobotPool(WorkerPool):
    """Workers with a robot each. One whose robot raised is replaced; its episode is cut with the outcome `error`.

    Args:
        robot: class of the robots, `my_module:MyRobot`, from anywhere on this process' Python path.
        options: of that class; what JSON can hold.
        size: workers, so also episodes that may be open at a time.
        patience: as `vlrl.placement.workers.WorkerPool`.
    """

    def __init__(self, robot: str, options: Mapping[str, Any], *, size: int, patience: float = 120.0):
        choice = {"robot": robot, "options": dict(options)}
        super().__init__(
            f"{__name__}:RobotService", choice, kind="simulator", size=size, patience=patience, name="robot.workers"
        )
        self._robot = robot

    @cached_property
    def info(self) -> PoolInfo:
        """What the robots are; starts a worker if there is none.

        Raises:
            UserError: they cannot be made.
        """
        try:
            fields, arrays = self.call("describe", {}, lost=TRIES)
        except WorkerError as error:
            raise UserError(f"robot: {self._robot} cannot be made: {error}") from None
        controls = ActionSpec(tuple(fields["names"]), tuple(fields["units"]), arrays["low"], arrays["high"])
        return PoolInfo(fields["hz"], controls, tuple(fields["state"]), fields["script"], fields["versions"])

    def environment(
        self, start: int | Snapshot, *, ticks: int, video: Mapping[str, Any] | None = None
    ) -> PooledRobotEnv:
        """One episode, as `robot.env.RobotEnv` plays it; it has a worker from its reset to its end.

        Args:
            video: to write one, what `robot.env.VideoWriter` takes.
        """
        return PooledRobotEnv(self, start, ticks, video)


# What a worker holds: one robot, on which it plays episodes.

NO_NUMBERS = ""  # stands for an action that is not an array of numbers


class RobotService(WorkerService):
    def __init__(self) -> None:
        self._robot: Robot | None = None
        self._play: RobotEnv | None = None
        self._home: Snapshot | None = None  # of the last scene that was made
        self._film: VideoWriter | None = None

    def answers(self) -> Mapping[str, Callable[[Mapping[str, Any], Arrays], Packed]]:
        methods = (self.make, self.describe, self.reset, self.step, self.plan, self.leave, self.snapshot)
        return {method.__name__: method for method in methods}

    def describe_error(self, error: Exception) -> str:
        return fault(error).reason

    def make(self, fields: Mapping[str, Any], arrays: Arrays) -> Packed:
        """Makes the robot: a class `my_module:MyRobot` and its options."""
        self._robot = make_robot(fields["robot"], fields["options"])
        return {}, {}

    def describe(self, fields: Mapping[str, Any], arrays: Arrays) -> Packed:
        """What the robot is."""
        controls = self._robot.controls
        description = {"hz": self._robot.hz, "names": list(controls.names), "units": list(controls.units),
                "state": list(self._robot.names), "script": self._robot.has_script,
                "versions": dict(self._robot.versions)}  # fmt: skip
        return description, {"low": controls.low, "high": controls.high}

    def reset(self, fields: Mapping[str, Any], arrays: Arrays) -> Packed:
        """Begins an episode at a seed or a snapshot; where it was at home last, the robot is put back: that is fast."""
        start = read_start(fields["seed"], arrays)
        at_home = not isinstance(start, Snapshot)
        if at_home and self._home is not None and self._home.seed == start:
            start = self._home
        video = fields.get("video")
        self._film = VideoWriter(**video) if video else None
        self._play = RobotEnv(self._robot, start, ticks=fields["ticks"], watchers=[self._film] if self._film else [])
        observation = self._play.reset()
        if at_home and self._robot.has_snapshots:
            self._home = self._robot.snapshot()
        return write_observation(observation)

    def step(self, fields: Mapping[str, Any], arrays: Arrays) -> Packed:
        step = self._play.step(arrays.get("action", NO_NUMBERS))
        packed, state = write_observation(step.observation)
        ending = {"terminated": step.terminated, "truncated": step.truncated, "fault": step.fault}
        rest = {"reward": step.reward, "info": step.info, "executed": step.executed}
        return packed | ending | rest, state

    def plan(self, fields: Mapping[str, Any], arrays: Arrays) -> Packed:
        """What the robot's script would do next."""
        return {}, {"plan": plan_chunk(self._robot, fields["ticks"])}

    def leave(self, fields: Mapping[str, Any], arrays: Arrays) -> Packed:
        """Finishes the video of an episode that may not have ended."""
        if self._film is not None:
            self._film.close()
        return {}, {}

    def snapshot(self, fields: Mapping[str, Any], arrays: Arrays) -> Packed:
        snapshot = self._robot.snapshot()
        return {"seed": snapshot.seed}, dict(snapshot.arrays)

    def close(self) -> None:
        if self._robot is not None:
            self._robot.close()


def worker_find(name: str) -> type[Robot]:
    """The class that `my_module:MyRobot` names, from anywhere on the Python path.

    Raises:
        UserError: there is none.
    """
    return load_plugin("robot", name, "robot")


def make_robot(name: str, options: Mapping[str, Any]) -> Robot:
    """A robot of the class that `my_module:MyRobot` names.

    Raises:
        UserError: there is none, it has no such option, or it says that it cannot be made.
    """
    robot = worker_find(name)
    known = inspect.signature(robot).parameters
    for option in options.keys() - known.keys():
        raise UserError(f"robot.{option}: {name} has no such option; it takes {', '.join(known)}")
    return robot(**options)


# Several robots in one process, of which each scene has its own: several jobs for one policy.


class Several(Robot):
    """Robots that take turns: scene `seed` is that of robot `seed % n`, with the same seed.

    So each part of the scenes (robot/demos.py) is shared out evenly, and no robot is trained on what is held out. A
    script, pictures for videos and snapshots are there where all of them have these.

    Args:
        robots: of each the class, `my_module:MyRobot`, and its options, as {target: ..., options: {...}}.

    Raises:
        UserError: one cannot be made, or they differ in rate, controls or state.
    """

    def __init__(self, *, robots: Sequence[Mapping[str, Any]]):
        self._robots: list[Robot] = [make_robot(each["target"], each["options"]) for each in robots]
        self._now = first = self._robots[0]
        self.hz, self.controls, self.names = first.hz, first.controls, first.names
        for number, robot in enumerate(self._robots):
            if different := _difference(first, robot):
                raise UserError(f"task.robot.{number}: one policy drives all robots, but {different}")

    @property
    def versions(self) -> Mapping[str, str]:
        return {name: version for robot in self._robots for name, version in robot.versions.items()}

    @property
    def has_script(self) -> bool:
        return all(robot.has_script for robot in self._robots)

    @property
    def has_snapshots(self) -> bool:
        return all(robot.has_snapshots for robot in self._robots)

    def reset(self, seed: int) -> None:
        self._send(seed)

    def restore(self, snapshot: Snapshot) -> None:
        self._send(snapshot)

    def snapshot(self) -> Snapshot:
        return self._now.snapshot()

    def expert(self) -> np.ndarray:
        return self._now.expert()

    def picture(self, size: tuple[int, int]) -> Image.Image:
        return self._now.picture(size)

    def get_observation(self) -> Observation:
        return self._now.get_observation()

    def send_action(self, control: np.ndarray) -> np.ndarray:
        return self._now.send_action(control)

    def status(self) -> RobotStatus:
        return self._now.status()

    def close(self) -> None:
        for robot in self._robots:
            robot.close()

    def _send(self, start: int | Snapshot) -> None:
        """Begins an episode of the robot whose scene it is."""
        seed = start.seed if isinstance(start, Snapshot) else start
        self._now = self._robots[seed % len(self._robots)]
        send_home(self._now, start)


def _difference(first: Robot, other: Robot) -> str:
    """In what two robots differ that one policy must find alike; '' in nothing."""
    for what, of in (
        ("ticks a second", lambda robot: robot.hz),
        ("controls", lambda robot: (robot.controls.names, robot.controls.units)),
        ("lower limits", lambda robot: robot.controls.low.tolist()),
        ("upper limits", lambda robot: robot.controls.high.tolist()),
        ("numbers of the state", lambda robot: tuple(robot.names)),
    ):
        mine, its = of(first), of(other)
        if mine != its:
            return f"its {what} are {its}, those of the first {mine}"
    return ""
