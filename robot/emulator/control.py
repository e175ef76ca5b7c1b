"""What may be asked of a running emulator, in JSON lines over a Unix socket or in words on a terminal.

A request is {"do": word, options}; the answer {"ok": result} or {"error": one line}. Only its user may open the socket.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from robot.emulator.kinds import KINDS
from robot.emulator.machine import Machine
from robot.so101_model import JOINTS
from vlrl.decoders import parse_json
from vlrl.types import UserError

LONGEST = 1 << 20  # bytes of a request
HELP = (
    "fault KIND [servo=NAME] [count=N] [probability=P] [seconds=S] ... | clear [KIND] | scene SEED | truth | stats | "
    "leader SECONDS JOINT=DEGREES ... | quit; kinds: " + ", ".join(KINDS)
)


class Control:
    """Carries out requests. `quitting` is set by `quit`."""

    def __init__(self, machine: Machine):
        self.machine, self.quitting = machine, threading.Event()
        self._does: dict[str, Callable[..., Any]] = {
            "about": machine.about,
            "fault": machine.fault,
            "clear": machine.clear,
            "scene": self._scene,
            "truth": machine.truth,
            "stats": machine.stats,
            "log": lambda since=0.0: machine.record.events(float(since)),
            "samples": lambda since=0.0: machine.record.samples(float(since)),
            "leader": self._leader,
            "calibration": machine.calibration,
            "quit": self.quitting.set,
        }

    def do(self, request: Any) -> Any:
        """Raises UserError for what cannot be done, with what can."""
        if not isinstance(request, Mapping) or not isinstance(request.get("do"), str):
            raise UserError('a request is {"do": word, options}')
        options = {str(key): value for key, value in request.items() if key != "do"}
        if request["do"] not in self._does:
            raise UserError(f"unknown request {request['do']!r}: must be one of {', '.join(self._does)}")
        try:
            return self._does[request["do"]](**options)
        except (TypeError, ValueError, OverflowError) as error:
            raise UserError(f"{request['do']}: {error}") from None

    def _scene(self, seed: int) -> dict[str, Any]:
        if not isinstance(seed, int) or seed < 0:
            raise UserError(f"scene: {seed!r}: must be a whole number of at least 0")
        return self.machine.scene(seed)

    def _leader(self, path: list[tuple[float, list[float]]]) -> None:
        for seconds, pose in path:
            if not 0 <= float(seconds) <= 3600 or len(pose) != len(JOINTS):
                raise UserError(f"leader: a path is of [seconds, [{len(JOINTS)} degrees]]")
        self.machine.lead([(float(seconds), [float(each) for each in pose]) for seconds, pose in path])

    def line(self, text: str) -> Any:
        """Carries out a line as a person types it, such as `fault late ms=80 count=1`."""
        word, *rest = text.split()
        plain = [each for each in rest if "=" not in each]
        named = {key: _value(value) for key, _, value in (each.partition("=") for each in rest if "=" in each)}
        if word == "leader" and len(plain) == 1:
            pose = self.machine.leader.pose() | named
            if len(pose) == len(JOINTS):
                return self.do({"do": "leader", "path": [[_value(plain[0]), list(pose.values())]]})
        first = {"fault": "kind", "clear": "kind", "scene": "seed"}.get(word)
        if word not in ("fault", "clear", "scene", "truth", "stats", "quit") or len(plain) > (first is not None):
            raise UserError(HELP)
        return self.do({"do": word, **({first: _value(plain[0])} if plain else {}), **named})


def _value(text: str) -> Any:
    """A number where it is one, else the text."""
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(text)
    return text


class Listener:
    """Answers requests at a Unix socket, each connection in a thread of its own. To be closed."""

    def __init__(self, control: Control, path: Path):
        self._control, self._socket = control, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.bind(str(path))
            path.chmod(0o600)
        except OSError as error:
            raise UserError(f"cannot listen at {path}: {error.strerror or error}") from None
        self._socket.listen()
        threading.Thread(target=self._accept, name="control", daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:  # closed
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rwb") as stream, contextlib.suppress(OSError):
            while line := stream.readline(LONGEST):
                stream.write(json.dumps(self._answer(line)).encode() + b"\n")
                stream.flush()

    def _answer(self, line: bytes) -> dict[str, Any]:
        try:
            return {"ok": self._control.do(parse_json(line))}
        except UserError as error:
            return {"error": str(error)}
        except ValueError as error:
            return {"error": f"not JSON: {error}"}

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
