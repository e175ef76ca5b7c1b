"""The emulator's own truth as the scene."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Mapping

import numpy as np

from robot.deploy.scene import Operator
from robot.motion.body import Ticked
from robot.robot import RobotError, Signals
from vlrl.types import UserError

PATIENCE = 2.0  # seconds for an answer of the emulator
EVERY = 3  # ticks between two questions to the emulator


class EmulatorScene(Operator):
    """The emulator's own truth, by its control socket. Raises RobotError where the emulator is gone."""

    ready, knows = False, True

    def __init__(self, path: str):
        super().__init__()
        self._emulator = _Emulator(path)
        self._next, self._last = 0, Signals()

    def begin(self, seed: int) -> None:
        super().begin(seed)
        self._next, self._last = 0, Signals()
        self._emulator.ask("scene", seed=seed)

    def verdict(self, ticked: Ticked, images: Mapping[str, np.ndarray]) -> Signals:
        if ticked.tick >= self._next:
            self._next = ticked.tick + EVERY
            success = bool(self._emulator.ask("truth")["success"])
            self._last = Signals(success=success, reward=float(success))
        return self._last if self._last.success else super().verdict(ticked, images)

    def close(self) -> None:
        self._emulator.close()


class _Emulator:
    """Requests to an emulator's control socket (`robot.emulator.control`).

    Raises:
        UserError: there is none.
    """

    def __init__(self, path: str):
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as plug:
                plug.settimeout(PATIENCE)
                plug.connect(path)
                self._stream = plug.makefile("rwb")
        except OSError as error:
            raise UserError(
                f"scene.socket: {path}: {error.strerror or error}: start `vlrl emulate so101` and copy what it prints"
            ) from None

    def ask(self, do: str, **options: object) -> dict:
        """Raises RobotError: it is gone, or refuses."""
        try:
            self._stream.write(json.dumps({"do": do, **options}).encode() + b"\n")
            self._stream.flush()
            said = json.loads(self._stream.readline() or b'{"error": "it is gone"}')
        except (OSError, ValueError) as error:
            said = {"error": str(error)}
        if "error" in said:
            raise RobotError(f"the emulator: {said['error']}")
        return said["ok"]

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._stream.close()
