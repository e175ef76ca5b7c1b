"""Who makes the scene of an episode and says whether the job is done."""

from __future__ import annotations

import contextlib
import json
import socket
from typing import Protocol

from robot.motion.body import Ticked
from robot.robot import RobotError, Signals
from vlrl.strict import Component, suggest
from vlrl.types import UserError

PATIENCE = 2.0  # seconds for an answer of the emulator
EVERY = 3  # ticks between two questions to the emulator


class Scene(Protocol):
    """`ready`: a person must say that an episode may begin."""

    ready: bool

    def begin(self, seed: int) -> None:
        """Makes the scene of this seed, where it is not the motion process that does."""

    def verdict(self, ticked: Ticked) -> Signals:
        """How the job stands at this tick."""

    def order(self, text: str) -> None:
        """What the operator pressed: success or failure."""

    def close(self) -> None: ...


class Operator:
    """A person arranges the scene and says how it went."""

    ready = True

    def __init__(self):
        self._said = ""

    def begin(self, seed: int) -> None:
        self._said = ""

    def verdict(self, ticked: Ticked) -> Signals:
        if self._said == "failure":
            return Signals(failure="the operator says so")
        return Signals(success=self._said == "success", reward=float(self._said == "success"))

    def order(self, text: str) -> None:
        self._said = text

    def close(self) -> None:
        pass


class BodyScene(Operator):
    """A simulated body knows how its job stands; a person may still decide."""

    ready = False

    def verdict(self, ticked: Ticked) -> Signals:
        own = ticked.sensed.signals
        return own if own.success or own.failure or own.cut else super().verdict(ticked)


class EmulatorScene(Operator):
    """The emulator's own truth, by its control socket. Raises RobotError where the emulator is gone."""

    ready = False

    def __init__(self, path: str):
        super().__init__()
        self._emulator = _Emulator(path)
        self._next, self._last = 0, Signals()

    def begin(self, seed: int) -> None:
        super().begin(seed)
        self._next, self._last = 0, Signals()
        self._emulator.ask("scene", seed=seed)

    def verdict(self, ticked: Ticked) -> Signals:
        if ticked.tick >= self._next:
            self._next = ticked.tick + EVERY
            success = bool(self._emulator.ask("truth")["success"])
            self._last = Signals(success=success, reward=float(success))
        return self._last if self._last.success else super().verdict(ticked)

    def close(self) -> None:
        self._emulator.close()


def make(section: Component) -> Scene:
    """The scene that a config names.

    Raises:
        UserError: an unknown name or option, or the emulator is not there.
    """
    known = {"operator": (Operator, ()), "body": (BodyScene, ()), "emulator": (EmulatorScene, ("socket",))}
    made, wanted = known[section.name]
    for name in section.options:
        if name not in wanted:
            raise UserError(f"scene.{name}: unknown key{suggest(name, wanted)}")
    if missing := [name for name in wanted if name not in section.options]:
        raise UserError(f"scene.{missing[0]}: is required with name: {section.name}")
    return made(*section.options.values())


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
