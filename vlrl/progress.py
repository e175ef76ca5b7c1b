"""One line that says where a run is, and a stop that waits for the end of a step."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable
from typing import Any

from vlrl.notices import Notices
from vlrl.parallel import here
from vlrl.types import UserError


class StoppedError(UserError):
    """The run ended before its last step; its newest checkpoint is good."""

    def __init__(self, message: str, exit_code: int):
        super().__init__(message)
        self.exit_code = exit_code


class Progress:
    """Step, reward, accuracy, seconds a step, time left: in place on a terminal, now and then in a file."""

    def __init__(self, steps: int, done: int = 0, stream=None, notices: Notices | None = None):
        self.steps, self.begun, self.stream = steps, done, stream or sys.stderr
        self.terminal = self.stream.isatty()
        self.notices = notices or Notices()

    def __enter__(self) -> Progress:
        self.start = self.last = time.perf_counter()
        return self

    def __exit__(self, *error) -> None:
        if self.terminal:
            self.stream.write("\n")

    def show(self, step: int, row: dict[str, Any]) -> None:
        pace = (time.perf_counter() - self.start) / max(1, step - self.begun)
        left = time.strftime("%H:%M:%S", time.gmtime(pace * (self.steps - step)))
        self._write(
            f"step {step}/{self.steps}  reward {row['reward']:.3f}  accuracy {row['accuracy']:.3f}  "
            f"{row['seconds']:.2f} s/step  {left} left",
            step in (1, self.steps),
        )
        for notice in self.notices.see(row):
            self.say(notice)

    def saving(self, save: Callable[[], None]) -> None:
        """Calls what saves; says so where saving takes most of the time."""
        begun = time.perf_counter()
        save()
        for notice in self.notices.saved(time.perf_counter() - begun):
            self.say(notice)

    def say(self, text: str) -> None:
        """A line that stays."""
        if here().main:
            self.stream.write(f"\nvlrl: {text}\n")
            self.stream.flush()

    def note(self, text: str) -> None:
        """Something that takes long and is no step."""
        self._write(text, False)

    def _write(self, text: str, always: bool) -> None:
        if not here().main:
            return
        now = time.perf_counter()
        if self.terminal:
            self.stream.write(f"\r\x1b[K{text}")
        elif always or now - self.last > 10:
            self.last = now
            self.stream.write(text + "\n")
        self.stream.flush()


class Stopper:
    """`stop` turns true on the first Ctrl-C or SIGTERM; the second one ends the process at once."""

    def __init__(self):
        self.stop = False

    def __enter__(self) -> Stopper:
        self._before = {s: signal.signal(s, self._ask) for s in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *error) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _ask(self, number: int, frame) -> None:
        if self.stop:
            raise KeyboardInterrupt
        self.stop = True
        print("\nfinishing this step, then saving (again to stop at once)", file=sys.stderr)
