"""The checks that each command passes before it reaches the motors, in their order."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from robot.types import REACTIONS, Channel, Reaction, RobotState
from vlrl.types import UserError, suggest

if TYPE_CHECKING:
    from robot.safety.limits import ChannelLimits, Health, Safety


# What each channel is held to, as arrays: the config's limits over defaults that go by the channel's unit.

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
        values |= _read_section(limits)
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


def _read_section(limits: ChannelLimits) -> dict[str, float]:
    """What a section says itself; null: no limit."""
    values = {name: value for name, value in limits if name in FIELDS and name in limits.model_fields_set}
    return {name: math.inf if value is None else float(value) for name, value in values.items()}


# What a stage is given, what it gives back, and the arithmetic of braking.

_EPS = 4 * float(np.finfo(np.float32).eps)  # targets are float32: less than this share is rounding


def between(low: np.ndarray, values: np.ndarray, high: np.ndarray) -> np.ndarray:
    """As `np.clip`, in a fifth of its time for a handful of numbers."""
    return np.minimum(np.maximum(values, low), high)


@dataclass(frozen=True, eq=False)
class Tick:
    """One tick before anything is sent. Arrays are float64 [A], in the channels' units."""

    bounds: Bounds
    requested: np.ndarray | None  # None: nothing due, or of no use
    problem: str  # why what was asked is of no use; ''
    age: float  # seconds from the observation that led to it
    at: np.ndarray  # the last target that was sent
    rate: np.ndarray  # how fast it went there: of a `speed` its value
    goal_before: np.ndarray | None  # where the last tick led to; None after a hold
    first: bool  # nothing was carried out since the start, a hold or a stop
    measured: np.ndarray  # where the robot is; NaN where it does not say
    unread: str  # what of the reading is of no use; ''
    reading_age: float  # seconds
    still: np.ndarray  # int [A]: readings in a row that were the same
    moved: np.ndarray  # by how much the target went meanwhile
    astray: np.ndarray  # int [A]: ticks in a row that the robot was far from where it was sent
    off: np.ndarray  # by how much it is now
    health: Mapping[str, float]

    @cached_property
    def low(self) -> np.ndarray:
        """Of the next target: a robot that starts outside its limits may stay or come in, not go further out."""
        return np.where(self.bounds.speeds, self.bounds.low, np.minimum(self.bounds.low, self.at))

    @cached_property
    def high(self) -> np.ndarray:
        return np.where(self.bounds.speeds, self.bounds.high, np.maximum(self.bounds.high, self.at))

    @cached_property
    def goal(self) -> np.ndarray:
        """What is asked, within the limits of position."""
        return between(self.low, self.requested, self.high)

    @cached_property
    def tolerance(self) -> np.ndarray:
        return _EPS * (np.abs(self.at) + np.abs(self.bounds.high) + np.abs(self.bounds.low))

    def rate_to(self, target: np.ndarray) -> np.ndarray:
        return np.where(self.bounds.speeds, target, (target - self.at) * self.bounds.hz)

    def target(self, rate: np.ndarray) -> np.ndarray:
        return np.where(self.bounds.speeds, rate, self.at + rate / self.bounds.hz)

    def braked(self, room: np.ndarray) -> np.ndarray:
        """The fastest rate, signed as the room, from which a stop within that room is still possible.

        The rate falls by `gain` a tick, so from x gains the way is x + (x - 1) + ... gains a tick; solved for x.
        """
        gain = self.bounds.gain
        ticks = np.abs(room) * self.bounds.hz / gain
        whole = np.floor((np.sqrt(1 + 8 * ticks) - 1) / 2)
        return np.sign(room) * gain * (ticks + whole * (whole + 1) / 2) / (whole + 1)

    def stopping(self, rate: np.ndarray) -> np.ndarray:
        """Where a target comes to rest that goes at this rate for a tick and then brakes."""
        gain = self.bounds.gain
        size = np.abs(rate) / gain
        whole = np.floor(size)
        way = np.sign(rate) * gain * ((whole + 1) * size - whole * (whole + 1) / 2) / self.bounds.hz
        return np.where(self.bounds.speeds, 0.0, self.at + way)

    def allowed(self, rate: np.ndarray) -> np.ndarray:
        """The nearest rate within speed and acceleration from which the limits of position can be kept."""
        bounds = self.bounds
        rate = between(-bounds.speed, rate, bounds.speed)
        rate = between(self.rate - bounds.gain, rate, self.rate + bounds.gain)
        low, high = self._fastest
        return between(np.where(bounds.speeds, bounds.low, low), rate, np.where(bounds.speeds, bounds.high, high))

    @cached_property
    def _fastest(self) -> tuple[np.ndarray, np.ndarray]:
        """The rates from which the limits of position can be kept."""
        return self.braked(self.low - self.at), self.braked(self.high - self.at)

    def rest(self) -> np.ndarray:
        """The rate of a hold: slower by one gain, until 0."""
        return np.sign(self.rate) * np.maximum(np.abs(self.rate) - self.bounds.gain, 0)


