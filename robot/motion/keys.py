"""Keys of the terminal, without waiting for Enter and without showing them."""

from __future__ import annotations

import atexit
import os
import re
import select
import sys
import termios
import tty
from collections import Counter

from vlrl.types import UserError

NAMED = {" ": "space", "\x1b": "esc", "\r": "enter", "\n": "enter", "\t": "tab", "\x7f": "backspace"}
_SEQUENCE = re.compile(rb"\x1b[\[O][0-9;]*[A-Za-z~]")  # what arrows and function keys send
_KEPT = 1000  # of one key that nobody asks for


class Keys:
    """What was typed, for everybody who asks: each key is counted until `typed` takes it. Ctrl-C works as ever.

    Raises:
        UserError: the file is no terminal.
    """

    def __init__(self, fd: int | None = None):
        self._fd = sys.stdin.fileno() if fd is None else fd
        try:
            self._before = termios.tcgetattr(self._fd)
        except termios.error:
            raise UserError("safety.estop.keys: standard input is no terminal; set keys: [], or use a file") from None
        self._typed: Counter[str] = Counter()
        self._open = True
        atexit.register(self.close)  # a shell without echo is what a crash would leave
        tty.setcbreak(self._fd, termios.TCSANOW)

    def typed(self, name: str) -> int:
        """How often a key was typed since it was last asked for: a character, or a name of NAMED."""
        self._read()
        return self._typed.pop(name, 0)

    def _read(self) -> None:
        while self._open and select.select([self._fd], [], [], 0)[0]:
            try:
                data = os.read(self._fd, 1024)
            except OSError:  # the terminal is gone
                data = b""
            if not data:
                break
            for name in _names(data):
                self._typed[name] = min(self._typed[name] + 1, _KEPT)

    def close(self) -> None:
        """The terminal is again as it was."""
        if self._open:
            self._open = False
            atexit.unregister(self.close)
            try:
                termios.tcsetattr(self._fd, termios.TCSANOW, self._before)
            except termios.error:  # the terminal is gone
                return


def _names(data: bytes) -> list[str]:
    """The keys of what a terminal sent; arrows and the like, which begin as Esc does, are left out."""
    text = _SEQUENCE.sub(b"", data).decode(errors="ignore")
    return [NAMED.get(character, character) for character in text]
