"""A limit on how long a piece of Python may take."""

from __future__ import annotations

import contextlib
import ctypes
import signal
import threading
from collections.abc import Callable, Iterator

AGAIN = 0.2  # seconds until code that caught the error is interrupted anew


class OverdueError(BaseException):
    """Time is up. No Exception: what is interrupted should not take it for a fault of its own and go on."""


@contextlib.contextmanager
def deadline(seconds: float | None) -> Iterator[None]:
    """Raises OverdueError inside when the time is up; None: no limit, and no cost.

    In the main thread by a signal, which also ends what sleeps, reads from a socket, waits for a process or searches by
    a regular expression. In another thread between two lines of Python only: what blocks there is interrupted once it
    comes back. The clock is the system's monotonic one.
    """
    if seconds is None:
        yield
    elif threading.current_thread() is threading.main_thread():
        with _by_signal(seconds):
            yield
    else:
        with _by_watch(seconds):
            yield


@contextlib.contextmanager
def _by_signal(seconds: float) -> Iterator[None]:
    def end(number: int, frame: object) -> None:
        raise OverdueError

    before = signal.signal(signal.SIGALRM, end)
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds, AGAIN)
        yield
    finally:
        _surely(lambda: (signal.setitimer(signal.ITIMER_REAL, 0), signal.signal(signal.SIGALRM, before)))


@contextlib.contextmanager
def _by_watch(seconds: float) -> Iterator[None]:
    own, over = ctypes.c_ulong(threading.get_ident()), threading.Event()
    order = threading.Lock()  # nothing is raised once the block has ended

    def watch() -> None:
        wait = seconds
        while not over.wait(wait):
            with order:
                if not over.is_set():
                    ctypes.pythonapi.PyThreadState_SetAsyncExc(own, ctypes.py_object(OverdueError))
            wait = AGAIN

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:

        def ended() -> None:
            with order:
                over.set()

        _surely(ended)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(own, None)  # what was raised and has not arrived
        watcher.join()


def _surely(end: Callable[[], object]) -> None:
    """Ends the watching, however often it strikes meanwhile."""
    while True:
        try:
            end()
            return
        except OverdueError:
            pass
