"""The process' own generators, numpy's and Python's, as an environment that draws from them sees them."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

_LOCK = threading.RLock()


class Generators:
    """Streams of an environment's own, lent to it while it runs: what it draws hangs on its seed alone.

    Some environments draw their scenes from the process' generators, whatever seed they are given. One environment of
    a process runs at a time.
    """

    def __init__(self):
        self.seed(0)

    def seed(self, seed: int) -> None:
        self._numpy, self._python = np.random.RandomState(seed % 2**32).get_state(), random.Random(seed).getstate()

    @contextmanager
    def lent(self) -> Iterator[None]:
        """Within, the process' generators go on where this environment left them; afterwards they are as before."""
        with _LOCK:
            before = np.random.get_state(), random.getstate()
            np.random.set_state(self._numpy)
            random.setstate(self._python)
            try:
                yield
            finally:
                self._numpy, self._python = np.random.get_state(), random.getstate()
                np.random.set_state(before[0])
                random.setstate(before[1])
