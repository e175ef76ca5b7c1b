"""The operator's keys, in the terminal that the command runs in."""

from __future__ import annotations

import contextlib
import os
import queue
import select
import sys
import threading
from collections.abc import Sequence
from types import MappingProxyType
from typing import Any

KEYS = MappingProxyType({"s": "success", "f": "failure", "t": "take", "n": "next", "\r": "next", "\n": "next"})
NAMED = MappingProxyType({"space": " ", "esc": "\x1b", "enter": "\n", "tab": "\t"})
HELP = "keys: {stops} emergency stop, s success, f failure, t take over or give back, n next, Ctrl-C end"


class Keys:
    """Reads single keys while it is open; without a terminal there are none.

    Args:
        stops: keys that are an emergency stop, by character or as space, esc.
    """

    def __init__(self, stops: Sequence[str] = ("space",)):
        self._known = {**KEYS, **{NAMED.get(key, key): "stop" for key in stops}}
        self._orders: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._closed = threading.Event()
        self._before: Any = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Keys:
        if not sys.stdin or not sys.stdin.isatty():
            return self
        import termios
        import tty

        self._before = termios.tcgetattr(sys.stdin)
        tty.setcbreak(sys.stdin)
        self._thread = threading.Thread(target=self._read, name="keys", daemon=True)
        self._thread.start()
        stops = ", ".join(repr(key) for key, order in self._known.items() if order == "stop")
        print(HELP.format(stops=stops), file=sys.stderr)
        return self

    def __exit__(self, *error: object) -> None:
        self._closed.set()
        if self._thread is None:
            return
        import termios

        self._thread.join(1.0)
        with contextlib.suppress(termios.error):
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, self._before)

    @property
    def open(self) -> bool:
        """Whether there is a keyboard."""
        return self._thread is not None

    def orders(self) -> list[str]:
        """What was asked for since the last call, of `robot.deploy.view.ORDERS`."""
        found = []
        while not self._orders.empty():
            found.append(self._orders.get())
        return found

    def _read(self) -> None:
        while not self._closed.is_set():
            if select.select([sys.stdin], [], [], 0.1)[0]:
                pressed = os.read(sys.stdin.fileno(), 64).decode(errors="ignore")
                for key in pressed:
                    if key.lower() in self._known:
                        self._orders.put(self._known[key.lower()])
                if not pressed:
                    return
