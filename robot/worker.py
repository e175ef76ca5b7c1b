"""The process behind `robot.pool`: holds one robot and plays episodes on it, as it is told over a pipe.

Started as `python -m robot.worker PIPE MEMORY` with two inherited file descriptors.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from robot.messages import read_start, write_observation, write_snapshot
from robot.outcomes import fault
from robot.plan import plan
from robot.play import Play
from robot.robot import Robot, Simulator, Snapshot
from robot.shared import Shared
from robot.video import Film
from robot.wire import pack, unpack
from vlrl.plugins import load_plugin
from vlrl.types import UserError

Arrays = Mapping[str, np.ndarray]
NO_NUMBERS = ""  # stands for an action that is not an array of numbers


class Worker:
    """Answers one request after the other. Each answer is fields and arrays, as `robot.wire` packs them."""

    def __init__(self, memory: Shared):
        self._memory = memory
        self._robot: Robot | None = None
        self._play: Play | None = None
        self._home: Snapshot | None = None  # of the last scene that was made
        self._film: Film | None = None

    def make(self, fields: Mapping[str, Any], arrays: Arrays) -> bytes:
        """Makes the robot: a class `my_module:MyRobot` and its options."""
        self._robot = made(fields["robot"], fields["options"])
        return pack({})

    def about(self, fields: Mapping[str, Any], arrays: Arrays) -> bytes:
        """What the robot is."""
        controls = self._robot.controls
        said = {"hz": self._robot.hz, "names": list(controls.names), "units": list(controls.units),
                "state": list(getattr(self._robot, "names", ())), "script": hasattr(self._robot, "expert")}  # fmt: skip
        return pack(said, {"low": controls.low, "high": controls.high})

    def reset(self, fields: Mapping[str, Any], arrays: Arrays) -> bytes:
        """Begins an episode at a seed or a snapshot; where it was at home last, the robot is put back: that is fast."""
        start = read_start(fields["seed"], arrays)
        at_home = not isinstance(start, Snapshot)
        if at_home and self._home is not None and self._home.seed == start:
            start = self._home
        video = fields.get("video")
        self._film = Film(**video) if video else None
        self._play = Play(self._robot, start, ticks=fields["ticks"], watchers=[self._film] if self._film else [])
        shown = self._play.reset()
        if at_home and isinstance(self._robot, Simulator):
            self._home = self._robot.snapshot()
        return pack(*write_observation(shown, self._memory))

    def step(self, fields: Mapping[str, Any], arrays: Arrays) -> bytes:
        step = self._play.step(arrays.get("action", NO_NUMBERS))
        shown, state = write_observation(step.observation, self._memory)
        names = ("reward", "done", "cut", "info", "used", "void")
        return pack(shown | {name: getattr(step, name) for name in names}, state)

    def plan(self, fields: Mapping[str, Any], arrays: Arrays) -> bytes:
        """What the robot's script would do next."""
        return pack({}, {"plan": plan(self._robot, fields["ticks"])})

    def leave(self, fields: Mapping[str, Any], arrays: Arrays) -> bytes:
        """Finishes the video of an episode that may not have ended."""
        if self._film is not None:
            self._film.close()
        return pack({})

    def snapshot(self, fields: Mapping[str, Any], arrays: Arrays) -> bytes:
        if not isinstance(self._robot, Simulator):
            raise UserError(f"robot: {type(self._robot).__name__} has no snapshots")
        return pack(*write_snapshot(self._robot.snapshot()))

    def close(self) -> None:
        if self._robot is not None:
            self._robot.close()


def find(name: str) -> type[Robot]:
    """The class that `my_module:MyRobot` names, from anywhere on the Python path.

    Raises:
        UserError: there is none.
    """
    return load_plugin("robot", name, "robot")


def made(name: str, options: Mapping[str, Any]) -> Robot:
    """A robot of the class that `my_module:MyRobot` names.

    Raises:
        UserError: there is none, it has no such option, or it says that it cannot be made.
    """
    found = find(name)
    known = inspect.signature(found).parameters
    for option in options.keys() - known.keys():
        raise UserError(f"robot.{option}: {name} has no such option; it takes {', '.join(known)}")
    return found(**options)


def serve(pipe: Connection, memory: Shared) -> None:
    """Answers until the other side is gone. What a request raises goes back as `error`, or `user_error`."""
    worker = Worker(memory)
    try:
        while True:
            fields, arrays = unpack(pipe.recv_bytes())
            try:
                reply = getattr(worker, fields["request"])(fields, arrays)
            except UserError as error:
                reply = pack({"user_error": str(error)})
            except Exception as error:  # the border to drivers and simulators, which raise what they like
                reply = pack({"error": fault(error).reason})
            pipe.send_bytes(reply)
    except (EOFError, OSError):  # the other side has closed the pipe, or is gone
        pass
    finally:
        worker.close()


if __name__ == "__main__":
    serve(Connection(int(sys.argv[1])), Shared(int(sys.argv[2])))
