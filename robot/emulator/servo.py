"""The servos of an arm and the bus they hang on: STS3215s with their packets, and a serial port that is none.

A servo has no clock of its own; a port is a pseudo-terminal, served by one thread.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import pty
import select
import termios
import threading
import time
import tty
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from robot.emulator.faults import VOLTS, Faults, Trouble, garble, trouble
from robot.sim import so101 as arm
from vlrl.types import UserError

# Packets of the Feetech SCS/STS protocol: bytes to packets and back. Pure functions.
#
# An instruction is FF FF id length code params check, a status FF FF id length error params check. `length` counts
# what follows it; `check` is the complement of the low byte of the sum from id on. Numbers are little-endian. Source:
# Feetech's communication protocol manual for the STS series; scservo_sdk/protocol_packet_handler.py.

PING, READ, WRITE, REG_WRITE, ACTION, SYNC_READ, SYNC_WRITE = 1, 2, 3, 4, 5, 0x82, 0x83
BROADCAST = 0xFE
HEAD = b"\xff\xff"
LONGEST = 250  # of `length`: more is noise


@dataclass(frozen=True)
class Packet:
    """An instruction (`code` is what to do) or a status (`code` is the error byte)."""

    id: int  # 0 to 253; 254: every servo
    code: int
    params: bytes = b""


def encode(packet: Packet) -> bytes:
    body = bytes((packet.id, len(packet.params) + 2, packet.code)) + packet.params
    return HEAD + body + bytes((check(body),))


def check(body: bytes) -> int:
    """The check byte of what lies between the header and it."""
    return ~sum(body) & 0xFF


def split(data: bytes) -> tuple[list[Packet], bytes]:
    """All whole packets of a stream, and its end that may yet become one. Noise and bad checks are passed over."""
    packets = []
    while (start := data.find(HEAD)) >= 0:
        data = data[start:].lstrip(b"\xff") if data[start:].startswith(b"\xff\xff\xff") else data[start + 2 :]
        if len(data) < 2 or len(data) < data[1] + 2 <= LONGEST + 2:
            return packets, HEAD + data
        size = data[1] + 2
        if 4 <= size <= LONGEST + 2 and data[size - 1] == check(data[: size - 1]):
            packets.append(Packet(data[0], data[2], data[3 : size - 1]))
            data = data[size:]
    return packets, data[-1:] if data.endswith(b"\xff") else b""


def sync_writes(params: bytes) -> tuple[int, Iterator[tuple[int, bytes]]]:
    """What a sync-write says: the address, and each servo's id with its bytes. Empty when it is malformed."""
    address, size = params[:2] if len(params) >= 2 else (0, 0)
    rest = params[2:]
    if not size or len(rest) % (size + 1):
        return address, iter(())
    parts = (rest[i : i + size + 1] for i in range(0, len(rest), size + 1))
    return address, ((part[0], part[1:]) for part in parts)


def sync_write(address: int, values: Sequence[tuple[int, bytes]]) -> Packet:
    """The instruction that writes bytes, as many of each, to several servos at once."""
    size = len(values[0][1])
    params = b"".join(bytes((number,)) + data for number, data in values)
    return Packet(BROADCAST, SYNC_WRITE, bytes((address, size)) + params)


# What happened, when: writes to the servos, faults, and where the joints truly were. Bounded, for several threads.

EVENTS, SAMPLES = 50_000, 6_000  # kept: half an hour of goals at 30 Hz, a minute of samples at 100 Hz
EVERY = 0.01  # seconds between samples


class PacketLog:
    """Events are dicts with `t` (time.monotonic(), the same clock in every process of this machine) and `what`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._events: deque[dict[str, Any]] = deque(maxlen=EVENTS)
        self._samples: deque[tuple[float, tuple[float, ...]]] = deque(maxlen=SAMPLES)

    def event(self, what: str, t: float | None = None, **said: Any) -> None:
        with self._lock:
            self._events.append({"t": time.monotonic() if t is None else t, "what": what, **said})

    def sample(self, t: float, pose: tuple[float, ...]) -> None:
        """Where the follower's joints are, degrees and percent [6]; kept at most every EVERY seconds."""
        with self._lock:
            if not self._samples or t - self._samples[-1][0] >= EVERY * 0.9:
                self._samples.append((t, pose))

    def events(self, since: float) -> list[dict[str, Any]]:
        """Those after a time, in order."""
        with self._lock:
            return [each for each in self._events if each["t"] > since]

    def samples(self, since: float) -> list[tuple[float, tuple[float, ...]]]:
        with self._lock:
            return [each for each in self._samples if each[0] > since]


