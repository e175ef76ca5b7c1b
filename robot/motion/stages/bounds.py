"""What each channel is held to, as arrays: the config's limits over defaults that go by the channel's unit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from robot.motion.body import Channel
from vlrl.strict import suggest
from vlrl.types import UserError

if TYPE_CHECKING:
    from robot.motion.limits import ChannelLimits, Safety

FIELDS = ("low", "high", "margin", "speed", "acceleration", "step", "jump", "lead", "disagree", "stuck")
# in FIELDS' order; cautious for an arm on a table. Distances and what is per second are in the unit itself
_DEGREES = (-180.0, 180.0, 0.0, 120.0, 720.0, math.inf, 15.0, 25.0, 40.0, 1.0)
_RADIANS = (*(math.radians(value) for value in _DEGREES[:-1]), 1.0)
DEFAULTS = MappingProxyType(
    {
        "deg": _DEGREES,
        "rad": _RADIANS,
        "m": (-1.0, 1.0, 0.0, 0.25, 1.5, math.inf, 0.05, 0.1, 0.2, 1.0),
        # a gripper closes on things
        "%": (-100.0, 100.0, 0.0, 200.0, 2000.0, math.inf, 100.0, math.inf, math.inf, 0.0),
        "deg/s": (-60.0, 60.0, 0.0, 60.0, 240.0, math.inf, math.inf, math.inf, math.inf, 0.0),
        "rad/s": (-1.0, 1.0, 0.0, 1.0, 4.0, math.inf, math.inf, math.inf, math.inf, 0.0),
        "m/s": (-0.3, 0.3, 0.0, 0.3, 1.0, math.inf, math.inf, math.inf, math.inf, 0.0),
        "%/s": (-100.0, 100.0, 0.0, 100.0, 1000.0, math.inf, math.inf, math.inf, math.inf, 0.0),
    }
)


@dataclass(frozen=True, eq=False)
class Bounds:
    """Limits of A channels, float64 [A] each, in the channels' units; what does not limit is infinite.

    The rate of a `position` is its speed; the rate of a `speed` is its value, so that both are held alike.
    """

    names: tuple[str, ...]
    units: tuple[str, ...]
    hz: float
    speeds: np.ndarray  # bool [A]: of kind `speed`
    low: np.ndarray  # of targets, the margin taken off
    high: np.ndarray
    speed: np.ndarray  # of the rate, either way
    gain: np.ndarray  # by how much the rate may change from tick to tick
    step: np.ndarray  # by how much a target may change from tick to tick
    jump: np.ndarray  # of the first target from where the robot is
    lead: np.ndarray  # of a target from where the robot is
    disagree: np.ndarray  # of where the robot is from where it was lately sent
    stuck: np.ndarray  # bool [A]: watched for readings that stay the same


def bounds(channels: Sequence[Channel], safety: Safety, hz: float) -> Bounds:
    """The limits of a robot's channels.

    Raises:
        UserError: limits for a channel that the robot has not, of a unit without defaults, or that contradict.
    """
    names = tuple(channel.name for channel in channels)
    for name in safety.channels:
        if name not in names:
            raise UserError(f"safety.channels.{name}: the robot has no such channel{suggest(name, names)}")
    table = np.array([_row(channel, safety) for channel in channels], np.float64).reshape(-1, len(FIELDS)).T
    of = dict(zip(FIELDS, table, strict=True))
    speeds = np.array([channel.kind == "speed" for channel in channels], bool)
    low, high = of["low"] + of["margin"], of["high"] - of["margin"]
    return Bounds(
        names,
        tuple(channel.unit for channel in channels),
        float(hz),
        speeds,
        low,
        high,
        np.where(speeds, of["speed"], np.minimum(of["speed"], of["step"] * hz)),
        np.where(speeds, np.minimum(of["acceleration"] / hz, of["step"]), of["acceleration"] / hz),
        of["step"],
        np.where(speeds, math.inf, of["jump"]),
        np.where(speeds, math.inf, of["lead"]),
        np.where(speeds, math.inf, of["disagree"]),
        ~speeds & (of["stuck"] > 0),
    )


def _row(channel: Channel, safety: Safety) -> list[float]:
    """A channel's limits in FIELDS' order, checked."""
    own = safety.channels.get(channel.name)
    values = dict(zip(FIELDS, DEFAULTS.get(channel.unit, (math.nan,) * len(FIELDS)), strict=True))
    if channel.unit not in DEFAULTS:
        values |= dict.fromkeys(("step", "jump", "lead", "disagree"), math.inf) | {"margin": 0.0, "stuck": 1.0}
    for limits in (safety.default, *([own] if own else [])):
        values |= _said(limits)
    where = f"safety.channels.{channel.name}"
    missing = [name for name, value in values.items() if math.isnan(value)]
    if missing:
        raise UserError(f"{where}: {', '.join(missing)} must be given: the unit {channel.unit!r} has no defaults")
    if not values["low"] + values["margin"] < values["high"] - values["margin"]:
        raise UserError(f"{where}: low {values['low']:g} and high {values['high']:g} leave no room between the margins")
    if channel.kind == "speed" and not values["low"] + values["margin"] <= 0 <= values["high"] - values["margin"]:
        raise UserError(f"{where}: low to high must hold 0: a speed is stopped by sending 0")
    if math.inf > values["lead"] >= values["disagree"]:
        raise UserError(
            f"{where}: disagree {values['disagree']:g} must be more than lead {values['lead']:g}: within the lead "
            "a robot is only behind, not astray"
        )
    return [values[name] for name in FIELDS]


def _said(limits: ChannelLimits) -> dict[str, float]:
    """What a section says itself; null: no limit."""
    said = ((name, getattr(limits, name)) for name in FIELDS if name in limits.model_fields_set)
    return {name: math.inf if value is None else float(value) for name, value in said}
