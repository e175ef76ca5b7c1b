"""What a fault is, what must come of it, and what is told of what did."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

LOCAL = 3  # ticks within which a robot is held after a fault on its own computer


@dataclass(frozen=True)
class Fault:
    """One row of docs/evidence/faults.md, and a test."""

    name: str  # in words
    kind: str  # network, server, policy, bus, servo, camera, operator, process, disk, clock, two
    cause: str  # how it is caused
    begin: Callable[[Any], float | None]  # on a rig; time.monotonic() when it began, where the rig knows better
    mend: Callable[[Any], object] = lambda session: None
    limit: int | None = LOCAL  # ticks until it is held; None: it need not be
    code: int | None = None  # the exit code; None: it goes on
    seconds: float = 1.0  # for which a fault stands that is mended
    says: str = ""  # words of the cause
    options: tuple[tuple[str, Any], ...] = ()  # of the rig

    def __str__(self):
        return f"{self.kind}-{self.name.replace(' ', '_')}"


def ids(fault):
    return str(fault)


def tell(record_property, fault, did, safe, code, lost="nothing", **more):
    """A row of the table, for `bench/faults.py bridge_faults`."""
    row = {"name": fault.name, "kind": fault.kind, "cause": fault.cause, "did": did, "code": code, "lost": lost, **more}
    if safe is not None:
        row |= {"held": safe.held, "still": safe.still, "ms": safe.ms, "why": safe.cause}
    record_property("fault", json.dumps(row | {"limit": fault.limit}))


def check(fault, safe):
    """That it was held in time."""
    if fault.limit is not None:
        assert safe.held is not None, f"never held: {safe}"
        assert safe.held <= fault.limit, safe
        assert safe.still is not None and safe.still - safe.held <= 4, safe  # 60 deg/s at 720 deg/s^2: 2.5 ticks
    assert fault.says in safe.cause, safe