@dataclass(frozen=True, eq=False)
class Objection:
    """What a stage objects to, in one line, and the target float64 [A] that it would let pass (for `clip`)."""

    cause: str
    within: np.ndarray | None = None


# (this tick, the target float64 [A] that the stages before let pass: None where nothing is asked) -> an objection
Look = Callable[[Tick, np.ndarray | None], Objection | None]


def worst(tick: Tick, excess: np.ndarray) -> int:
    """The channel that exceeds most, measured by the span of its limits."""
    return int(np.argmax(excess / (tick.bounds.high - tick.bounds.low)))


def others(excess: np.ndarray) -> str:
    """' and 2 more': how many further channels exceed."""
    more = int(np.count_nonzero(excess > 0)) - 1
    return f" and {more} more" if more > 0 else ""


# Stages that look at the action itself: is it one, is it fresh, does it begin near the robot.


def read_request(requested: object, names: Sequence[str]) -> tuple[np.ndarray | None, str]:
    """An action of unknown making -> float64 [A] and '', or None and why it is of no use. Never raises."""
    if not isinstance(requested, np.ndarray) or requested.dtype.kind not in "fiu":
        kind = f" {requested.dtype}" if isinstance(requested, np.ndarray | np.generic) else ""
        return None, f"not an array of numbers but {type(requested).__name__}{kind}"
    if requested.shape != (len(names),):
        return None, f"of shape {requested.shape}, not {(len(names),)}"
    with np.errstate(over="ignore"):  # beyond float32 is infinite
        values = requested.astype(np.float32).astype(np.float64)
    bad = [f"{name} {value}" for name, value in zip(names, values, strict=True) if not np.isfinite(value)]
    return (None, f"not finite: {', '.join(bad)}") if bad else (values, "")


def finite(tick: Tick, target: np.ndarray | None) -> Objection | None:
    """The action is numbers, one for each channel, none of them NaN or infinite."""
    return Objection(f"the action is {tick.problem}") if tick.problem else None


def stale(hold_s: float):
    """An action is due, and the observation that led to it is not older than `hold_s`."""

    def look(tick: Tick, target: np.ndarray | None) -> Objection | None:
        if tick.problem:
            return None
        if tick.requested is None:
            return Objection("no action is due")
        if not tick.age <= hold_s:  # an age that is not a number is no age
            return Objection(f"the action answers an observation of {tick.age:.3f} s ago, limit {hold_s:g} s")
        return None

    return look


def jump(tick: Tick, target: np.ndarray | None) -> Objection | None:
    """The first action leads no further than `jump` from where the robot is; clip: goes there at the limits."""
    if not tick.first or target is None:
        return None
    where = np.where(np.isfinite(tick.measured), tick.measured, tick.at)
    excess = np.abs(target - where) - tick.bounds.jump
    if (excess <= 0).all():
        return None
    i, bounds = worst(tick, excess), tick.bounds
    return Objection(
        f"{bounds.names[i]}: first target {target[i]:.4g} {bounds.units[i]} is {abs(target[i] - where[i]):.4g} from "
        f"the robot, limit {bounds.jump[i]:.4g}{others(excess)}",
        target,
    )


