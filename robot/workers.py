"""Robots in worker processes: messages, pools, several environments at once."""

from __future__ import annotations

import contextlib
import inspect
import os
import subprocess
import sys
import weakref
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from threading import Condition, RLock
from typing import Any

import numpy as np
import psutil
from PIL import Image

from robot.env import RobotEnv, VideoWriter, plan_chunk
from robot.types import (
    ActionSpec,
    Robot,
    RobotError,
    RobotStatus,
    SharedPictures,
    Snapshot,
    fault,
    send_home,
)
from vlrl.decoders import wire_pack, wire_unpack
from vlrl.plugins import load_plugin
from vlrl.system.children import end_child, start_child
from vlrl.types import Environment, Frame, Observation, Step, UserError, Video

# Observations and snapshots as what `vlrl.serving.protocol` and `robot.types` carry.

Packed = tuple[dict[str, Any], dict[str, np.ndarray]]


def write_observation(observation: Observation, memory: SharedPictures) -> Packed:
    """Fields and arrays; the images go into the memory. `content` has texts, and None where an image stands."""
    if any(isinstance(part, Video) for part in observation.content):
        raise ValueError("a robot shows images, no videos")
    sizes = memory.write(observation.images)
    content = [part if isinstance(part, str) else None for part in observation.content]
    return {"content": content, "sizes": sizes}, {} if observation.state is None else {"state": observation.state}


def read_observation(
    fields: Mapping[str, Any], arrays: Mapping[str, np.ndarray], memory: SharedPictures
) -> Observation:
    images = memory.read(fields["sizes"])
    return Observation(tuple(next(images) if part is None else part for part in fields["content"]), arrays.get("state"))


def write_snapshot(snapshot: Snapshot) -> Packed:
    return {"seed": snapshot.seed}, dict(snapshot.arrays)


def read_start(seed: int, arrays: Mapping[str, np.ndarray]) -> int | Snapshot:
    """A seed, or with arrays a snapshot."""
    return Snapshot(seed, arrays) if arrays else seed


# One worker process: started, asked, ended. It answers in time or counts as dead.

FAREWELL = 2.0  # seconds for a worker to leave its robot safe
ALONE = {name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "LP_NUM_THREADS")}


class WorkerError(RobotError):
    """A worker that died, did not answer in time, or whose robot raised. It is not to be asked again."""


class Peer:
    """A process that answers what it is asked over a pipe, and ends with this object. `busy` from a request until its
    answer has been read.

    Args:
        command: starts it; it gets two file descriptors more, of the pipe and of the memory for pictures.
        environment: its variables.
        patience: seconds after which it counts as dead when it does not answer.
        name: what it is, in errors.

    Raises:
        OSError: it cannot be started.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], patience: float, name: str):
        self.patience, self.memory, self.busy, self._name = patience, SharedPictures(), False, name
        self._pipe, theirs = Pipe()
        inherited = (theirs.fileno(), self.memory.fileno())
        self._process = start_child(
            [*command, *map(str, inherited)],
            pass_fds=inherited,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=2,  # what a simulator prints is no result of ours
            patience=FAREWELL,  # it sees that its pipe is closed, unless it hangs
        )
        theirs.close()
        self._end = weakref.finalize(self, _end_peer, os.getpid(), self._pipe, self._process, self.memory)

    @property
    def pid(self) -> int:
        return self._process.pid

    def cpu_s(self) -> float:
        """Processor seconds that it and what it started have used; 0 once it is gone."""
        try:
            process = psutil.Process(self._process.pid)
            used = [each.cpu_times() for each in (process, *process.children(recursive=True))]
        except psutil.Error:
            return 0.0
        return sum(each.user + each.system for each in used)

    def ask(
        self, request: str, fields: Mapping[str, Any], arrays: Mapping[str, np.ndarray] | None = None
    ) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """The fields and arrays of its answer.

        Raises:
            UserError: what it says that the user can mend.
            WorkerError: it died, did not answer in time, or raised.
        """
        message = wire_pack({"request": request, **fields}, arrays)
        self.busy = True
        try:
            self._pipe.send_bytes(message)
            if not self._pipe.poll(self.patience):
                self.kill()
                raise WorkerError(f"no answer in {self.patience:g} s")
            fields, arrays = wire_unpack(self._pipe.recv_bytes())
        except (EOFError, OSError):
            raise WorkerError(self._death()) from None
        self.busy = False
        if "user_error" in fields:
            raise UserError(fields["user_error"])
        if "error" in fields:
            raise WorkerError(fields["error"])
        return fields, arrays

    def end(self) -> None:
        """Lets it leave what it holds safe if it can, and ends it. May be called twice."""
        self._end()

    def kill(self) -> None:
        """Ends it at once, also while another thread waits for its answer."""
        end_child(self._process)

    def _death(self) -> str:
        """How it ended, once its pipe is closed."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(FAREWELL)
        code = self._process.returncode
        how = f"died (signal {-code})" if code and code < 0 else f"ended (exit status {code})"
        return f"{self._name} {how}"


