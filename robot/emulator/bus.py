"""A serial port that is none: a pseudo-terminal with the servos of an arm at its other end. One thread."""

from __future__ import annotations

import contextlib
import os
import pty
import select
import termios
import threading
import time
import tty
from pathlib import Path

from robot.emulator import packets
from robot.emulator.chain import Chain
from robot.emulator.garble import garble

BAUDS = {0: termios.B1000000, 1: termios.B500000, 4: termios.B115200, 5: termios.B57600, 6: termios.B38400,
         7: termios.B19200}  # fmt: skip
PATIENCE = 0.02  # seconds after which half a packet is forgotten
LOOK = 0.02  # seconds between looks at whether the port is to be there


class Bus:
    """Serves a chain at a link that leads to the terminal while it is plugged in. To be started and closed.

    What nobody reads is lost, as on a wire.
    """

    def __init__(self, chain: Chain, link: Path):
        self.chain, self.link = chain, link
        self._ends: tuple[int, int] | None = None  # ours, theirs
        self._closing, self._rest, self._heard = threading.Event(), b"", 0.0
        self._thread = threading.Thread(target=self._serve, name=f"bus {chain.arm}", daemon=True)

    def start(self) -> None:
        self._plug()
        self._thread.start()

    def close(self) -> None:
        self._closing.set()
        self._thread.join()
        self._unplug()

    def _serve(self) -> None:
        while not self._closing.is_set():
            unplugged = self.chain.faults.standing("unplug", None, self.chain.arm) is not None
            if unplugged == (self._ends is not None):
                (self._unplug if unplugged else self._plug)()
                self.chain.record.event("unplugged" if unplugged else "plugged", arm=self.chain.arm)
            if self._ends is None:
                self._closing.wait(LOOK)
            elif select.select([self._ends[0]], [], [], LOOK)[0]:
                self._hear(os.read(self._ends[0], 4096), time.monotonic())

    def _hear(self, data: bytes, now: float) -> None:
        if termios.tcgetattr(self._ends[1])[5] not in self._bauds():
            return
        rest = self._rest if now - self._heard < PATIENCE else b""
        found, self._rest = packets.split(rest + data)
        self._heard = now
        for packet in found:
            self._say(self.chain.answers(packet, now))

    def _bauds(self) -> set[int]:
        """The speeds at which some servo listens."""
        return {BAUDS.get(servo.registers.get("Baud_Rate")) for servo in self.chain.servos}

    def _say(self, answers: list[tuple[str, bytes]]) -> None:
        """Answers are written at once where nothing keeps them apart: fewer wake-ups of whoever reads."""
        ready = b""
        for servo, answer in answers:
            piece = garble(self.chain.faults, self.chain.arm, servo, answer)
            if piece is None:
                continue
            if piece.delay:
                self._send(ready)
                ready = b""
                self._closing.wait(piece.delay)
            ready += piece.data
        self._send(ready)

    def _send(self, data: bytes) -> None:
        with contextlib.suppress(BlockingIOError):
            while data:
                data = data[os.write(self._ends[0], data) :]

    def _plug(self) -> None:
        ours, theirs = pty.openpty()
        tty.setraw(theirs)
        os.set_blocking(ours, False)
        self._ends = ours, theirs
        self.link.unlink(missing_ok=True)
        self.link.symlink_to(os.ttyname(theirs))

    def _unplug(self) -> None:
        if self._ends is None:
            return
        self.link.unlink(missing_ok=True)
        for end in self._ends:
            os.close(end)
        self._ends, self._rest = None, b""
