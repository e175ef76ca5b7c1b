"""The process behind `robot.pool`: holds one robot and plays episodes on it, as it is told over a pipe.

Started as `python -m robot.worker PIPE MEMORY` with two inherited file descriptors.
"""

from __future__ import annotations

import importlib
import os
import sys
import threading
import time
from collections.abc import Mapping
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from robot.messages import read_start, write_observation, write_snapshot
from robot.outcomes import fault
from robot.play import Play
from robot.robot import Robot, Simulator
from robot.shared import Shared
from robot.wire import pack, unpack
from vlrl.types import UserError

Arrays = Mapping[str, np.ndarray]
NO_NUMBERS = ""  # stands for an action that is not an array of numbers


class Worker:
    """Answers one request after the other. Each answer is fields and arrays, as `robot.wire` packs them."""

    def __init__(self, memory: Shared):
        self._memory = memory
        self._robot: Robot | None = None
        self._play: Play | None = None

    def make(self, fields: Mapping[str, Any], arrays: Arrays) -> bytes:
        """Makes the robot: a class `my_module:MyRobot` and its options."""
        self._robot = find(fields["robot"])(**fields["options"])
        return pack({})

    def reset(self, fields: Mapping[str, Any], arrays: Arrays) -> bytes:
        """Begins an episode at a seed or a snapshot."""
        self._play = Play(self._robot, read_start(fields["seed"], arrays), ticks=fields["ticks"])
        return pack(*write_observation(self._play.reset(), self._memory))

    def step(self, fields: Mapping[str, Any], arrays: Arrays) -> bytes:
        step = self._play.step(arrays.get("action", NO_NUMBERS))
        shown, state = write_observation(step.observation, self._memory)
        ended = {"reward": step.reward, "done": step.done, "cut": step.cut, "info": dict(step.info)}
        return pack(shown | ended, state)

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
    module, _, attribute = name.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise UserError(f"robot: cannot find {name!r}: {error}") from None


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


def _end_with_parent() -> None:
    """A simulator that hangs does not read the pipe, so it would outlive whoever started it."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


if __name__ == "__main__":
    _end_with_parent()
    serve(Connection(int(sys.argv[1])), Shared(int(sys.argv[2])))
