"""Imported by every Python that has this folder on its path: its wall clock jumps an hour ahead and back."""

import time

_true = time.time


def jumping():
    """The true time, an hour late or early by turns of 0.2 s."""
    return _true() + (3600.0 if int(time.monotonic() * 5) % 2 else -3600.0)


time.time = jumping
