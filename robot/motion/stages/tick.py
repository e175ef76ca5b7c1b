"""What a stage is given, what it gives back, and the arithmetic of braking."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from robot.motion.stages.bounds import Bounds

_EPS = 4 * float(np.finfo(np.float32).eps)  # targets are float32: less than this share is rounding


def between(low: np.ndarray, values: np.ndarray, high: np.ndarray) -> np.ndarray:
    """As `np.clip`, in a fifth of its time for a handful of numbers."""
    return np.minimum(np.maximum(values, low), high)


@dataclass(frozen=True, eq=False)
class Tick:
    """One tick before anything is sent. Arrays are float64 [A], in the channels' units."""

    bounds: Bounds
    asked: np.ndarray | None  # None: nothing due, or of no use
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
        return between(self.low, self.asked, self.high)

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
class Found:
    """What a stage objects to, in one line, and the target float64 [A] that it would let pass (for `clip`)."""

    cause: str
    within: np.ndarray | None = None


# (this tick, the target float64 [A] that the stages before let pass: None where nothing is asked) -> an objection
Look = Callable[[Tick, np.ndarray | None], Found | None]


def worst(tick: Tick, excess: np.ndarray) -> int:
    """The channel that exceeds most, measured by the span of its limits."""
    return int(np.argmax(excess / (tick.bounds.high - tick.bounds.low)))


def others(excess: np.ndarray) -> str:
    """' and 2 more': how many further channels exceed."""
    more = int(np.count_nonzero(excess > 0)) - 1
    return f" and {more} more" if more > 0 else ""
