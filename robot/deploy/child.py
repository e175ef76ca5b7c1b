"""A child process that holds devices and sends what they say; one that dies is started again."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from multiprocessing import Pipe
from typing import Any

import numpy as np

from robot.wire import pack, unpack
from vlrl.system.children import end_child, start_child
from vlrl.types import UserError

AGAIN = 1.0  # seconds until one that died is started again
FAREWELL = 1.0  # seconds for it to end by itself


class Child:
    """`python -m MODULE PIPE`: is sent an order once, answers {} or {"user_error"}, and then talks.

    Args:
        order: what JSON can hold.
        hear: called with each message, from a thread of ours.
        died: called when it has ended by itself; it is started again until it comes back.
        patience: seconds until it answers.

    Raises:
        UserError: what it says of the order, or it does not start.
    """

    def __init__(
        self,
        module: str,
        order: Mapping[str, Any],
        hear: Callable[[Mapping[str, Any], Mapping[str, np.ndarray]], None],
        died: Callable[[], None],
        patience: float = 60.0,
    ):
        self._module, self._order, self._hear, self._died, self._patience = module, dict(order), hear, died, patience
        self._closed = threading.Event()
        self._start()
        self._thread = threading.Thread(target=self._read, name=module, daemon=True)
        self._thread.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def close(self) -> None:
        """May be called twice."""
        self._closed.set()
        self._end()
        self._thread.join(FAREWELL)

    def _start(self) -> None:
        self._pipe, theirs = Pipe()
        self._process = start_child(
            [sys.executable, "-m", self._module, str(theirs.fileno())],
            pass_fds=(theirs.fileno(),),
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,  # drivers print each failed read; the child's messages say it once
            patience=FAREWELL,  # it sees that its pipe is closed, unless it hangs
        )
        theirs.close()
        answer: dict[str, Any] = {"user_error": f"{self._module} did not start in {self._patience:g} s"}
        with contextlib.suppress(EOFError, OSError):
            self._pipe.send_bytes(pack(self._order))
            if self._pipe.poll(self._patience):
                answer, _ = unpack(self._pipe.recv_bytes())
        if "user_error" in answer:
            self._end()
            raise UserError(answer["user_error"])

    def _end(self) -> None:
        self._pipe.close()
        end_child(self._process, FAREWELL)

    def _read(self) -> None:
        while not self._closed.is_set():
            try:
                self._hear(*unpack(self._pipe.recv_bytes()))
            except (EOFError, OSError, ValueError, TypeError):  # TypeError: closed by `close` meanwhile
                self._revive()

    def _revive(self) -> None:
        if not self._closed.is_set():
            self._died()
        while not self._closed.wait(AGAIN):
            self._end()
            with contextlib.suppress(UserError):
                return self._start()
        return None


class Sender:
    """The child's side: messages of several threads on one pipe."""

    def __init__(self, pipe: Any):
        self._pipe, self._lock = pipe, threading.Lock()

    def send(self, fields: Mapping[str, Any], arrays: Mapping[str, np.ndarray] | None = None) -> None:
        """Ends the process where nobody listens any more."""
        try:
            with self._lock:
                self._pipe.send_bytes(pack(fields, arrays))
        except OSError:
            os._exit(0)


def until_closed(pipe: Any) -> None:
    """Ends the child when the other side is gone; a driver's thread may hang, so it is not waited for."""
    with contextlib.suppress(EOFError, OSError):
        pipe.recv_bytes()  # nothing is sent any more
    os._exit(0)
