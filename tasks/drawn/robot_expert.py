"""A script that picks and places, with noise: what the hand is told to do, at every step of control.

It knows where the objects are when it starts a move and nothing later. Whether a grasp holds is for the physics to say.
"""

from __future__ import annotations

import math

import numpy as np

from tasks.drawn.robot_model import BASE, CONTROL, OPEN

CARRY = 0.2  # metres: height of the grip while it travels
SHUT = 0.0
STRAY, CALM = 0.004, 0.3  # metres that the hand strays from its path, and the seconds that takes to change
MISS = 0.003  # metres by which it misses the object's middle

Pose = tuple[float, float, float, float]  # x, y, z in metres, angle of the fingers in radians


def commands(rng: np.random.Generator, start: Pose, source: Pose, goal: Pose) -> np.ndarray:
    """float [n, 5]: pose and half opening of the hand in steps of CONTROL seconds, for one object.

    From `start` over `source`, down, shut, up, over `goal`, down, open and up again.
    """
    source = (*rng.normal(source[:2], MISS), source[2], source[3])
    above, over = (*source[:2], CARRY, source[3]), (*goal[:2], CARRY, goal[3])
    pace = rng.uniform(0.8, 1.35)
    path = [
        _still(start, OPEN, rng.uniform(0.05, 0.4)),
        _go(start, above, OPEN, pace),
        _go(above, source, OPEN, pace),
        _still(source, SHUT, rng.uniform(0.35, 0.6)),
        _go(source, above, SHUT, pace),
        _go(above, over, SHUT, pace),
        _go(over, goal, SHUT, pace),
        _still(goal, SHUT, 0.1),
        _still(goal, OPEN, rng.uniform(0.25, 0.4)),
        _go(goal, over, OPEN, pace),
    ]
    told = np.concatenate(path)
    told[:, :3] += _stray(rng, len(told))
    return told


def fingers_along(x: float, y: float, turn: float | None) -> float:
    """The angle along which the fingers open at a place: across a cube turned by `turn`, or across the arm."""
    across = math.atan2(y, x - BASE) + math.pi / 2
    if turn is None:
        return across
    return across + (turn - across + math.pi / 4) % (math.pi / 2) - math.pi / 4


def _go(start: Pose, end: Pose, opening: float, pace: float) -> np.ndarray:
    """A smooth way (minimum jerk) between two poses."""
    a, b = np.array(start), np.array(end)
    n = max(2, round((0.25 + np.linalg.norm(b[:3] - a[:3]) / 0.4) / pace / CONTROL))
    t = (np.arange(n) + 1)[:, None] / n
    way = a + (b - a) * (10 * t**3 - 15 * t**4 + 6 * t**5)
    return np.column_stack([way, np.full(n, opening)])


def _still(pose: Pose, opening: float, seconds: float) -> np.ndarray:
    return np.tile([*pose, opening], (max(1, round(seconds / CONTROL)), 1))


def _stray(rng: np.random.Generator, n: int) -> np.ndarray:
    """metres [n, 3]: smooth noise, a line through random points; none at the beginning, little in height."""
    knots = np.arange(0, n * CONTROL + CALM, CALM)
    points = rng.normal(0, STRAY / 2, (len(knots), 3)).clip(-STRAY, STRAY) * (1, 1, 0.5)
    points[0] = points[-1] = 0
    times = np.arange(n) * CONTROL
    return np.stack([np.interp(times, knots, column) for column in points.T], axis=1)