class Process(Peer):
    """A worker with a robot, asked for methods of `robot.workers.Worker`.

    Args:
        robot: `my_module:MyRobot`, from anywhere on this process' Python path.
        options: of that class; what JSON can hold.
        patience: seconds after which a worker that does not answer counts as dead.

    Raises:
        UserError: there is no such robot, or it says that it cannot be made.
        WorkerError: it cannot be made for another reason.
    """

    def __init__(self, robot: str, options: Mapping[str, Any], patience: float):
        path = os.pathsep.join(filter(None, sys.path))
        environment = os.environ | ALONE | {"PYTHONPATH": path}
        super().__init__([sys.executable, "-m", "robot.workers"], environment, patience, "the worker")
        try:
            self.ask("make", {"robot": robot, "options": dict(options)})
        except BaseException:
            self.end()
            raise


def _end_peer(owner: int, pipe: Connection, process: subprocess.Popen[bytes], memory: SharedPictures) -> None:
    if os.getpid() == owner:  # a fork of it drops its copies only
        pipe.close()
        end_child(process, FAREWELL)
        memory.close()


# One episode on one of a pool's workers: what `robot.env.RobotEnv` is, with the robot in another process.

TRIES = 3  # workers on which an episode's start is tried


class PooledRobotEnv(Environment):
    """An episode (`vlrl.types.Environment`); it has a worker from its reset to its end. Threads take turns."""

    def __init__(self, pool: WorkerPool, start: int | Snapshot, ticks: int, video: Mapping[str, Any] | None = None):
        self._pool, self._start, self._ticks, self._video = pool, start, ticks, video
        self._worker: Process | None = None
        self._observation: Observation | None = None
        self._turn = RLock()

    def reset(self) -> Observation:
        """Begins on a worker, or on another where that fails.

        Raises:
            UserError: it failed on TRIES workers, none was free in time, or the robot says what the user can mend.
        """
        with self._turn:
            if self._observation is not None:
                raise RuntimeError("an environment is made for one episode: make a new one")
            reasons = []
            while len(reasons) < TRIES:
                try:
                    self._observation = self._begin()
                    return self._observation
                except WorkerError as error:
                    reasons.append(str(error))
                    self._lose(reasons[-1])
            raise UserError(f"robot.workers: an episode could not begin on {TRIES} workers: {reasons[-1]}")

    def step(self, action: str | np.ndarray, frames: Sequence[Frame] = ()) -> Step:
        with self._turn:
            try:
                step = self._step(self._held(), action)
            except WorkerError as error:
                self._lose(str(error))
                ending = fault(error)
                return Step(self._observation, truncated=True, info=ending.info(), fault=ending.void)
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
            fields, arrays = write_snapshot(self._start)
            seed = fields["seed"]
        fields, arrays = self._worker.ask("reset", {"seed": seed, "ticks": self._ticks, "video": self._video}, arrays)
        return read_observation(fields, arrays, self._worker.memory)

    def _step(self, worker: Process, action: str | np.ndarray) -> Step:
        numbers = isinstance(action, np.ndarray) and action.dtype.kind in "fiu"
        sent = {"action": action.astype(np.float64, copy=False)} if numbers else {}
        fields, arrays = worker.ask("step", {}, sent)
        self._observation = read_observation(fields, arrays, worker.memory)
        names = ("reward", "terminated", "truncated", "info", "executed", "fault")
        return Step(self._observation, **{name: fields[name] for name in names})

    def _held(self) -> Process:
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


