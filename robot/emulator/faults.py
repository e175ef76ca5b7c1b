"""Faults on command: which there are, what they take, which of them strike now."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from robot.emulator.kinds import ARMS, COMMON, KINDS
from robot.so101_model import JOINTS
from vlrl.types import UserError


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
    given = dict(options)
    name = given.pop("kind", None)
    if name not in KINDS:
        raise UserError(f"fault: unknown kind {name!r}: must be one of {', '.join(KINDS)}")
    kind = KINDS[name]
    known = (*COMMON[kind.plane], *filter(None, (kind.unit,)))
    if unknown := [key for key in given if key not in known]:
        raise UserError(f"fault {name}: unknown option {unknown[0]!r}: must be of {', '.join(known)}")
    _within(name, given, "count", 1, 10**6)
    _within(name, given, "probability", 0, 1)
    _within(name, given, "seconds", 0, 10**6)
    _within(name, given, kind.unit, 0, 10**6)
    for key, values in (("servo", JOINTS), ("arm", ARMS)):
        if given.get(key) is not None and given[key] not in values:
            raise UserError(f"fault {name}: {key} {given[key]!r}: must be one of {', '.join(values)}")
    until = time.monotonic() + given.pop("seconds") if given.get("seconds") is not None else float("inf")
    given.pop("seconds", None)
    amount = given.pop(kind.unit, kind.amount)
    kept = {key: value for key, value in given.items() if value is not None}
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
            found = [f for f in self._standing.values() if f.kind == kind and f.fits(servo, arm, now)]
        return found[-1] if found else None

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
