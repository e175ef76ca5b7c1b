"""What is wrong with a servo, from the faults that stand."""

from __future__ import annotations

from dataclasses import dataclass

from robot.emulator.faults import Faults

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
