"""What happened, when: writes to the servos, faults, and where the joints truly were. Bounded, for several threads."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Any

EVENTS, SAMPLES = 50_000, 6_000  # kept: half an hour of goals at 30 Hz, a minute of samples at 100 Hz
EVERY = 0.01  # seconds between samples


class Record:
    """Events are dicts with `t` (time.monotonic(), the same clock in every process of this machine) and `what`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._events: deque[dict[str, Any]] = deque(maxlen=EVENTS)
        self._samples: deque[tuple[float, tuple[float, ...]]] = deque(maxlen=SAMPLES)

    def event(self, what: str, t: float | None = None, **said: Any) -> None:
        with self._lock:
            self._events.append({"t": time.monotonic() if t is None else t, "what": what, **said})

    def sample(self, t: float, pose: tuple[float, ...]) -> None:
        """Where the follower's joints are, degrees and percent [6]; kept at most every EVERY seconds."""
        with self._lock:
            if not self._samples or t - self._samples[-1][0] >= EVERY * 0.9:
                self._samples.append((t, pose))

    def events(self, since: float) -> list[dict[str, Any]]:
        """Those after a time, in order."""
        with self._lock:
            return [each for each in self._events if each["t"] > since]

    def samples(self, since: float) -> list[tuple[float, tuple[float, ...]]]:
        with self._lock:
            return [each for each in self._samples if each[0] > since]