class WorkerPool:
    """At most `size` workers, each with a robot of its own. Safe to use from several threads.

    A worker is started when first needed, and ends with the pool. One that dies, does not answer in time or whose
    robot raised is replaced; its episode is cut with the outcome `error`. `counts` has workers `started`, `errors` and
    of them those of each `error: reason`.

    Args:
        robot: class of the robots, `my_module:MyRobot`.
        options: of that class; what JSON can hold.
        size: workers, so also episodes that may be open at a time.
        patience: seconds after which a worker that does not answer counts as dead, and after which an episode that
            waits for a free worker gives up.
    """

    def __init__(self, robot: str, options: Mapping[str, Any], *, size: int, patience: float = 120.0):
        if size < 1 or patience <= 0:
            raise UserError(
                f"robot.workers: size {size}, patience {patience}: size must be at least 1, patience above 0"
            )
        self.size, self.patience = size, patience
        self.counts: Counter[str] = Counter()
        self._robot, self._options, self._room, self._closed = robot, dict(options), size, False
        self._spent = 0.0  # processor seconds of workers that are gone
        self._idle: list[Process] = []
        self._taken: set[Process] = set()
        self._changed = Condition()

    @cached_property
    def info(self) -> PoolInfo:
        """What the robots are; starts a worker if there is none.

        Raises:
            UserError: they cannot be made.
        """
        try:
            worker = self.take()
            try:
                fields, arrays = worker.ask("describe", {})
            finally:
                self.give(worker)
        except WorkerError as error:
            raise UserError(f"robot: {self._robot} cannot be made: {error}") from None
        controls = ActionSpec(tuple(fields["names"]), tuple(fields["units"]), arrays["low"], arrays["high"])
        return PoolInfo(fields["hz"], controls, tuple(fields["state"]), fields["script"])

    def cpu_s(self) -> float:
        """Processor seconds of all workers so far."""
        with self._changed:
            return self._spent + sum(worker.cpu_s() for worker in (*self._idle, *self._taken))

    def environment(
        self, start: int | Snapshot, *, ticks: int, video: Mapping[str, Any] | None = None
    ) -> PooledRobotEnv:
        """One episode, as `robot.env.RobotEnv` plays it; it has a worker from its reset to its end.

        Args:
            video: to write one, what `robot.env.VideoWriter` takes.
        """
        return PooledRobotEnv(self, start, ticks, video)

    def take(self) -> Process:
        """A worker for one episode; waits for one.

        Raises:
            UserError: none was free in time.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: self._idle or self._room or self._closed, self.patience):
                raise UserError(
                    f"robot.workers: {self.size} workers were busy for {self.patience:g} s: open fewer episodes"
                )
            if self._closed:
                raise UserError("robot.workers: it is closed")
            if self._idle:
                self._taken.add(worker := self._idle.pop())
                return worker
            self._room -= 1
            self.counts["started"] += 1
        try:
            worker = Process(self._robot, self._options, self.patience)
        except BaseException as error:
            self._free(str(error) if isinstance(error, WorkerError) else None)
            raise
        with self._changed:
            self._taken.add(worker)
        if self._closed:  # since it was begun
            self.bury(worker, "closed")
            raise UserError("robot.workers: it is closed")
        return worker

    def give(self, worker: Process) -> None:
        """A worker back, for the next episode."""
        if worker.busy:  # a request was interrupted, so that its answer would be taken for the next one's
            self.bury(worker, "interrupted")
            return
        with self._changed:
            self._taken.discard(worker)
            self._idle.append(worker)
            self._changed.notify()
        if self._closed:
            self.close()

    def bury(self, worker: Process, reason: str) -> None:
        """A worker that is not to be used again."""
        spent = worker.cpu_s()
        worker.end()
        with self._changed:
            self._spent += spent
            self._taken.discard(worker)
        self._free(reason)

    def close(self) -> None:
        """Ends all workers; episodes that are still open end with an `error`."""
        self._closed = True
        with self._changed:
            idle, self._idle = self._idle, []
            taken = list(self._taken)
            self._changed.notify_all()
        for worker in taken:
            worker.kill()
        for worker in idle:
            worker.end()

    def _free(self, reason: str | None) -> None:
        with self._changed:
            self.counts["errors"] += reason is not None
            self.counts[f"error: {reason}"] += reason is not None
            self._room += 1
            self._changed.notify()


# The process behind `robot.workers`: holds one robot and plays episodes on it, as it is told over a pipe.
#
# Started as `python -m robot.workers PIPE MEMORY` with two inherited file descriptors.

Arrays = Mapping[str, np.ndarray]
NO_NUMBERS = ""  # stands for an action that is not an array of numbers


class Worker:
    """Answers one request after the other. Each answer is fields and arrays, as `vlrl.decoders` packs them."""

    def __init__(self, memory: SharedPictures):
        self._memory = memory
        self._robot: Robot | None = None
        self._play: RobotEnv | None = None
        self._home: Snapshot | None = None  # of the last scene that was made
        self._film: VideoWriter | None = None

    def make(self, fields: Mapping[str, Any], arrays: Arrays) -> bytes:
        """Makes the robot: a class `my_module:MyRobot` and its options."""
        self._robot = make_robot(fields["robot"], fields["options"])
        return wire_pack({})

    def describe(self, fields: Mapping[str, Any], arrays: Arrays) -> bytes:
        """What the robot is."""
        controls = self._robot.controls
        description = {"hz": self._robot.hz, "names": list(controls.names), "units": list(controls.units),
                "state": list(self._robot.names), "script": self._robot.has_script}  # fmt: skip
        return wire_pack(description, {"low": controls.low, "high": controls.high})

    def reset(self, fields: Mapping[str, Any], arrays: Arrays) -> bytes:
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
        return wire_pack(*write_observation(observation, self._memory))

    def step(self, fields: Mapping[str, Any], arrays: Arrays) -> bytes:
        step = self._play.step(arrays.get("action", NO_NUMBERS))
        packed, state = write_observation(step.observation, self._memory)
        ending = {"terminated": step.terminated, "truncated": step.truncated, "fault": step.fault}
        rest = {"reward": step.reward, "info": step.info, "executed": step.executed}
        return wire_pack(packed | ending | rest, state)

    def plan(self, fields: Mapping[str, Any], arrays: Arrays) -> bytes:
        """What the robot's script would do next."""
        return wire_pack({}, {"plan": plan_chunk(self._robot, fields["ticks"])})

    def leave(self, fields: Mapping[str, Any], arrays: Arrays) -> bytes:
        """Finishes the video of an episode that may not have ended."""
        if self._film is not None:
            self._film.close()
        return wire_pack({})

    def snapshot(self, fields: Mapping[str, Any], arrays: Arrays) -> bytes:
        return wire_pack(*write_snapshot(self._robot.snapshot()))

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


def serve(pipe: Connection, memory: SharedPictures) -> None:
    """Answers until the other side is gone. What a request raises goes back as `error`, or `user_error`."""
    worker = Worker(memory)
    answers = {
        "make": worker.make, "describe": worker.describe, "reset": worker.reset, "step": worker.step,
        "plan": worker.plan, "leave": worker.leave, "snapshot": worker.snapshot,
    }  # fmt: skip
    try:
        while True:
            fields, arrays = wire_unpack(pipe.recv_bytes())
            try:
                reply = answers[fields["request"]](fields, arrays)
            except UserError as error:
                reply = wire_pack({"user_error": str(error)})
            except Exception as error:  # the border to drivers and simulators, which raise what they like
                reply = wire_pack({"error": fault(error).reason})
            pipe.send_bytes(reply)
    except (EOFError, OSError):  # the other side has closed the pipe, or is gone
        pass
    finally:
        worker.close()


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


if __name__ == "__main__":
    serve(Connection(int(sys.argv[1])), SharedPictures(int(sys.argv[2])))
