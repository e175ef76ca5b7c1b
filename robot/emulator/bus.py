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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from robot.emulator.faults import Faults, garble, trouble
from robot.emulator.servo import (
    BROADCAST,
    READ,
    SYNC_READ,
    SYNC_WRITE,
    WRITE,
    Packet,
    PacketLog,
    Servo,
    encode,
    split,
    sync_writes,
)

# The servos of one arm as a bus reaches them: an instruction goes to those it is for, and they answer in turn.

WATCHED = ("Goal_Position", "Torque_Enable")


@dataclass(eq=False)
class Chain:
    """Six servos. `lock` is to be held by whoever reads or changes them."""

    arm: str  # follower, leader
    servos: Sequence[Servo]
    faults: Faults
    record: PacketLog
    lock: threading.RLock = field(default_factory=threading.RLock)
    _troubled: bool = False

    def suffer(self) -> None:
        """Tells every servo what stands against it now."""
        with self.lock:
            if self._troubled or self.faults.any:
                self._troubled = self.faults.any
                for servo in self.servos:
                    servo.suffer(trouble(self.faults, servo.name, self.arm))

    def answers(self, packet: Packet, t: float) -> list[tuple[str, bytes]]:
        """What the servos say to an instruction that came at a time: (servo, bytes), in the order of their answers."""
        if self.faults.standing("silent", None, self.arm) or self.faults.standing("power", None, self.arm):
            return []
        replies, targets = [], {}
        with self.lock:
            for servo, part in self._addressed(packet):
                if self.faults.standing("dead", servo.name, self.arm):
                    continue
                if self.faults.strike("deaf", servo.name, self.arm):
                    continue
                answer, names = servo.answer(part)
                targets[servo] = names
                if answer is not None and not self.faults.standing("mute", servo.name, self.arm):
                    replies.append((servo.name, encode(answer)))
            self._note(targets, t)
        return replies

    def _addressed(self, packet: Packet) -> Iterator[tuple[Servo, Packet]]:
        by_id = {servo.id: servo for servo in self.servos}
        if packet.code == SYNC_WRITE:
            address, parts = sync_writes(packet.params)
            for number, data in parts:
                if number in by_id:
                    part = Packet(BROADCAST, WRITE, bytes((address,)) + data)
                    yield by_id[number], part
        elif packet.code == SYNC_READ:
            for number in packet.params[2:]:
                if number in by_id:
                    yield by_id[number], Packet(number, READ, packet.params[:2])
        elif packet.id == BROADCAST:
            yield from ((servo, packet) for _, servo in sorted(by_id.items()))
        elif packet.id in by_id:
            yield by_id[packet.id], packet

    def _note(self, written: dict[Servo, set[str]], t: float) -> None:
        goals = {s.name: s.user(WATCHED[0]) for s, names in written.items() if WATCHED[0] in names}
        torques = {s.name: bool(s.registers.get(WATCHED[1])) for s, names in written.items() if WATCHED[1] in names}
        if goals:
            self.record.event("goal", t, arm=self.arm, goal=goals)
        if torques:
            self.record.event("torque", t, arm=self.arm, torque=torques)


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
        self._closing, self._rest, self._last_heard_s = threading.Event(), b"", 0.0
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
        rest = self._rest if now - self._last_heard_s < PATIENCE else b""
        packets, self._rest = split(rest + data)
        self._last_heard_s = now
        for packet in packets:
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
