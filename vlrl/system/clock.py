"""The clock that ages go by: of observations, chunks, pictures and messages."""

from __future__ import annotations

import sys
import time

if sys.platform == "linux":

    def boottime() -> float:
        """Seconds of a clock that nobody sets and that goes on while the machine sleeps (CLOCK_BOOTTIME).

        `time.monotonic()` stands still meanwhile: what was observed before looks fresh after.
        """
        return time.clock_gettime(time.CLOCK_BOOTTIME)

elif sys.platform == "darwin":

    def boottime() -> float:
        """As on Linux; there CLOCK_MONOTONIC goes on while the machine sleeps, unlike `time.monotonic()`."""
        return time.clock_gettime(time.CLOCK_MONOTONIC)

else:

    def boottime() -> float:
        """`time.monotonic()`: whether it goes on while the machine sleeps is the platform's business."""
        return time.monotonic()
