"""One line that says where a run is, and a stop that waits for the end of a step."""

from __future__ import annotations

import signal
import statistics
import sys
import time
from collections import deque
from collections.abc import Callable, Collection
from typing import Any

from vlrl.notices import Notices
from vlrl.parallel import here
from vlrl.types import UserError

RECENT = 50  # steps that the time left is estimated from


class StoppedError(UserError):
    """The run ended before its last step; its newest checkpoint is good."""

    def __init__(self, message: str, exit_code: int):
        super().__init__(message)
        self.exit_code = exit_code


class Progress:
    """Step, reward, accuracy, seconds a step, time left: in place on a terminal, now and then in a file."""

    def __init__(self, steps: int, stream=None, notices: Notices | None = None, eval_every: int | None = None):
        self.steps, self.stream, self.eval_every = steps, stream or sys.stderr, eval_every
        self.terminal = self.stream.isatty()
        self.notices = notices or Notices()
        self._step_s: deque[float] = deque(maxlen=RECENT)
        self._evaluation_s: list[float] = []

    def __enter__(self) -> Progress:
        self.last = time.perf_counter()
        return self

    def __exit__(self, *error) -> None:
        if self.terminal:
            self.stream.write("\n")

    def show(self, step: int, row: dict[str, Any]) -> None:
        self._step_s.append(row["seconds"])
        ahead = count_evaluations(step, self.steps, self.eval_every)
        left = format_duration(estimate_left(self._step_s, self.steps - step, self._evaluation_s, ahead))
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

    def evaluated(self, seconds: float) -> None:
        """Takes note of how long an evaluation took."""
        self._evaluation_s.append(seconds)

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


def estimate_left(
    step_s: Collection[float], steps: int, evaluation_s: Collection[float], evaluations: int
) -> float:  # fmt: skip
    """Seconds that so many more steps and evaluations take, by the median of those that were timed."""
    a_step = statistics.median(step_s) if step_s else 0.0
    an_evaluation = statistics.median(evaluation_s) if evaluation_s else 0.0
    return steps * a_step + evaluations * an_evaluation


def count_evaluations(step: int, steps: int, every: int | None) -> int:
    """Evaluations that are due at `step` or later: every so many steps, and behind the last step."""
    if not every:
        return 1
    return steps // every - (step - 1) // every + bool(steps % every)


def format_duration(seconds: float) -> str:
    """Hours, minutes, seconds: 01:02:03; 120:00:00 of five days."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60:02}:{minutes % 60:02}:{rest:02}"


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
