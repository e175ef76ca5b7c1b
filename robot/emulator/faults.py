"""Faults on command: which there are, what they take, which of them strike now."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from robot.sim.so101 import JOINTS
from vlrl.types import UserError

# Which faults there are.

ARMS = ("follower", "leader")


@dataclass(frozen=True)
class Kind:
    """What a fault does. A fault of packets strikes one packet at a time and takes count and probability."""

    plane: str  # packet, bus, servo, camera
    summary: str
    amount: float | None = None  # of what `unit` says, unless told otherwise
    unit: str = ""  # the option that sets the amount, which is its unit


KINDS = {
    "drop": Kind("packet", "a servo's answer is lost"),
    "late": Kind("packet", "a servo's answer comes late, and all that follow it", 80, "ms"),
    "corrupt": Kind("packet", "bits of an answer are flipped", 1, "bits"),
    "duplicate": Kind("packet", "an answer comes twice"),
    "short": Kind("packet", "an answer lacks its last bytes", 2, "bytes"),
    "noise": Kind("packet", "bytes of noise come before an answer", 8, "bytes"),
    "deaf": Kind("packet", "an instruction is lost on its way to a servo"),
    "silent": Kind("bus", "nothing gets through; the servos hold on"),
    "power": Kind("bus", "the servos lose their power: limp and silent; then they start anew"),
    "unplug": Kind("bus", "the port is gone until it is plugged in again; the servos hold on"),
    "dead": Kind("servo", "a servo has lost its power: limp and silent"),
    "mute": Kind("servo", "a servo holds and obeys, but does not answer"),
    "overheat": Kind("servo", "the temperature rises past the limit; the servo lets go by itself", 20, "rate"),
    "torque": Kind("servo", "a servo lets go, and says so in Torque_Enable alone"),
    "limp": Kind("servo", "a gear is broken: no torque, and no register says so"),
    "overload": Kind("servo", "the overload bit is set, torque is cut to Protective_Torque"),
    "voltage": Kind("servo", "the supply sinks: the voltage bit, less torque", 5.0, "volts"),
    "stuck": Kind("servo", "the encoder says the same for ever; the servo runs away from it"),
    "jam": Kind("servo", "the joint is blocked from outside"),
    "reset": Kind("servo", "a servo restarts at once: torque off, volatile registers as at the factory"),
    "freeze": Kind("camera", "the same picture is sent again and again"),
    "black": Kind("camera", "black pictures"),
    "stop": Kind("camera", "no pictures"),
}
COMMON = {"packet": ("count", "probability", "seconds", "servo", "arm"), "bus": ("seconds", "arm"),
          "servo": ("seconds", "servo", "arm"), "camera": ("seconds", "camera")}  # fmt: skip


@dataclass(frozen=True)
class Fault:
    """A fault that stands. `id`: every one has its own."""

    kind: str
    id: int = 0
    servo: str | None = None  # None: all
    arm: str = "follower"
    camera: str | None = None  # None: all
    count: int | None = None  # how many more packets; None: until cleared
    probability: float = 1.0  # of each packet
    until: float = float("inf")  # time.monotonic()
    amount: float = 0.0

    def fits(self, servo: str | None, arm: str, now: float) -> bool:
        return self.arm == arm and (servo is None or self.servo in (None, servo)) and now < self.until


def parse(options: Mapping[str, Any]) -> Fault:
    """A fault as it is asked for: `kind` and the options of its kind.

    Raises:
        UserError: an unknown kind or option, or a value out of range.
    """
    fields = dict(options)
    name = fields.pop("kind", None)
    if name not in KINDS:
        raise UserError(f"fault: unknown kind {name!r}: must be one of {', '.join(KINDS)}")
    kind = KINDS[name]
    known = (*COMMON[kind.plane], *filter(None, (kind.unit,)))
    if unknown := [key for key in fields if key not in known]:
        raise UserError(f"fault {name}: unknown option {unknown[0]!r}: must be of {', '.join(known)}")
    _within(name, fields, "count", 1, 10**6)
    _within(name, fields, "probability", 0, 1)
    _within(name, fields, "seconds", 0, 10**6)
    _within(name, fields, kind.unit, 0, 10**6)
    for key, values in (("servo", JOINTS), ("arm", ARMS)):
        if fields.get(key) is not None and fields[key] not in values:
            raise UserError(f"fault {name}: {key} {fields[key]!r}: must be one of {', '.join(values)}")
    until = time.monotonic() + fields.pop("seconds") if fields.get("seconds") is not None else float("inf")
    fields.pop("seconds", None)
    amount = fields.pop(kind.unit, kind.amount)
    kept = {key: value for key, value in fields.items() if value is not None}
    return Fault(name, until=until, amount=float(amount or 0), **kept)


def _within(fault: str, given: Mapping[str, Any], key: str, low: float, high: float) -> None:
    value = given.get(key)
    if value is None:
        return
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not low <= value <= high or (key == "count" and value != int(value)):
        raise UserError(f"fault {fault}: {key} {value!r}: must be a number from {low} to {high}")


class Faults:
    """The faults that stand. May be used by several threads."""

    def __init__(self, seed: int = 0):
        self._lock, self._standing, self._next = threading.Lock(), {}, 1
        self.rng = np.random.default_rng(seed)

    def add(self, fault: Fault) -> Fault:
        with self._lock:
            fault = replace(fault, id=self._next)
            self._next += 1
            self._standing[fault.id] = fault
        return fault

    @property
    def any(self) -> bool:
        return bool(self._standing)

    def clear(self, kind: str | None = None) -> list[Fault]:
        """Ends all faults, or those of a kind -> those that ended."""
        with self._lock:
            ended = [each for each in self._standing.values() if kind in (None, each.kind)]
            for each in ended:
                del self._standing[each.id]
        return ended

    def standing(self, kind: str, servo: str | None = None, arm: str = "follower") -> Fault | None:
        """The latest fault of a kind that stands for a servo now."""
        if not self._standing:
            return None
        now = time.monotonic()
        with self._lock:
            faults = [f for f in self._standing.values() if f.kind == kind and f.fits(servo, arm, now)]
        return faults[-1] if faults else None

    def strike(self, kind: str, servo: str, arm: str) -> Fault | None:
        """As `standing`, for one packet: by its probability, and counted."""
        fault = self.standing(kind, servo, arm)
        if fault is None:
            return None
        with self._lock:
            if fault.id not in self._standing or self.rng.random() >= fault.probability:
                return None
            if fault.count is not None:
                self._standing[fault.id] = replace(fault, count=fault.count - 1)
                if fault.count <= 1:
                    del self._standing[fault.id]
        return fault

    def all(self) -> list[Fault]:
        now = time.monotonic()
        with self._lock:
            return [each for each in self._standing.values() if now < each.until]


# What faults make of answers on their way: lost, late, garbled, twice.


@dataclass(frozen=True)
class DelayedBytes:
    """Bytes to send after a delay in seconds."""

    data: bytes
    delay: float = 0.0


def garble(faults: Faults, arm: str, servo: str, answer: bytes) -> DelayedBytes | None:
    """An answer as it arrives; None: it does not."""
    strike = lambda kind: faults.strike(kind, servo, arm)  # noqa: E731
    if strike("drop"):
        return None
    late = strike("late")
    if fault := strike("corrupt"):
        answer = _flipped(faults, answer, int(fault.amount))
    if fault := strike("short"):
        answer = answer[: max(len(answer) - int(fault.amount), 0)]
    if strike("duplicate"):
        answer += answer
    if fault := strike("noise"):
        answer = faults.rng.bytes(int(fault.amount)) + answer
    return DelayedBytes(answer, late.amount / 1000 if late else 0.0)


def _flipped(faults: Faults, answer: bytes, bits: int) -> bytes:
    """Different bits behind the header and the length flipped: the check no longer holds."""
    changed, first = bytearray(answer), 4 if len(answer) > 4 else 0
    places = faults.rng.permutation(8 * (len(answer) - first))[:bits]
    for place in places.tolist():
        changed[first + place // 8] ^= 1 << place % 8
    return bytes(changed)


# What is wrong with a servo, from the faults that stand.

VOLTS = 12.0


@dataclass(frozen=True)
class Trouble:
    stuck: bool = False  # its encoder
    limp: bool = False  # its gears
    overload: bool = False
    released: bool = False  # its torque is switched off
    heating: float = 0.0  # deg C a second
    volts: float = VOLTS
    jammed: bool = False  # its joint
    powered: bool = True


def trouble(faults: Faults, servo: str, arm: str) -> Trouble:
    """What stands against a servo now."""
    at = {kind: faults.standing(kind, servo, arm) for kind in
          ("stuck", "limp", "overload", "torque", "overheat", "voltage", "jam", "dead", "power")}  # fmt: skip
    return Trouble(
        stuck=at["stuck"] is not None,
        limp=at["limp"] is not None,
        overload=at["overload"] is not None,
        released=at["torque"] is not None,
        heating=at["overheat"].amount if at["overheat"] else 0.0,
        volts=at["voltage"].amount if at["voltage"] else VOLTS,
        jammed=at["jam"] is not None,
        powered=at["dead"] is None and at["power"] is None,
    )
