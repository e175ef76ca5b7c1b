"""Stages that look at the action itself: is it one, is it fresh, does it begin near the robot."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from robot.motion.stages.tick import Found, Tick, others, worst


def read(asked: object, names: Sequence[str]) -> tuple[np.ndarray | None, str]:
    """An action of unknown making -> float64 [A] and '', or None and why it is of no use. Never raises."""
    if not isinstance(asked, np.ndarray) or asked.dtype.kind not in "fiu":
        return None, f"not an array of numbers but {type(asked).__name__} {getattr(asked, 'dtype', '')}".rstrip()
    if asked.shape != (len(names),):
        return None, f"of shape {asked.shape}, not {(len(names),)}"
    with np.errstate(over="ignore"):  # beyond float32 is infinite
        values = asked.astype(np.float32).astype(np.float64)
    bad = [f"{name} {value}" for name, value in zip(names, values, strict=True) if not np.isfinite(value)]
    return (None, f"not finite: {', '.join(bad)}") if bad else (values, "")


def finite(tick: Tick, target: np.ndarray | None) -> Found | None:
    """The action is numbers, one for each channel, none of them NaN or infinite."""
    return Found(f"the action is {tick.problem}") if tick.problem else None


def stale(hold_s: float):
    """An action is due, and the observation that led to it is not older than `hold_s`."""

    def look(tick: Tick, target: np.ndarray | None) -> Found | None:
        if tick.problem:
            return None
        if tick.asked is None:
            return Found("no action is due")
        if not tick.age <= hold_s:  # an age that is not a number is no age
            return Found(f"the action answers an observation of {tick.age:.3f} s ago, limit {hold_s:g} s")
        return None

    return look


def jump(tick: Tick, target: np.ndarray | None) -> Found | None:
    """The first action leads no further than `jump` from where the robot is; clip: goes there at the limits."""
    if not tick.first or target is None:
        return None
    where = np.where(np.isfinite(tick.measured), tick.measured, tick.at)
    excess = np.abs(target - where) - tick.bounds.jump
    if (excess <= 0).all():
        return None
    i, bounds = worst(tick, excess), tick.bounds
    return Found(
        f"{bounds.names[i]}: first target {target[i]:.4g} {bounds.units[i]} is {abs(target[i] - where[i]):.4g} from "
        f"the robot, limit {bounds.jump[i]:.4g}{others(excess)}",
        target,
    )
