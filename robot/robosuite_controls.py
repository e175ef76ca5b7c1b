"""Controls in physical units for robosuite's controllers, which are told numbers from -1 to 1."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from robot.controls import Controls
from vlrl.types import UserError

HAND = tuple(zip(("x", "y", "z", "rx", "ry", "rz"), ("m",) * 3 + ("rad",) * 3, strict=True))
JOINTS = {"JointPositionController": "rad", "JointVelocityController": "rad/s", "JointTorqueController": "N m"}
HANDS = ("OperationalSpaceController", "InverseKinematicsController")


@dataclass(frozen=True, eq=False)
class Units:
    """Controls, and what robosuite is told for them."""

    controls: Controls
    middle: np.ndarray  # float64 [A]: the control for which a controller is told 0
    scale: np.ndarray  # float64 [A]: physical units for each 1 that it is told

    def normalised(self, control: np.ndarray) -> np.ndarray:
        """float64 [A] for `env.step`, from a control float32 [A]."""
        return (control.astype(np.float64) - self.middle) / self.scale


@dataclass(frozen=True)
class Way:
    """One dimension of a control."""

    name: str
    unit: str
    low: float
    high: float
    middle: float = 0.0
    scale: float = 1.0


def units_of(robots: Sequence[Any]) -> Units:
    """Raises UserError for a body whose controller is not a sum of its parts."""
    ways = [way for robot in robots for way in _body(robot, len(robots) > 1)]
    names, units, *numbers = zip(*((w.name, w.unit, w.low, w.high, w.middle, w.scale) for w in ways), strict=True)
    low, high, middle, scale = np.array(numbers)
    return Units(Controls(names, units, low, high), middle, scale)


def _body(robot: Any, several: bool) -> Iterator[Way]:
    composite = robot.composite_controller
    if composite.name not in ("BASIC", "HYBRID_MOBILE_BASE"):
        raise UserError(f"robot.robot: {robot.name} moves by {composite.name}, which is not supported")
    prefix = f"robot{robot.idn}_" if several else ""
    for part, controller in composite.part_controllers.items():
        yield from _part(f"{prefix}{part}_" if several or len(robot.arms) > 1 else prefix, part, controller, composite)
    if composite.name == "HYBRID_MOBILE_BASE":
        yield Way(f"{prefix}drive", "1", -1.0, 1.0)  # above 0 the base moves and the arm goes with it


def _part(prefix: str, part: str, controller: Any, composite: Any) -> Iterator[Way]:
    first, last = composite._action_split_indexes[part]
    kind, count = type(controller).__name__, last - first
    if part in composite.grippers:
        for index in range(count):
            yield Way(f"{prefix}grip{index if count > 1 else ''}", "1", -1.0, 1.0)
    elif kind == "InverseKinematicsController":  # is told metres and radians
        for (name, unit), low, high in zip(HAND, *controller.control_limits, strict=True):
            yield Way(prefix + name, unit, low, high)
    elif kind == "OperationalSpaceController" or kind in JOINTS:
        labels = HAND if kind in HANDS else [(f"joint{index + 1}", JOINTS[kind]) for index in range(count)]
        yield from _scaled(prefix if part in composite.arms else f"{prefix}{part}_", labels[:count], controller)
    else:
        for index in range(count):
            yield Way(f"{prefix}{part}{index}", "1", -1.0, 1.0)


def _scaled(prefix: str, labels: Sequence[tuple[str, str]], controller: Any) -> Iterator[Way]:
    """Dimensions for which the controller stretches its input range onto its output range."""
    ranges = (controller.input_min, controller.input_max, controller.output_min, controller.output_max)
    for (name, unit), *ends in zip(labels, *(np.broadcast_to(each, len(labels)) for each in ranges), strict=True):
        told_low, told_high, low, high = map(float, ends)
        scale = (high - low) / (told_high - told_low)
        yield Way(prefix + name, unit, low, high, (low + high) / 2 - scale * (told_low + told_high) / 2, scale)
