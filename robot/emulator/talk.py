"""The other end of an emulator's control socket."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Mapping
from typing import Any

from vlrl.types import UserError

PATIENCE = 10.0  # seconds for an answer


class Talk:
    """Asks at a control socket (`robot.emulator.control`), connected when first needed. To be closed."""

    def __init__(self, path: str):
        self._path, self._stream = path, None

    def ask(self, request: Mapping[str, Any]) -> Any:
        """The result of a request.

        Raises:
            UserError: it cannot be done, or nobody answers.
        """
        try:
            line = self._exchange(json.dumps(request).encode() + b"\n")
        except OSError as error:
            self.close()
            raise UserError(f"emulator: gone ({self._path}: {error.strerror or error})") from None
        if not line:
            raise UserError(f"emulator: gone ({self._path} was closed)")
        said = json.loads(line)
        if "error" in said:
            raise UserError(said["error"])
        return said["ok"]

    def _exchange(self, line: bytes) -> bytes:
        if self._stream is None:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as plug:
                plug.settimeout(PATIENCE)
                plug.connect(self._path)
                self._stream = plug.makefile("rwb")
        self._stream.write(line)
        self._stream.flush()
        return self._stream.readline()

    def close(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.close()
