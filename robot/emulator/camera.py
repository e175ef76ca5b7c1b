"""Cameras that publish pictures of the simulated arm over ZeroMQ, as lerobot's `ZMQCamera` reads them.

A message is JSON {"timestamps": {name: seconds}, "images": {name: JPEG in base64}}. Every camera has a port of its own:
lerobot takes the first picture of a message where its own is missing.

They run in a process of their own: rendering must not keep the servos waiting. What it needs comes through memory that
is shared (where the joints and the disc are) and a pipe (faults).
"""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Mapping

import numpy as np

from robot import so101_model as model
from robot.emulator.eye import serve
from vlrl.types import UserError

PATIENCE = 30.0  # seconds until the first picture


class Cameras:
    """The handle of the cameras' process. To be closed.

    Args:
        sizes: name (`front`, `top`) -> width, height in pixels.
        hz: pictures a second of each camera, at most.
        ports: name -> TCP port on 127.0.0.1; one that is missing is chosen.

    Raises:
        UserError: no such camera or size, a port that is taken, no way to render.
    """

    def __init__(self, sizes: Mapping[str, tuple[int, int]], hz: float, ports: Mapping[str, int]):
        for name, size in sizes.items():
            if name not in model.CAMERAS:
                raise UserError(f"camera {name!r}: must be one of {', '.join(model.CAMERAS)}")
            if not all(16 <= side <= 1920 for side in size):
                raise UserError(f"camera {name}: {size[0]}x{size[1]}: must be 16 to 1920 pixels each way")
        context = multiprocessing.get_context("spawn")
        self._lock = threading.Lock()  # of the pipe
        self._shared = context.RawArray("d", 6 + 3)
        self._pipe, theirs = context.Pipe()
        options = ({name: tuple(size) for name, size in sizes.items()}, hz, dict(ports))
        self._process = context.Process(target=serve, args=(self._shared, theirs, *options), daemon=True)
        self._process.start()
        theirs.close()
        self.ports: dict[str, int] = self._first()

    def _first(self) -> dict[str, int]:
        try:
            said = self._pipe.recv() if self._pipe.poll(PATIENCE) else "no picture in time"
        except EOFError:
            said = "their process died"
        if isinstance(said, str):
            self.close()
            raise UserError(f"cameras: {said}")
        return said

    def show(self, qpos: np.ndarray, disc: np.ndarray) -> None:
        """What is to be seen from now on: joint angles [6] in radians, the disc's place [3] in metres."""
        self._shared[:] = [*qpos, *disc]

    def trouble(self, faults: Mapping[str, list[str]]) -> None:
        """For each of `freeze`, `black` and `stop` the cameras that suffer it; the rest are well."""
        with self._lock:
            self._pipe.send(dict(faults))

    def rates(self) -> dict[str, float]:
        """Pictures a second of each camera since it was last asked."""
        with self._lock:
            self._pipe.send(None)
            return self._pipe.recv() if self._pipe.poll(5.0) else {}

    def close(self) -> None:
        self._pipe.close()
        self._process.join(5.0)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
