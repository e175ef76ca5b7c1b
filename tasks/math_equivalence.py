"""Whether two formulas are equal, asked of math-verify in a process of its own.

math-verify guards its time with signals, which threads cannot have, and sympy may compute for hours. The process works
in CPU seconds, not by the clock, so that a busy machine decides nothing; it may write no file and grow to MEMORY at
most. It is started when first asked, and anew after a formula that was too much for it.
"""

from __future__ import annotations

import importlib.util
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from functools import cache, lru_cache
from typing import Any, NoReturn

from vlrl.placement.workers import Arrays, Packed, WorkerError, WorkerPool, WorkerService
from vlrl.types import UserError

TRIES = 3  # workers that may be lost over one question
PATIENCE = 600.0  # seconds of the clock: what ends a question is CPU time


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
        self.pool = WorkerPool(f"{__name__}:EquivalenceService", {}, kind="reward", size=1, patience=PATIENCE)
        self._known = lru_cache(maxsize=10_000)(self._ask)

    def __call__(self, predicted: str, truth: str) -> bool:
        with self._lock:
            return self._known(predicted, truth)

    def _ask(self, predicted: str, truth: str) -> bool:
        """False where TRIES workers died of it: one may have been killed, or its node."""
        try:
            return self.pool.call("equal", {"predicted": predicted, "truth": truth}, lost=TRIES)[0]["equal"]
        except WorkerError:
            return False

    def close(self) -> None:
        """Ends the worker; the next question starts another."""
        with self._lock:
            self.pool.end_idle()


# The worker's side.

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


class EquivalenceService(WorkerService):
    """Compares formulas, within limits."""

    def answers(self) -> Mapping[str, Callable[[Mapping[str, Any], Arrays], Packed]]:
        return {"make": self.make, "equal": self.equal}

    def make(self, fields: Mapping[str, Any], arrays: Arrays) -> Packed:
        import math_verify  # noqa: F401  it reads files

        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())  # what it says of a formula is no news
        limit()
        return {}, {}

    def equal(self, fields: Mapping[str, Any], arrays: Arrays) -> Packed:
        return {"equal": equal(fields["predicted"], fields["truth"])}, {}
