"""Dynamixel X servos at a pseudo-terminal: their memory and the Bus Watchdog, without anything that moves.

Source: ROBOTIS e-manual, Protocol 2.0 and the control table of the X series.
"""

from __future__ import annotations

import os
import pty
import select
import threading
import time
import tty
from collections.abc import Iterator, Mapping

HEAD = b"\xff\xff\xfd\x00"
PING, READ, WRITE, SYNC_READ, SYNC_WRITE, STATUS = 1, 2, 3, 0x82, 0x83, 0x55
DATA_RANGE = 4  # error of a status
TORQUE, WATCHDOG, GOAL, PRESENT = 64, 98, 116, 132  # addresses
GOALS = range(100, 120)
STOPPED, UNIT = 0xFF, 0.02  # the watchdog's value once it has stopped the servo; seconds


class Dynamixels(threading.Thread):
    """`port` leads to servos with the model numbers `models`, by id. To be started and closed."""

    def __init__(self, models: Mapping[int, int]):
        super().__init__(daemon=True)
        self.models, self.memory = models, {number: bytearray(256) for number in models}
        self.ours, self.theirs = pty.openpty()
        tty.setraw(self.theirs)
        self.port, self._closing, self._last_heard_s = os.ttyname(self.theirs), threading.Event(), time.monotonic()

    def get(self, address: int, size: int = 1) -> list[int]:
        """A register of every servo."""
        return [int.from_bytes(memory[address : address + size], "little") for memory in self.memory.values()]

    def put(self, address: int, value: int, size: int = 1) -> None:
        """Sets a register of every servo from inside."""
        for memory in self.memory.values():
            memory[address : address + size] = value.to_bytes(size, "little")

    def run(self) -> None:
        data = b""
        while not self._closing.is_set():
            if select.select([self.ours], [], [], 0.005)[0]:
                data += os.read(self.ours, 4096)
            self._watch()
            while len(data) >= 7 and len(data) >= (end := 7 + int.from_bytes(data[5:7], "little")):
                packet, data = data[:end], data[end:]
                assert packet[:4] == HEAD and crc(packet[:-2]) == int.from_bytes(packet[-2:], "little")
                self._last_heard_s = time.monotonic()
                for answer in self._answers(packet[4], packet[7], packet[8:-2]):
                    os.write(self.ours, answer)

    def close(self) -> None:
        self._closing.set()
        self.join()
        os.close(self.ours)
        os.close(self.theirs)

    def _watch(self) -> None:
        for memory in self.memory.values():
            limit = memory[WATCHDOG]
            if 0 < limit < 128 and memory[TORQUE] and time.monotonic() - self._last_heard_s > limit * UNIT:
                memory[WATCHDOG] = STOPPED

    def _answers(self, number: int, code: int, data: bytes) -> Iterator[bytes]:
        address, size = int.from_bytes(data[:2], "little"), int.from_bytes(data[2:4], "little")
        if code == SYNC_READ:
            for each in data[4:]:
                yield status(each, 0, bytes(self.memory[each][address : address + size]))
        elif code == SYNC_WRITE:
            for start in range(4, len(data), size + 1):
                self._write(data[start], address, data[start + 1 : start + 1 + size])
        elif code == READ:
            yield status(number, 0, bytes(self.memory[number][address : address + size]))
        elif code == WRITE:
            yield status(number, self._write(number, address, data[2:]))
        elif code == PING:
            yield status(number, 0, self.models[number].to_bytes(2, "little") + b"\x2d")

    def _write(self, number: int, address: int, data: bytes) -> int:
        """The error: goals are read-only after the watchdog has stopped the servo."""
        memory = self.memory[number]
        if memory[WATCHDOG] == STOPPED and address in GOALS:
            return DATA_RANGE
        memory[address : address + len(data)] = data
        return 0


def status(number: int, error: int, data: bytes = b"") -> bytes:
    body = HEAD + bytes((number,)) + (len(data) + 4).to_bytes(2, "little") + bytes((STATUS, error)) + data
    return body + crc(body).to_bytes(2, "little")


def crc(data: bytes) -> int:
    """CRC-16 of the polynomial 0x8005."""
    value = 0
    for byte in data:
        value ^= byte << 8
        for _ in range(8):
            value = (value << 1 ^ (0x8005 if value & 0x8000 else 0)) & 0xFFFF
    return value
