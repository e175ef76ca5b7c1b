"""A script that does the jobs of `robot.tabletop`. It has no memory: it goes on from any state, also after noise."""

from __future__ import annotations

import numpy as np

from robot.tabletop_model import CUBE, OPEN

GAIN = 6.0  # 1/s: speed asked for per metre to go
TRAVEL, LOW = 0.09, 0.022  # metres: height of the hand on its way, and at work
BEHIND = 0.052  # metres from the cube's middle at which the hand comes down to push
SLACK = 0.012  # metres by which it may stand beside its line


def expert(job: str, state: np.ndarray) -> np.ndarray:
    """The control float32 [A] that goes on with the job, not yet within limits, from a state float32 [12]."""
    hand, opening, cube, goal = state[:3], state[3], state[4:7], state[9:12]
    if job in ("reach", "touch"):
        return _towards(hand, goal)
    if job == "push":
        return _towards(hand, _push(hand, cube, goal))
    return _pick(hand, opening, cube, goal)


def _towards(hand: np.ndarray, spot: np.ndarray) -> np.ndarray:
    return (GAIN * (spot - hand)).astype(np.float32)


def _push(hand: np.ndarray, cube: np.ndarray, goal: np.ndarray) -> np.ndarray:
    """Where the hand should go: over to behind the cube, down, and on."""
    way = (goal - cube)[:2]
    way = way / max(float(np.linalg.norm(way)), 1e-6)
    away = (hand - cube)[:2]
    along, beside = float(away @ way), float(abs(away[0] * way[1] - away[1] * way[0]))
    low = hand[2] < LOW + SLACK
    if low and along < 0 and beside < 1.5 * SLACK:
        return np.array([*(cube[:2] + 0.02 * way), LOW])  # through the cube
    behind = cube[:2] - BEHIND * way
    if np.linalg.norm(hand[:2] - behind) < SLACK:
        return np.array([*behind, LOW])
    if hand[2] < TRAVEL - SLACK:
        return np.array([*hand[:2], TRAVEL + SLACK])
    return np.array([*behind, TRAVEL])


def _pick(hand: np.ndarray, opening: float, cube: np.ndarray, goal: np.ndarray) -> np.ndarray:
    off = float(np.linalg.norm((hand - cube)[:2]))
    held = off < 1.5 * SLACK and abs(hand[2] - cube[2]) < 1.5 * SLACK
    if held:
        spot = hand + (goal - cube) if opening < CUBE + 0.003 else cube
        return np.append(_towards(hand, spot), np.float32(0.0))
    height = LOW if off < SLACK else max(TRAVEL, float(cube[2]) + 0.06)
    spot = hand.copy() if off >= SLACK and hand[2] < TRAVEL - SLACK else cube.copy()
    spot[2] = height
    return np.append(_towards(hand, spot), np.float32(OPEN))
