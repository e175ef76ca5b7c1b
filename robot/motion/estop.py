"""Emergency stops: who may stop the robot for good.

A source answers `pressed() -> str`: why it stops, or ''. It stays pressed. None waits.
"""

from __future__ import annotations

import signal
import socket
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Protocol

from robot.motion.limits import EStop
from vlrl.types import UserError

if TYPE_CHECKING:
    from robot.motion.keys import Keys


class Source(Protocol):
    def pressed(self) -> str: ...
    def close(self) -> None:
        """Gives back what it took. May be called twice."""


class FileStop:
    """A file that appears. One that is there at the start stops at once."""

    def __init__(self, path: str):
        self._path, self._cause = Path(path), ""

    def pressed(self) -> str:
        if not self._cause and self._path.exists():
            self._cause = f"the file {self._path} is there"
        return self._cause

    def close(self) -> None:
        pass


class SignalStop:
    """A signal to this process; to be made in its main thread.

    Raises:
        UserError: no such signal, or one that cannot be caught.
    """

    def __init__(self, name: str):
        try:
            self._number = signal.Signals[name]
            self._before = signal.signal(self._number, self._come)
        except (KeyError, OSError, ValueError):
            raise UserError(f"safety.estop.signals: {name!r} cannot be waited for; for example SIGUSR1") from None
        self._name, self._cause = name, ""

    def _come(self, number: int, frame: FrameType | None) -> None:
        self._cause = f"signal {self._name}"

    def pressed(self) -> str:
        return self._cause

    def close(self) -> None:
        if self._before is not None:
            signal.signal(self._number, self._before)
            self._before = None


class KeyStop:
    """One of some keys of the terminal."""

    def __init__(self, keys: Keys, names: Sequence[str]):
        self._keys, self._names, self._cause = keys, tuple(names), ""

    def pressed(self) -> str:
        if not self._cause:
            self._cause = next((f"key {name}" for name in self._names if self._keys.typed(name)), "")
        return self._cause

    def close(self) -> None:
        self._keys.close()


class Datagrams:
    """A UDP port where any message counts, whatever it says.

    Raises:
        UserError: no host:port, or the port is taken.
    """

    def __init__(self, address: str, key: str):
        host, _, port = address.rpartition(":")
        self._socket = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        try:
            self._socket.bind((host.strip("[]"), int(port)))
        except (OSError, ValueError, OverflowError) as error:
            self._socket.close()
            raise UserError(f"{key}: cannot listen at {address!r}, host:port is needed: {error}") from None
        self.address = self._socket.getsockname()[:2]  # host, port: the one that was free where 0 was asked for

    def come(self) -> str:
        """Who sent the newest message since the last call, or ''."""
        sender = ""
        for _ in range(1000):  # a flood must not keep the loop from the robot
            try:
                sender = self._socket.recvfrom(1)[1][0]
            except OSError:  # no more, or closed
                break
        return sender

    def close(self) -> None:
        self._socket.close()


class SocketStop:
    """Any datagram at host:port, for example `echo | nc -u -w0 HOST PORT`."""

    def __init__(self, address: str):
        self._datagrams, self._cause = Datagrams(address, "safety.estop.socket"), ""
        self.address = self._datagrams.address

    def pressed(self) -> str:
        if not self._cause and (sender := self._datagrams.come()):
            self._cause = f"a message of {sender}"
        return self._cause

    def close(self) -> None:
        self._datagrams.close()


class Stops:
    """All sources of a config as one; to be closed.

    Args:
        keys: of the terminal, shared with whoever else reads it; None: no terminal.

    Raises:
        UserError: a source that cannot be had.
    """

    def __init__(self, config: EStop, keys: Keys | None = None):
        self.sources: list[Source] = []
        try:
            self.sources += [SignalStop(name) for name in config.signals]
            self.sources += [FileStop(config.file)] if config.file else []
            self.sources += [KeyStop(keys, config.keys)] if keys is not None and config.keys else []
            self.sources += [SocketStop(config.socket)] if config.socket else []
            if config.gamepad is not None:
                from robot.motion.gamepad import Gamepad, PadStop

                self.sources.append(PadStop(Gamepad(), config.gamepad))
        except UserError:
            self.close()
            raise

    def pressed(self) -> str:
        return next(filter(None, (source.pressed() for source in self.sources)), "")

    def close(self) -> None:
        for source in self.sources:
            source.close()