# What the sensors' stages remember of the ticks before: what was sent, what was read.


class History:
    """Counts, channel by channel, ticks with the same reading and ticks far from where the robot was sent.

    Args:
        lag_s: how long a servo may take to where it was sent, seconds.
    """

    def __init__(self, bounds: Bounds, lag_s: float):
        self._bounds, self._sent = bounds, deque(maxlen=math.ceil(lag_s * bounds.hz) + 1)
        self.clear()

    def clear(self) -> None:
        count = len(self._bounds.names)
        self._sent.clear()
        self._measured = np.full(count, np.nan)
        self.still, self.moved = np.zeros(count, int), np.zeros(count)
        self.astray, self.off = np.zeros(count, int), np.zeros(count)

    def add(self, measured: np.ndarray, at: np.ndarray) -> None:
        """One tick: where the robot is, NaN where it does not say, and the target that was sent before."""
        same = (measured == self._measured) & ~self._bounds.speeds
        self.still = np.where(same, self.still + 1, 0)
        self.moved = np.where(same, self.moved + np.abs(at - (self._sent[-1] if self._sent else at)), 0)
        self._measured = measured
        self._sent.append(at)
        sent = np.array(self._sent)
        known = np.where(np.isfinite(measured), measured, at)
        self.off = np.maximum(0, np.maximum(sent.min(0) - known, known - sent.max(0)))
        self.astray = np.where(self.off > self._bounds.disagree, self.astray + 1, 0)


# Stages that hold a target to the channels' limits: where, how far, how fast, how suddenly, how far ahead.


def _compare_targets(
    tick: Tick, target: np.ndarray, within: np.ndarray, says: str, value: np.ndarray, limit: np.ndarray
) -> Objection | None:
    """An objection where the two targets differ by more than rounding: `says` with channel, value, limit."""
    excess = np.abs(target - within) - tick.tolerance
    if (excess <= 0).all():
        return None
    i = worst(tick, excess)
    name, unit = tick.bounds.names[i], tick.bounds.units[i]
    return Objection(f"{name}: {says.format(value=value[i], limit=limit[i], unit=unit)}{others(excess)}", within)


def position(tick: Tick, target: np.ndarray | None) -> Objection | None:
    """The target lies between the channel's limits, the margin taken off."""
    if target is None:
        return None
    within = between(tick.low, target, tick.high)
    limit = np.where(target > within, tick.high, tick.low)
    return _compare_targets(tick, target, within, "target {value:.4g} {unit}, limit {limit:.4g}", target, limit)


def step(tick: Tick, target: np.ndarray | None) -> Objection | None:
    """The target changes by no more than `step` from the last one."""
    if target is None:
        return None
    change, limit = target - tick.at, tick.bounds.step
    within = tick.at + between(-limit, change, limit)
    return _compare_targets(
        tick, target, within, "changes by {value:.4g} {unit} in a tick, limit {limit:.4g}", change, limit
    )


def speed(tick: Tick, target: np.ndarray | None) -> Objection | None:
    """The target goes no faster than `speed`."""
    if target is None:
        return None
    rate, limit = tick.rate_to(target), tick.bounds.speed
    within = tick.target(between(-limit, rate, limit))
    return _compare_targets(tick, target, within, "{value:.4g} {unit}/s, limit {limit:.4g}", rate, limit)


def acceleration(tick: Tick, target: np.ndarray | None) -> Objection | None:
    """The target's speed changes by no more than `acceleration`, and it can stop before the limits of position.

    A target that was held back goes on as fast as what is asked does, and makes up the rest as fast as it can still
    brake: it arrives without swinging past.
    """
    if target is None:
        return None
    goal, before = tick.goal, tick.goal_before
    ahead = np.zeros_like(goal) if before is None else (goal - before) * tick.bounds.hz
    behind = (goal if before is None else before) - tick.at
    rate = np.where(tick.bounds.speeds, goal, ahead + tick.braked(behind))
    within = tick.target(tick.allowed(rate))
    change = (tick.rate_to(target) - tick.rate) * tick.bounds.hz
    limit = tick.bounds.gain * tick.bounds.hz
    says = "speed changes by {value:.4g} {unit} in s^2, limit {limit:.4g}, or could not stop in time"
    return _compare_targets(tick, target, within, says, change, limit)


