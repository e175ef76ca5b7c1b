"""Whether two formulas are equal, asked of math-verify in a process of its own.

math-verify guards its time with signals, which threads cannot have, and sympy may compute for hours. The process works
in CPU seconds, not by the clock, so that a busy machine decides nothing; it may write no file and grow to MEMORY at
most. It is started when first asked, and anew after a formula that was too much for it.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib.util
import json
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any, NoReturn

from vlrl.system.children import end_child, start_child
from vlrl.types import UserError


def judge() -> Callable[[str, str], bool]:
    """A function of two LaTeX formulas, for `rewards.math.equal_formulas`; safe in threads, one process for all.

    Raises:
        UserError: math-verify is not installed.
    """
    if importlib.util.find_spec("math_verify") is None:
        raise UserError("answers that are formulas need math-verify: pip install 'vlrl[math]'")
    return _shared()


@cache
def _shared() -> EquivalenceJudge:
    return EquivalenceJudge()


class EquivalenceJudge:
    """Asks one worker, one question at a time; what was asked before is remembered."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._worker: subprocess.Popen[str] | None = None
        self._known = lru_cache(maxsize=10_000)(self._ask)
        atexit.register(self.close)

    def __call__(self, predicted: str, truth: str) -> bool:
        with self._lock:
            return self._known(predicted, truth)

    def _ask(self, predicted: str, truth: str) -> bool:
        """False where the worker gave up or died of it."""
        worker = self._worker or self._start()
        questions, answered = worker.stdin, worker.stdout
        assert questions and answered  # both are pipes
        try:
            questions.write(json.dumps([predicted, truth]) + "\n")
            questions.flush()
            reply = answered.readline()
        except OSError:
            reply = ""
        if not reply:
            self._stop()
        return reply == "true\n"

    def _start(self) -> subprocess.Popen[str]:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        self._worker = start_child([sys.executable, "-m", __name__], **pipes, text=True, encoding="utf-8")
        return self._worker

    def _stop(self) -> None:
        worker, self._worker = self._worker, None
        if worker:
            end_child(worker)
            worker.stdout.close()
            with contextlib.suppress(OSError):  # what it had not read
                worker.stdin.close()

    def close(self) -> None:
        """Ends the worker; the next question starts another."""
        with self._lock:
            self._stop()


# The worker: one JSON list [predicted, truth] a line in, `true` or `false` a line out.

SECONDS = 1  # of CPU for one question
MEMORY = 4 << 30  # bytes of address space


class _TooMuchError(BaseException):
    """Out of time. No Exception, which math-verify would take for an answer."""


def _give_up(*_: Any) -> NoReturn:
    raise _TooMuchError


def limit() -> None:
    """From here on: no file may be written, memory is bounded, and time runs while it computes."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGPROF, _give_up)


def equal(predicted: str, truth: str) -> bool:
    """Whether math-verify finds two LaTeX formulas equal within SECONDS; one that it cannot read is equal to none."""
    used = time.process_time()
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    resource.setrlimit(resource.RLIMIT_CPU, (int(used) + SECONDS + 3, hard))  # what no signal interrupts ends with it
    try:
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        return _verified(predicted, truth)
    except (_TooMuchError, Exception):
        return False
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def _verified(predicted: str, truth: str) -> bool:
    from math_verify import LatexExtractionConfig, parse, verify

    prediction, right = (
        parse(f"${text}$", [LatexExtractionConfig()], fallback_mode="no_fallback", parsing_timeout=None)
        for text in (predicted, truth)
    )
    return bool(prediction and right) and bool(verify(right[0], prediction[0], timeout_seconds=None))


def main() -> None:
    import math_verify  # noqa: F401  it reads files

    limit()
    for line in sys.stdin:
        print("true" if equal(*json.loads(line)) else "false", flush=True)


if __name__ == "__main__":
    main()
