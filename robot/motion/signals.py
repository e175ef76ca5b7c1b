"""Signals that end the motion process: at once while it connects, between two ticks once it ticks."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator

ENDING = (signal.SIGTERM, signal.SIGINT)


class EndError(Exception):
    """The motion process shall end, with an exit code and why."""

    def __init__(self, code: int, cause: str):
        super().__init__(cause)
        self.code = code


class Signals:
    """Catches SIGTERM and SIGINT from now on; each raises EndError with exit code 128 and its number."""

    def __init__(self):
        self._busy, self._came = False, 0
        for number in ENDING:
            signal.signal(number, self._catch)

    @contextlib.contextmanager
    def later(self) -> Iterator[None]:
        """What is done meanwhile is not torn: EndError comes at its end."""
        self._busy = True
        try:
            yield
        finally:
            self._busy = False
        if self._came:
            self._end()

    def ignore(self) -> None:
        """From now on they come too late."""
        for number in ENDING:
            signal.signal(number, signal.SIG_IGN)

    def _catch(self, number: int, frame: object) -> None:
        self._came = number
        if not self._busy:
            self._end()

    def _end(self) -> None:
        raise EndError(128 + self._came, f"{signal.Signals(self._came).name} came")