def lead(tick: Tick, target: np.ndarray | None) -> Objection | None:
    """The target is no further than `lead` ahead of where the robot is, and can stop before it would be.

    Where the robot itself went further away, the target waits: it never moves because a reading did.
    """
    if target is None or not np.isfinite(tick.measured).any():
        return None
    limit = tick.bounds.lead
    near = np.isfinite(tick.measured) & np.isfinite(limit)
    behind, reach = np.where(near, tick.measured - tick.at, 0), np.where(near, limit, 0)
    rate = tick.rate_to(target)
    back, forth = np.minimum(behind - reach, 0), np.maximum(behind + reach, 0)
    slowed = between(tick.braked(back), rate, tick.braked(forth))
    within = tick.target(np.where(near, tick.allowed(slowed), rate))
    ahead = target - tick.measured
    return _compare_targets(
        tick, target, within, "target would get {value:.4g} {unit} ahead of the robot, limit {limit:.4g}", ahead, limit
    )


# Stages that look at what the robot tells of itself: is it fresh, does it move as it is sent, is it well.

_PLAUSIBLE = 0.2  # of the lead: a servo that is sent this far and does not move at all has no friction but a fault


def measured_of(sensed: RobotState, names: Sequence[str]) -> tuple[np.ndarray, str]:
    """Where the robot is, float64 [A], NaN where it does not say; and what of the reading is of no use, or ''."""
    values, state = sensed.measured, sensed.state
    where, problem = read_request(values, names)
    if where is None:
        usable = isinstance(values, np.ndarray) and values.dtype.kind in "fiu" and values.shape == (len(names),)
        where = np.where(np.isfinite(values), values, np.nan) if usable else np.full(len(names), np.nan)
    if not (isinstance(state, np.ndarray) and state.dtype.kind in "fiu" and np.isfinite(state).all()):
        problem = problem or "not finite: the state"
    return where.astype(np.float64), problem


def reading(tick: Tick, target: np.ndarray | None) -> Objection | None:
    """The reading is numbers, one for each channel."""
    return Objection(f"the reading is {tick.unread}") if tick.unread else None


def age(age_s: float) -> Look:
    """The reading is not older than `age_s`."""

    def look(tick: Tick, target: np.ndarray | None) -> Objection | None:
        if tick.reading_age <= age_s:
            return None
        return Objection(f"the reading is {tick.reading_age:.3f} s old, limit {age_s:g} s")

    return look


def _unmoved(tick: Tick, ticks: int, lead: np.ndarray) -> np.ndarray:
    """bool [A]: the reading stayed the same to the bit while the target went far enough to move the channel."""
    return (tick.still >= ticks) & (tick.moved > _PLAUSIBLE * lead)


def _all_still(tick: Tick, ticks: int) -> bool:
    return bool((tick.still[~tick.bounds.speeds] >= ticks).all())


def frozen(ticks: int) -> Look:
    """The readings of a robot that is sent to move are not all the same for `ticks` ticks (a bus that repeats)."""

    def look(tick: Tick, target: np.ndarray | None) -> Objection | None:
        if not _unmoved(tick, ticks, tick.bounds.lead).any() or not _all_still(tick, ticks):
            return None
        i = worst(tick, np.where(np.isfinite(tick.bounds.lead), tick.moved, 0))
        name, unit = tick.bounds.names[i], tick.bounds.units[i]
        return Objection(
            f"all readings are the same for {int(tick.still[i])} ticks while {name} was sent {tick.moved[i]:.4g} {unit}"
        )

    return look


