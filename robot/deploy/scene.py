"""Who makes the scene of an episode and says whether the job is done."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from robot.deploy.config import Served
from robot.serving.client import Client
from robot.types import RobotError, RobotStatus, TickRecord
from vlrl.serving.protocol import Feature, Picture, PolicyRequest, Wants, difference
from vlrl.system.clock import boottime
from vlrl.types import UserError


class DeployScene(Protocol):
    """`ready`: a person must say that an episode may begin. `knows`: it says itself whether the job is done."""

    ready: bool
    knows: bool

    def begin(self, seed: int) -> None:
        """Makes the scene of this seed, where it is not the motion process that does."""

    def verdict(self, ticked: TickRecord, images: Mapping[str, np.ndarray]) -> RobotStatus:
        """How the job stands at this tick. images: uint8 [height, width, 3], the newest of each camera.

        Raises:
            RobotError: nobody can say so any more.
        """

    def order(self, text: str) -> None:
        """What the operator pressed: success or failure."""

    def close(self) -> None: ...


class Operator:
    """A person arranges the scene and says how it went."""

    ready, knows = True, False

    def __init__(self):
        self._order = ""

    def begin(self, seed: int) -> None:
        self._order = ""

    def verdict(self, ticked: TickRecord, images: Mapping[str, np.ndarray]) -> RobotStatus:
        if self._order == "failure":
            return RobotStatus(failure="the operator says so")
        return RobotStatus(success=self._order == "success", reward=float(self._order == "success"))

    def order(self, text: str) -> None:
        self._order = text

    def close(self) -> None:
        pass


class BodyScene(Operator):
    """A simulated body knows how its job stands; a person may still decide."""

    ready, knows = False, True

    def verdict(self, ticked: TickRecord, images: Mapping[str, np.ndarray]) -> RobotStatus:
        own = ticked.sensed.signals
        return own if own.success or own.failure or own.cut else super().verdict(ticked, images)


# Connections to servers that the config names: the policy's, the one that resets, the classifier's.


def connected(
    key: str, url: str, token_file: str | None, ca: str | None, wants: Wants | None = None, patience: float = 10.0
) -> Client:
    """A client of a server, which has answered.

    Args:
        key: the section of the config, for the errors.
        token_file: what `vlrl serve --new-token` wrote.
        ca: a certificate (PEM) that wss:// is checked against.
        patience: seconds until it is given up.

    Raises:
        UserError: it cannot be reached, or does not fit `wants`.
    """
    return Client(url, token=_token(key, token_file), ca=Path(ca) if ca else None, wants=wants, patience=patience)


def _token(key: str, file: str | None) -> str | None:
    if file is None:
        return None
    try:
        return Path(file).read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"{key}.token_file: {file}: {(isinstance(error, OSError) and error.strerror) or error}"
        ) from None


# The emulator's own truth as the scene.

PATIENCE = 2.0  # seconds for an answer of the emulator
EVERY = 3  # ticks between two questions to the emulator


class EmulatorScene(Operator):
    """The emulator's own truth, by its control socket. Raises RobotError where the emulator is gone."""

    ready, knows = False, True

    def __init__(self, path: str):
        super().__init__()
        self._emulator = _Emulator(path)
        self._next, self._last = 0, RobotStatus()

    def begin(self, seed: int) -> None:
        super().begin(seed)
        self._next, self._last = 0, RobotStatus()
        self._emulator.ask("scene", seed=seed)

    def verdict(self, ticked: TickRecord, images: Mapping[str, np.ndarray]) -> RobotStatus:
        if ticked.tick >= self._next:
            self._next = ticked.tick + EVERY
            success = bool(self._emulator.ask("truth")["success"])
            self._last = RobotStatus(success=success, reward=float(success))
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
            reply = json.loads(self._stream.readline() or b'{"error": "it is gone"}')
        except (OSError, ValueError) as error:
            reply = {"error": str(error)}
        if "error" in reply:
            raise RobotError(f"the emulator: {reply['error']}")
        return reply["ok"]

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._stream.close()


# A success classifier behind a server as the scene: it is shown what the robot sees, and says when it is done.

LOST_S = 3.0  # seconds without a word, after which nobody can say how the job stands


class ServedScene(Operator):
    """A person arranges it; the classifier says when it is done, a person still may.

    It gets pictures and numbers of the state by name, those that it wants.

    Args:
        names: of the robot's state.
        sizes: camera -> height, width of its pictures.
        task: the instruction.

    Raises:
        UserError: it cannot be reached, is no classifier, or wants what the robot does not see.
    """

    ready, knows = True, True

    def __init__(self, config: Served, names: Sequence[str], sizes: Mapping[str, Sequence[int]], task: str):
        super().__init__()
        self._config, self._task, self._episode, self._sure = config, task, 0, 0
        self._open: float | None = None  # boottime() of the question that is not answered yet
        self._last_heard_s = self._asked = boottime()
        self._client = connected("scene", config.url, config.token_file, config.ca)
        try:
            self._pictures, self._state = _find_inputs(self._client, names, sizes)
        except UserError:
            self._client.close()
            raise

    def begin(self, seed: int) -> None:
        super().begin(seed)
        self._episode, self._sure, self._open = self._episode + 1, 0, None
        self._last_heard_s = boottime()
        self._client.reset(self._episode)

    def verdict(self, ticked: TickRecord, images: Mapping[str, np.ndarray]) -> RobotStatus:
        now = boottime()
        for answer in self._client.answers():
            self._open, self._last_heard_s = None, now
            self._sure = self._sure + 1 if float(answer.actions[0, 0]) >= self._config.threshold else 0
        if now - self._last_heard_s > LOST_S:
            why = self._client.lost or self._client.failure
            raise RobotError(f"scene.url: the success classifier is silent: {why or 'no answer'}")
        if self._sure >= self._config.after:
            return RobotStatus(success=True, reward=1.0)
        self._ask(ticked, images, now)
        return super().verdict(ticked, images)

    def _ask(self, ticked: TickRecord, images: Mapping[str, np.ndarray], now: float) -> None:
        waits = self._open is not None and now - self._open < LOST_S / 3
        if waits or self._client.lost or now - self._asked < 1 / self._config.hz:
            return
        if not all(name in images for name in self._pictures):
            return
        pictures = {name: images[name] for name in self._pictures}
        self._client.ask(PolicyRequest("", self._episode, self._task, ticked.sensed.state[self._state], pictures))
        self._open = self._asked = now

    def close(self) -> None:
        self._client.close()


def _find_inputs(
    client: Client, names: Sequence[str], sizes: Mapping[str, Sequence[int]]
) -> tuple[list[str], list[int]]:
    """Names of the pictures that it wants, places of the numbers of the state."""
    spec = client.spec
    for key, known, inputs in (("camera", sizes, spec.pictures), ("number of the state", names, spec.state)):
        for each in inputs:
            if each.name not in known:
                there = ", ".join(known) or "none"
                raise UserError(f"scene.url: {client.model} wants the {key} {each.name!r}; there are {there}")
    pictures = [Picture(each.name, *(int(side) for side in sizes[each.name][:2])) for each in spec.pictures]
    wants = Wants(spec.state, tuple(pictures), (Feature(),))
    if problem := difference(wants, spec):
        raise UserError(f"scene.url: {client.model}: {problem}: a success classifier gives one number")
    return [each.name for each in pictures], [list(names).index(each.name) for each in spec.state]
