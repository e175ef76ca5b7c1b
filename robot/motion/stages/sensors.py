"""Stages that look at what the robot tells of itself: is it fresh, does it move as it is sent, is it well."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from robot.motion.body import Sensed
from robot.motion.stages.asked import read
from robot.motion.stages.tick import Found, Look, Tick, others, worst

if TYPE_CHECKING:
    from robot.motion.limits import Health

_PLAUSIBLE = 0.2  # of the lead: a servo that is sent this far and does not move at all has no friction but a fault


def measured_of(sensed: Sensed, names: Sequence[str]) -> tuple[np.ndarray, str]:
    """Where the robot is, float64 [A], NaN where it does not say; and what of the reading is of no use, or ''."""
    values, state = sensed.measured, sensed.state
    where, problem = read(values, names)
    if where is None:
        usable = isinstance(values, np.ndarray) and values.dtype.kind in "fiu" and values.shape == (len(names),)
        where = np.where(np.isfinite(values), values, np.nan) if usable else np.full(len(names), np.nan)
    if not (isinstance(state, np.ndarray) and state.dtype.kind in "fiu" and np.isfinite(state).all()):
        problem = problem or "not finite: the state"
    return where.astype(np.float64), problem


def reading(tick: Tick, target: np.ndarray | None) -> Found | None:
    """The reading is numbers, one for each channel."""
    return Found(f"the reading is {tick.unread}") if tick.unread else None


def age(age_s: float) -> Look:
    """The reading is not older than `age_s`."""

    def look(tick: Tick, target: np.ndarray | None) -> Found | None:
        if tick.reading_age <= age_s:
            return None
        return Found(f"the reading is {tick.reading_age:.3f} s old, limit {age_s:g} s")

    return look


def _unmoved(tick: Tick, ticks: int, lead: np.ndarray) -> np.ndarray:
    """bool [A]: the reading stayed the same to the bit while the target went far enough to move the channel."""
    return (tick.still >= ticks) & (tick.moved > _PLAUSIBLE * lead)


def _all_still(tick: Tick, ticks: int) -> bool:
    return bool((tick.still[~tick.bounds.speeds] >= ticks).all())


def frozen(ticks: int) -> Look:
    """The readings of a robot that is sent to move are not all the same for `ticks` ticks (a bus that repeats)."""

    def look(tick: Tick, target: np.ndarray | None) -> Found | None:
        if not _unmoved(tick, ticks, tick.bounds.lead).any() or not _all_still(tick, ticks):
            return None
        i = worst(tick, np.where(np.isfinite(tick.bounds.lead), tick.moved, 0))
        name, unit = tick.bounds.names[i], tick.bounds.units[i]
        return Found(
            f"all readings are the same for {int(tick.still[i])} ticks while {name} was sent {tick.moved[i]:.4g} {unit}"
        )

    return look


def stuck(ticks: int) -> Look:
    """The reading of a channel that is sent to move is not the same for `ticks` ticks (encoder, gear, obstacle).

    Where all readings are, `frozen` objects, if it can tell: a bus that repeats itself says nothing of one joint.
    """

    def look(tick: Tick, target: np.ndarray | None) -> Found | None:
        bounds = tick.bounds
        lead = np.where(np.isfinite(bounds.lead), bounds.lead, (bounds.high - bounds.low) / 2)
        held = _unmoved(tick, ticks, lead) & bounds.stuck
        if not held.any() or (_unmoved(tick, ticks, bounds.lead).any() and _all_still(tick, ticks)):
            return None
        i = worst(tick, np.where(held, tick.moved, 0))
        name, unit = tick.bounds.names[i], tick.bounds.units[i]
        return Found(
            f"{name} reads the same for {int(tick.still[i])} ticks while it was sent {tick.moved[i]:.4g} {unit}"
            f"{others(held)}"
        )

    return look


def disagree(ticks: int) -> Look:
    """The robot is not for `ticks` ticks far from everywhere it was lately sent (it falls, is pushed, or misread)."""

    def look(tick: Tick, target: np.ndarray | None) -> Found | None:
        astray = tick.astray >= ticks
        if not astray.any():
            return None
        i = worst(tick, np.where(astray, tick.off, 0))
        name, unit = tick.bounds.names[i], tick.bounds.units[i]
        return Found(
            f"{name} is {tick.off[i]:.4g} {unit} from where it was sent, limit {tick.bounds.disagree[i]:.4g}"
            f"{others(astray)}"
        )

    return look


def health(limits: Mapping[str, Health]) -> Look:
    """Every number of the servos' health is within its limits; a number's limits go by what follows its last dot."""

    def look(tick: Tick, target: np.ndarray | None) -> Found | None:
        for name, value in tick.health.items():
            limit = limits.get(name.rpartition(".")[2])
            low, high = (limit.low, limit.high) if limit else (None, None)
            if value < (-math.inf if low is None else low):
                return Found(f"{name} {value:.4g}, limit {low:g}")
            if value > (math.inf if high is None else high):
                return Found(f"{name} {value:.4g}, limit {high:g}")
        return None

    return look