# Between a joint's angle and the steps that a servo counts. Pure functions of the joint and how its horn sits.
#
# Steps are present steps: those of the encoder less the homing offset, as the bus says them. A calibrated joint has
# 2047.5 in the middle of its range.

TURN, MIDDLE = 4096, 2047.5  # steps


@dataclass(frozen=True)
class JointEncoder:
    name: str  # of the joint
    mount: int  # steps by which the horn sits askew: the homing offset that calibration finds

    @property
    def limits(self) -> tuple[float, float]:
        """Degrees."""
        low, high = arm.LIMITS[arm.JOINTS.index(self.name)].tolist()
        return low, high

    @property
    def range(self) -> tuple[int, int]:
        """The position limits that calibration finds, in steps. To the wrist's roll lerobot gives the whole turn."""
        low, high = self.limits
        half = 2047 if self.name == "wrist_roll" else round((high - low) / 2 * TURN / 360)
        return 2047 - half, 2048 + half

    def raw(self, degrees: float, homing: int) -> int:
        """The steps of an angle."""
        turned = (degrees - sum(self.limits) / 2) * TURN / 360
        return int((MIDDLE + 0.5 + turned + self.mount - homing) // 1) % TURN

    def degrees(self, raw: float, homing: int) -> float:
        """The angle of steps."""
        return sum(self.limits) / 2 + (raw + homing - self.mount - MIDDLE) * 360 / TURN

    def user(self, raw: float, homing: int) -> float:
        """Steps as lerobot says them: degrees, and the gripper's opening in percent."""
        degrees, (low, high) = self.degrees(raw, homing), self.limits
        return 100 * (degrees - low) / (high - low) if self.name == "gripper" else degrees


# The registers of an STS3215: names, addresses, what is kept without power, numbers with a sign bit.
#
# Source: Feetech's memory table of the STS series, as in lerobot's `motors/feetech/tables.py`.

SIZE, EPROM = 256, 40  # bytes; below this address they outlive a loss of power
FIXED = (range(0, 5), range(56, 70))  # read-only: firmware and model, what is measured
MODEL, FIRMWARE = 777, (3, 10)


@dataclass(frozen=True)
class Register:
    address: int
    size: int = 1  # bytes
    sign: int | None = None  # the bit that says minus, the bits below it are the magnitude
    factory: int = 0


TABLE = {
    "Firmware_Major_Version": Register(0, factory=FIRMWARE[0]),
    "Firmware_Minor_Version": Register(1, factory=FIRMWARE[1]),
    "Model_Number": Register(3, 2, factory=MODEL),
    "ID": Register(5, factory=1),
    "Baud_Rate": Register(6),
    "Return_Delay_Time": Register(7, factory=250),
    "Response_Status_Level": Register(8, factory=1),
    "Min_Position_Limit": Register(9, 2),
    "Max_Position_Limit": Register(11, 2, factory=4095),
    "Max_Temperature_Limit": Register(13, factory=70),
    "Max_Voltage_Limit": Register(14, factory=140),
    "Min_Voltage_Limit": Register(15, factory=80),
    "Max_Torque_Limit": Register(16, 2, factory=1000),
    "Phase": Register(18, factory=12),
    "Unloading_Condition": Register(19, factory=44),
    "LED_Alarm_Condition": Register(20, factory=47),
    "P_Coefficient": Register(21, factory=32),
    "D_Coefficient": Register(22, factory=32),
    "I_Coefficient": Register(23),
    "Minimum_Startup_Force": Register(24, 2, factory=16),
    "CW_Dead_Zone": Register(26, factory=1),
    "CCW_Dead_Zone": Register(27, factory=1),
    "Protection_Current": Register(28, 2, factory=500),
    "Angular_Resolution": Register(30, factory=1),
    "Homing_Offset": Register(31, 2, 11),
    "Operating_Mode": Register(33),
    "Protective_Torque": Register(34, factory=20),
    "Protection_Time": Register(35, factory=200),
    "Overload_Torque": Register(36, factory=80),
    "Torque_Enable": Register(40),
    "Acceleration": Register(41),
    "Goal_Position": Register(42, 2, 15),
    "Goal_Time": Register(44, 2),
    "Goal_Velocity": Register(46, 2, 15),
    "Torque_Limit": Register(48, 2, factory=1000),
    "Lock": Register(55, factory=1),
    "Present_Position": Register(56, 2, 15),
    "Present_Velocity": Register(58, 2, 15),
    "Present_Load": Register(60, 2, 10),
    "Present_Voltage": Register(62, factory=120),
    "Present_Temperature": Register(63, factory=28),
    "Status": Register(65),
    "Moving": Register(66),
    "Present_Current": Register(69, 2, 15),
    "Maximum_Acceleration": Register(85, factory=254),
}


class Registers:
    """The memory of one servo. Numbers are raw: steps, tenths of volts, per mille."""

    def __init__(self) -> None:
        self._memory, self._kept = bytearray(SIZE), bytearray(SIZE)
        for name, register in TABLE.items():
            self.put(name, register.factory)
        self._kept[:] = self._memory

    def get(self, name: str) -> int:
        register = TABLE[name]
        raw = int.from_bytes(self._memory[register.address : register.address + register.size], "little")
        if register.sign is None:
            return raw
        magnitude = raw & ((1 << register.sign) - 1)
        return -magnitude if raw >> register.sign & 1 else magnitude

    def put(self, name: str, value: int, *, keep: bool = False) -> None:
        """Sets a register from inside, cut to what it holds; with `keep` also what a loss of power leaves."""
        register = TABLE[name]
        bits = 8 * register.size if register.sign is None else register.sign
        raw = min(abs(int(value)) if register.sign else max(int(value), 0), (1 << bits) - 1)
        raw |= (1 << register.sign) if register.sign and value < 0 else 0
        where = slice(register.address, register.address + register.size)
        self._memory[where] = raw.to_bytes(register.size, "little")
        if keep:
            self._kept[where] = self._memory[where]

    def read(self, address: int, size: int) -> bytes:
        """As many bytes from an address; beyond the memory there are zeros."""
        return bytes(self._memory[address : address + size]).ljust(size, b"\0")

    def write(self, address: int, data: bytes) -> set[str]:
        """What the bus writes: read-only bytes stay. Kept without power only while the lock is open.

        Returns:
            The names of the registers that were written, changed or not.
        """
        keep = not self.get("Lock")
        for where, byte in enumerate(data[: SIZE - address], address):
            if not any(where in fixed for fixed in FIXED):
                self._memory[where] = byte
                if keep:
                    self._kept[where] = byte
        addresses = range(address, address + len(data))
        return {name for name, register in TABLE.items() if register.address in addresses}

    def restart(self) -> None:
        """Power came back: what is kept as it was kept, the rest as at the factory."""
        self._memory[:EPROM] = self._kept[:EPROM]
        for name, register in TABLE.items():
            if register.address >= EPROM:
                self.put(name, register.factory)
        self.put("Torque_Limit", self.get("Max_Torque_Limit"))


# How a servo protects itself: too hot, too long overloaded, too low a voltage. The rest is only kept in registers.

VOLTAGE, OVERHEAT, OVERLOAD = 1, 4, 32  # bits of the error byte
ROOM, HOT, WARMING = 28.0, 30.0, 120.0  # deg C; deg C more at full load, in the end; seconds
HOTTEST = 120.0  # deg C


class Protection:
    """Watches one servo's temperature and load."""

    def __init__(self, registers: Registers):
        self._registers, self.temperature = registers, ROOM
        self._overloaded, self._way, self._loaded_for, self._said = False, 0.0, 0.0, 0

    def step(self, load: float, seconds: float, trouble: Trouble) -> list[str]:
        """After some time under a load, -1 to 1 of what it could bear.

        Returns:
            What it did of its own, each in a word: `overheated`, `overloaded`.
        """
        aim = ROOM + HOT * load * load
        self.temperature += seconds * (trouble.heating or (aim - self.temperature) / WARMING)
        self.temperature = min(self.temperature, HOTTEST)
        get, put = self._registers.get, self._registers.put
        self._loaded_for = self._loaded_for + seconds if abs(load) > get("Overload_Torque") / 100 else 0.0
        if self._loaded_for > get("Protection_Time") / 100:
            self._overloaded, self._way = True, load
        now = self.error(trouble)
        rising, self._said = now & ~self._said, now
        put("Present_Temperature", round(self.temperature))
        put("Status", now)
        if now & OVERHEAT & get("Unloading_Condition"):
            put("Torque_Enable", 0)
        return [word for bit, word in ((OVERHEAT, "overheated"), (OVERLOAD, "overloaded")) if rising & bit]

    def error(self, trouble: Trouble) -> int:
        """The error byte of the servo's answers."""
        get = self._registers.get
        low = trouble.volts * 10 < get("Min_Voltage_Limit")
        hot = self.temperature > get("Max_Temperature_Limit")
        return VOLTAGE * low | OVERHEAT * hot | OVERLOAD * (self._overloaded or trouble.overload)

    def on_write(self, names: set[str]) -> None:
        """An overload ends when torque is switched, or a goal leads the other way."""
        get = self._registers.get
        back = (get("Goal_Position") - get("Present_Position")) * self._way < 0
        if "Torque_Enable" in names or ("Goal_Position" in names and back):
            self._overloaded, self._loaded_for = False, 0.0

    def cool(self) -> None:
        self.temperature = ROOM

    def restart(self) -> None:
        self._overloaded, self._loaded_for = False, 0.0


STALL = 2.7 / 0.0065  # steps of current at stall (2.7 A)


@dataclass(frozen=True)
class TorqueLaw:
    """What a servo does now: torque = stiffness * (target - angle), at most limit."""

    target: float = 0.0  # rad
    stiffness: float = 0.0  # N m / rad; 0: limp
    limit: float = arm.TORQUE  # N m
    believed: float | None = None  # rad: the angle that it takes for its own, where that is not the true one


class Servo:
    """A servo of a joint.

    Args:
        joint: its place in `so101_model.JOINTS`; its id is one more.
        mount: steps by which its horn sits askew, which the calibrated homing offset undoes.
        calibrated: whether its memory holds its calibration, or what it left the factory with.
    """

    def __init__(self, joint: int, mount: int, calibrated: bool = True):
        self.name, self.encoder = arm.JOINTS[joint], JointEncoder(arm.JOINTS[joint], mount)
        self.registers, self.trouble = Registers(), Trouble()
        self.registers.put("ID", joint + 1, keep=True)
        if calibrated:
            names, values = ("Homing_Offset", "Min_Position_Limit", "Max_Position_Limit"), (mount, *self.encoder.range)
            for name, value in zip(names, values, strict=True):
                self.registers.put(name, value, keep=True)
        self.protection = Protection(self.registers)
        self._asked, self._setpoint, self._pending = False, 0.0, b""

    @property
    def id(self) -> int:
        return self.registers.get("ID")

    @property
    def holds(self) -> bool:
        """Whether there is torque at its joint."""
        return bool(self.registers.get("Torque_Enable")) and self.trouble.powered and not self.trouble.limp

    def raw(self, degrees: float) -> int:
        """Present steps of a joint angle."""
        return self.encoder.raw(degrees, self.registers.get("Homing_Offset"))

    def user(self, register: str) -> float:
        """A position register as lerobot says it."""
        return self.encoder.user(self.registers.get(register), self.registers.get("Homing_Offset"))

    def sense(self, degrees: float, speed: float, torque: float, seconds: float) -> list[str]:
        """What it measures after some time at an angle, speed (degrees a second) and own torque (N m).

        Returns:
            What it did of its own, each in a word: `overheated`, `overloaded`.
        """
        put, load = self.registers.put, torque / arm.TORQUE
        if not self.trouble.stuck:
            put("Present_Position", self.raw(degrees))
            put("Present_Velocity", round(speed * TURN / 360))
        put("Present_Load", round(1000 * load))
        put("Present_Current", round(STALL * load))
        put("Moving", abs(speed) > 1)
        put("Present_Voltage", round(10 * self.trouble.volts))
        return self.protection.step(load, seconds, self.trouble)

    def error(self) -> int:
        """The error byte of its answers."""
        return self.protection.error(self.trouble)

    def law(self, seconds: float) -> TorqueLaw:
        """What it does in the next so many seconds."""
        get = self.registers.get
        if not self.holds:
            return TorqueLaw()
        goal = float(min(max(get("Goal_Position"), get("Min_Position_Limit")), get("Max_Position_Limit")))
        most = abs(get("Goal_Velocity")) * seconds
        step = goal - self._setpoint
        self._setpoint += min(max(step, -most), most) if most else step
        share = min(get("Max_Torque_Limit"), get("Torque_Limit")) / 1000 * min(self.trouble.volts / VOLTS, 1.0)
        if self.error() & OVERLOAD:
            share = min(share, get("Protective_Torque") / 100)
        believed = self._radians(get("Present_Position")) if self.trouble.stuck else None
        stiffness = arm.KP * get("P_Coefficient") / 16
        return TorqueLaw(self._radians(self._setpoint), stiffness, share * arm.TORQUE, believed)

    def _radians(self, raw: float) -> float:
        return math.radians(self.encoder.degrees(raw, self.registers.get("Homing_Offset")))

    def write(self, address: int, data: bytes) -> set[str]:
        """A write from the bus -> the registers written."""
        was = self.registers.get("Torque_Enable")
        addresses = self.registers.write(address, data)
        self.protection.on_write(addresses)
        if "Goal_Position" in addresses:
            self._asked = True
        if "Torque_Enable" in addresses and not self.registers.get("Torque_Enable"):
            self._asked = False
        if self.registers.get("Torque_Enable") and not was:
            self._hold()
        return addresses

    def _hold(self) -> None:
        """Torque came on: it holds where it is, unless it has been told where to go since torque went off."""
        self._setpoint = float(self.registers.get("Present_Position"))
        if not self._asked:
            self.registers.put("Goal_Position", round(self._setpoint))

    def goal(self, degrees: float) -> None:
        """Asks for an angle from inside; whether it has torque stays."""
        self.registers.put("Goal_Position", self.raw(degrees))
        self._setpoint, self._asked = float(self.registers.get("Goal_Position")), False

    def suffer(self, trouble: Trouble) -> None:
        """Takes over what is wrong with it from now on."""
        was, self.trouble = self.trouble, trouble
        if was.heating and not trouble.heating:
            self.protection.cool()
        if was.powered and not trouble.powered:
            self.restart()
        if trouble.released:
            self.registers.put("Torque_Enable", 0)

    def restart(self) -> None:
        """Power came back: torque is off."""
        self.registers.restart()
        self.protection.restart()
        self._asked, self._pending = False, b""

    def answer(self, packet: Packet) -> tuple[Packet | None, set[str]]:
        """What it says to an instruction for it, and the registers that this wrote. Malformed ones it passes over."""
        params, changes, data, error = packet.params, set(), b"", self.error()
        if packet.code == READ and len(params) == 2:
            data = self.registers.read(*params)
        elif packet.code == WRITE and len(params) >= 2:
            changes = self.write(params[0], params[1:])
        elif packet.code == REG_WRITE and len(params) >= 2:
            self._pending = params
        elif packet.code == ACTION:
            changes = self.write(self._pending[0], self._pending[1:]) if self._pending else set()
            self._pending = b""
        elif packet.code != PING:
            return None, set()
        mute = packet.id == BROADCAST and packet.code != PING
        return (None if mute else Packet(self.id, error, data)), changes


# lerobot's calibration file of an emulated arm.


def calibration(servos: Sequence[Servo]) -> dict[str, dict[str, int]]:
    """By joint what lerobot's `MotorCalibration` holds; positions in steps."""
    return {
        servo.name: {
            "id": number,
            "drive_mode": 0,
            "homing_offset": servo.encoder.mount,
            "range_min": servo.encoder.range[0],
            "range_max": servo.encoder.range[1],
        }
        for number, servo in enumerate(servos, 1)
    }


def write_calibration(folder: Path, name: str, calibration: Mapping[str, Any]) -> Path:
    """lerobot's calibration file of an arm by its id.

    Raises:
        UserError: it cannot be written.
    """
    file = folder / f"{name}.json"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(calibration, indent=4), encoding="utf-8")
    except OSError as error:
        raise UserError(f"calibration: cannot write {file}: {error.strerror}") from None
    return file


# A serial port that is none: a pseudo-terminal with the servos of an arm at its other end. One thread.
#
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
