"""Stages that hold a target to the channels' limits: where, how far, how fast, how suddenly, how far ahead."""

from __future__ import annotations

import numpy as np

from robot.motion.stages.tick import Found, Tick, between, others, worst


def _found(
    tick: Tick, target: np.ndarray, within: np.ndarray, says: str, value: np.ndarray, limit: np.ndarray
) -> Found | None:
    """An objection where the two targets differ by more than rounding: `says` with channel, value, limit."""
    excess = np.abs(target - within) - tick.tolerance
    if (excess <= 0).all():
        return None
    i = worst(tick, excess)
    name, unit = tick.bounds.names[i], tick.bounds.units[i]
    return Found(f"{name}: {says.format(value=value[i], limit=limit[i], unit=unit)}{others(excess)}", within)


def position(tick: Tick, target: np.ndarray | None) -> Found | None:
    """The target lies between the channel's limits, the margin taken off."""
    if target is None:
        return None
    within = between(tick.low, target, tick.high)
    limit = np.where(target > within, tick.high, tick.low)
    return _found(tick, target, within, "target {value:.4g} {unit}, limit {limit:.4g}", target, limit)


def step(tick: Tick, target: np.ndarray | None) -> Found | None:
    """The target changes by no more than `step` from the last one."""
    if target is None:
        return None
    change, limit = target - tick.at, tick.bounds.step
    within = tick.at + between(-limit, change, limit)
    return _found(tick, target, within, "changes by {value:.4g} {unit} in a tick, limit {limit:.4g}", change, limit)


def speed(tick: Tick, target: np.ndarray | None) -> Found | None:
    """The target goes no faster than `speed`."""
    if target is None:
        return None
    rate, limit = tick.rate_to(target), tick.bounds.speed
    within = tick.target(between(-limit, rate, limit))
    return _found(tick, target, within, "{value:.4g} {unit}/s, limit {limit:.4g}", rate, limit)


def acceleration(tick: Tick, target: np.ndarray | None) -> Found | None:
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
    return _found(tick, target, within, says, change, limit)


def lead(tick: Tick, target: np.ndarray | None) -> Found | None:
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
    return _found(
        tick, target, within, "target would get {value:.4g} {unit} ahead of the robot, limit {limit:.4g}", ahead, limit
    )