def stuck(ticks: int) -> Look:
    """The reading of a channel that is sent to move is not the same for `ticks` ticks (encoder, gear, obstacle).

    Where all readings are, `frozen` objects, if it can tell: a bus that repeats itself says nothing of one joint.
    """

    def look(tick: Tick, target: np.ndarray | None) -> Objection | None:
        bounds = tick.bounds
        lead = np.where(np.isfinite(bounds.lead), bounds.lead, (bounds.high - bounds.low) / 2)
        held = _unmoved(tick, ticks, lead) & bounds.stuck
        if not held.any() or (_unmoved(tick, ticks, bounds.lead).any() and _all_still(tick, ticks)):
            return None
        i = worst(tick, np.where(held, tick.moved, 0))
        name, unit = tick.bounds.names[i], tick.bounds.units[i]
        return Objection(
            f"{name} reads the same for {int(tick.still[i])} ticks while it was sent {tick.moved[i]:.4g} {unit}"
            f"{others(held)}"
        )

    return look


def disagree(ticks: int) -> Look:
    """The robot is not for `ticks` ticks far from everywhere it was lately sent (it falls, is pushed, or misread)."""

    def look(tick: Tick, target: np.ndarray | None) -> Objection | None:
        astray = tick.astray >= ticks
        if not astray.any():
            return None
        i = worst(tick, np.where(astray, tick.off, 0))
        name, unit = tick.bounds.names[i], tick.bounds.units[i]
        return Objection(
            f"{name} is {tick.off[i]:.4g} {unit} from where it was sent, limit {tick.bounds.disagree[i]:.4g}"
            f"{others(astray)}"
        )

    return look


def health(limits: Mapping[str, Health]) -> Look:
    """Every number of the servos' health is within its limits; a number's limits go by what follows its last dot."""

    def look(tick: Tick, target: np.ndarray | None) -> Objection | None:
        for name, value in tick.health.items():
            limit = limits.get(name.rpartition(".")[2])
            low, high = (limit.low, limit.high) if limit else (None, None)
            if value < (-math.inf if low is None else low):
                return Objection(f"{name} {value:.4g}, limit {low:g}")
            if value > (math.inf if high is None else high):
                return Objection(f"{name} {value:.4g}, limit {high:g}")
        return None

    return look


# The last target and how fast it went there: what the next one is measured against.


class Sent:
    """`at` float64 [A], None while nobody knows where the robot is; `rate` float64 [A], of a `speed` its value."""

    def __init__(self, bounds: Bounds):
        self._bounds, self.at = bounds, None
        self.rate = np.zeros(len(bounds.names))
        self._low, self._high = _inside(bounds.low, bounds.high)
        self._verdict: np.ndarray | None = None  # float32 [A]
        self._before: np.ndarray | None = None  # the last target but one
        self._fresh = True

    def begin(self) -> None:
        """The robot may have been moved by hand since."""
        self._fresh = True

    def settle(self, measured: np.ndarray, last: object) -> None:
        """Takes over what the robot was really sent, where that is not what the governor chose.

        At a beginning a last target that is further than `jump` from where the robot is says nothing any more; nor
        does any without `last`.
        """
        bounds = self._bounds
        sent = None if last is None else read_request(last, bounds.names)[0]
        rest = np.where(bounds.speeds, 0, measured)
        if sent is not None and (self._verdict is None or (sent != self._verdict).any()):
            moved = 0 if self._before is None else (sent - self._before) * bounds.hz
            self.rate = np.where(bounds.speeds, sent, moved).clip(-bounds.speed, bounds.speed)
            self.at = sent
        if self.at is None and np.isfinite(rest).all():
            self.at, self.rate = rest, np.zeros_like(rest)
        elif self.at is not None and self._fresh:
            gone = ~bounds.speeds & (np.isfinite(rest) if last is None else np.abs(rest - self.at) > bounds.jump)
            self.at, self.rate = np.where(gone, rest, self.at), np.where(gone, 0, self.rate)
        self._fresh = self._fresh and self.at is None

    def send(self, target: np.ndarray) -> np.ndarray:
        """The next target float64 [A] as float32 [A] within the limits; it is the last one from now on."""
        bounds, at = self._bounds, self.at.astype(np.float32)
        low = np.where(bounds.speeds, self._low, np.minimum(self._low, at))
        high = np.where(bounds.speeds, self._high, np.maximum(self._high, at))
        self._verdict = target.astype(np.float32).clip(low, high)
        sent = self._verdict.astype(np.float64)
        self.rate = np.where(bounds.speeds, sent, (sent - self.at) * bounds.hz)
        self._before, self.at = self.at, sent
        return self._verdict.copy()

    def again(self) -> np.ndarray | None:
        """The last target, float32 [A]; speeds are 0."""
        return None if self.at is None else np.where(self._bounds.speeds, 0, self.at).astype(np.float32)


