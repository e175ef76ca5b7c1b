"""One worker process: started, asked, ended. It answers in time or counts as dead."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Mapping
from multiprocessing import Pipe
from typing import Any

import numpy as np
import psutil

from robot.robot import RobotError
from robot.shared import Shared
from robot.wire import pack, unpack
from vlrl.system.children import end_child, start_child
from vlrl.types import UserError

FAREWELL = 2.0  # seconds for a worker to leave its robot safe
ALONE = {name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "LP_NUM_THREADS")}


class WorkerError(RobotError):
    """A worker that died, did not answer in time, or whose robot raised. It is not to be asked again."""


class Process:
    """A worker with a robot. `busy` from a request until its answer has been read.

    Args:
        robot: `my_module:MyRobot`, from anywhere on this process' Python path.
        options: of that class; what JSON can hold.
        patience: seconds after which a worker that does not answer counts as dead.

    Raises:
        UserError: there is no such robot, or it says that it cannot be made.
        WorkerError: it cannot be made for another reason.
    """

    def __init__(self, robot: str, options: Mapping[str, Any], patience: float):
        self.patience, self.memory, self.busy = patience, Shared(), False
        self._pipe, theirs = Pipe()
        inherited = (theirs.fileno(), self.memory.fileno())
        path = os.pathsep.join(filter(None, sys.path))
        self._process = start_child(
            [sys.executable, "-m", "robot.worker", *map(str, inherited)],
            pass_fds=inherited,
            env=os.environ | ALONE | {"PYTHONPATH": path},
            stdin=subprocess.DEVNULL,
            stdout=2,  # what a simulator prints is no result of ours
            patience=FAREWELL,  # it sees that its pipe is closed, unless it hangs
        )
        theirs.close()
        try:
            self.ask("make", {"robot": robot, "options": dict(options)})
        except BaseException:
            self.end()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    def cpu_s(self) -> float:
        """Processor seconds that it has used; 0 once it is gone."""
        try:
            used = psutil.Process(self._process.pid).cpu_times()
        except psutil.Error:
            return 0.0
        return used.user + used.system

    def ask(
        self, request: str, fields: Mapping[str, Any], arrays: Mapping[str, np.ndarray] | None = None
    ) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """A method of `robot.worker.Worker` called there: the fields and arrays of its answer."""
        message = pack({"request": request, **fields}, arrays)
        self.busy = True
        try:
            self._pipe.send_bytes(message)
            if not self._pipe.poll(self.patience):
                self.kill()
                raise WorkerError(f"no answer in {self.patience:g} s")
            fields, arrays = unpack(self._pipe.recv_bytes())
        except (EOFError, OSError):
            raise WorkerError(self._death()) from None
        self.busy = False
        if "user_error" in fields:
            raise UserError(fields["user_error"])
        if "error" in fields:
            raise WorkerError(fields["error"])
        return fields, arrays

    def end(self) -> None:
        """Lets it leave its robot safe if it can, and ends it. May be called twice."""
        self._pipe.close()
        end_child(self._process, FAREWELL)
        self.memory.close()

    def kill(self) -> None:
        """Ends it at once, also while another thread waits for its answer."""
        end_child(self._process)

    def _death(self) -> str:
        """How it ended, once its pipe is closed."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(FAREWELL)
        code = self._process.returncode
        return f"the worker died (signal {-code})" if code and code < 0 else f"the worker ended (exit status {code})"
