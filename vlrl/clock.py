"""How long a run has taken, over all its resumptions."""

from __future__ import annotations

import time
from typing import Any


class Clock:
    """Seconds of a run: `spent` before, and what has passed since it was entered. cpu_s: simulators' too.

    Args:
        played: tells the processor seconds of simulators, if it has `cpu_s()`: a task.
    """

    def __init__(self, played: Any):
        self.spent = {"wall_s": 0.0, "cpu_s": 0.0}
        self._played = played
        self._since: tuple[float, float] | None = None

    def __enter__(self) -> Clock:
        self._since = (time.monotonic(), self.cpu_s())
        return self

    def __exit__(self, *error: object) -> None:
        self.spent, self._since = self.now(), None

    def now(self) -> dict[str, float]:
        """All seconds so far."""
        wall, cpu = self._since or (time.monotonic(), self.cpu_s())
        passed = {"wall_s": time.monotonic() - wall, "cpu_s": self.cpu_s() - cpu}
        return {name: self.spent[name] + passed[name] for name in passed}

    def cpu_s(self) -> float:
        """Processor seconds of this process, and of simulators."""
        return time.process_time() + (self._played.cpu_s() if hasattr(self._played, "cpu_s") else 0.0)