def _inside(low: np.ndarray, high: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The limits as float32 [A], rounded inwards."""
    lower, upper = low.astype(np.float32), high.astype(np.float32)
    lower = np.where(lower < low, np.nextafter(lower, np.float32(np.inf)), lower)
    return lower, np.where(upper > high, np.nextafter(upper, np.float32(-np.inf)), upper)


# The stage that keeps the robot's parts in their workspace.

_SLACK = 1e-4  # metres: of rounding and of the little that a braking path bends


def workspace(depth: Callable[[np.ndarray], tuple[float, str]]) -> Look:
    """The robot is inside its workspace at the target, and where it would come to rest if it braked from there.

    clip: channels go on one by one as far as that leads no part out, and the others brake. A robot that is outside may
    only move where it is no deeper outside.

    Args:
        depth: how far in metres targets float64 [A] are outside (negative: inside), and what is worst about them.
    """

    def look(tick: Tick, target: np.ndarray | None) -> Objection | None:
        if target is None:
            return None
        allowed = max(0.0, depth(tick.at)[0]) + _SLACK

        def leads_to(rate: np.ndarray) -> tuple[float, str]:
            return max(depth(tick.target(rate)), depth(np.where(tick.bounds.speeds, rate, tick.stopping(rate))))

        requested = tick.rate_to(target)
        deep, cause = leads_to(requested)
        if deep <= allowed:
            return None
        rate = tick.rest()
        for i in np.flatnonzero(~tick.bounds.speeds):
            trial = rate.copy()
            trial[i] = requested[i]
            if leads_to(trial)[0] <= allowed:
                rate = trial
        return Objection(cause, tick.target(np.where(tick.bounds.speeds, requested, rate)))

    return look


# Every stage of the governor, in order. A new one is a function of a `Tick` and a row here.
#
# Reactions: `warn` only says; `clip` brings the target within the limit; `hold` brakes and stays where it is; `stop`
# does so for good, until a person re-arms. The first of a row is the default. What a row leaves out would be harmful
# (a NaN cannot be warned of and sent) or means nothing (an old action cannot be clipped); no stage can be switched off.

Make = Callable[["Safety", Sequence[Channel]], Look | None]  # None: the config asks for no such stage


@dataclass(frozen=True)
class SafetyStage:
    name: str
    reactions: tuple[Reaction, ...]  # that may be chosen, the default first
    make: Make


def _plain(look: Look) -> Make:
    return lambda safety, channels: look


def _workspace(safety: Safety, channels: Sequence[Channel]) -> Look | None:
    from robot.safety.kinematics import Kinematics

    return workspace(Kinematics(safety.workspace, channels).depth) if safety.workspace else None


def _stage(name: str, make: Make) -> SafetyStage:
    return SafetyStage(name, REACTIONS[name], make)


STAGES = (
    _stage("finite", _plain(finite)),
    _stage("stale", lambda safety, _: stale(safety.stale.hold_s)),
    _stage("jump", _plain(jump)),
    _stage("position", _plain(position)),
    _stage("step", _plain(step)),
    _stage("speed", _plain(speed)),
    _stage("acceleration", _plain(acceleration)),
    _stage("lead", _plain(lead)),
    _stage("workspace", _workspace),
    _stage("reading", _plain(reading)),
    _stage("age", lambda safety, _: age(safety.sensor.age_s)),
    _stage("frozen", lambda safety, _: frozen(safety.sensor.same_ticks)),
    _stage("stuck", lambda safety, _: stuck(safety.sensor.same_ticks)),
    _stage("disagree", lambda safety, _: disagree(safety.sensor.disagree_ticks)),
    _stage("health", lambda safety, _: health(safety.health)),
)
