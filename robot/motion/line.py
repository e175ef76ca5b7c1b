"""Whole messages over a socket between two processes, by calls that never wait: a stopped reader delays no tick."""

from __future__ import annotations

import socket
from collections import deque

PENDING = 1 << 22  # bytes that may wait to be sent; beyond, new messages are lost and counted


class Line:
    """One end. Used by one thread for sending and one for receiving.

    Messages go with their length before them: 4 bytes, little endian.
    """

    def __init__(self, end: socket.socket):
        end.setblocking(False)
        self._socket, self._out, self._in = end, deque[memoryview](), bytearray()
        self._waiting = 0
        self.lost = 0

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def pending(self) -> bool:
        """Whether something still waits to be sent by `flush`."""
        return bool(self._out)

    def send(self, message: bytes) -> None:
        """Sends what the socket takes now; the rest with the next calls.

        Raises:
            EOFError: the other side is gone.
        """
        if self._waiting + len(message) > PENDING:
            self.lost += 1
        else:
            self._out.append(memoryview(len(message).to_bytes(4, "little") + message))
            self._waiting += len(message) + 4
        self.flush()

    def flush(self) -> None:
        """Raises EOFError: the other side is gone."""
        while self._out:
            try:
                sent = self._socket.send(self._out[0])
            except BlockingIOError:
                return
            except OSError:
                raise EOFError from None
            self._waiting -= sent
            if sent < len(self._out[0]):
                self._out[0] = self._out[0][sent:]
            else:
                self._out.popleft()

    def receive(self) -> list[bytes]:
        """What has come in whole.

        Raises:
            EOFError: the other side is gone, and all that it had sent has been read.
        """
        gone = False
        while not gone:
            try:
                data = self._socket.recv(1 << 16)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            self._in += data
            gone = not data
        messages = []
        while len(self._in) >= 4 and len(self._in) >= (end := 4 + int.from_bytes(self._in[:4], "little")):
            messages.append(bytes(self._in[4:end]))
            del self._in[:end]
        if gone and not messages:
            raise EOFError
        return messages

    def close(self) -> None:
        self._socket.close()
