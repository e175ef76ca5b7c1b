"""Scripts that do robosuite's Lift, Stack and PickPlaceCan with a Panda under OSC_POSE or OSC_POSITION.

They have no memory: they go on from any state, also after noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from robot.controls import Controls
from vlrl.types import UserError

GAIN = 2.0  # metres asked for per metre to go: the controller stays behind
OPEN, CLOSE = -1.0, 1.0
NEAR = 0.012  # metres beside its spot at which the hand may go down, close or let go
EMPTY, CLOSING = 0.015, 0.072  # metres between the fingers: below there is nothing; above they have not begun to close
STACKED = 0.045  # metres between the middles of two cubes that lie on each other
BIN = (0.1975, 0.4025)  # metres: the middle of the can's place
CARRY = 1.08  # metres: height of a can above the bins' walls
INSIDE = 0.9  # metres: height at which it may fall into its bin
Goal = tuple[np.ndarray, float]  # where the hand should be, and what its fingers should do


@dataclass(frozen=True)
class View:
    """What a script sees: positions float64 [3] in metres."""

    hand: np.ndarray
    fingers: float  # metres between them
    things: Mapping[str, np.ndarray]

    def beside(self, x: float, y: float, z: float) -> np.ndarray:
        """The spot so many metres away from the hand."""
        return self.hand + np.array((x, y, z))


def expert(task: str, names: Sequence[str]) -> Callable[[np.ndarray], np.ndarray]:
    """The script of a task: from a state float32 [S], whose numbers have these names, the control float32 [7].

    The control (x, y, z, rx, ry, rz, grip) is not yet within limits; `adapted` makes it one of the robot's.

    Raises:
        UserError: no script for the task, or the state lacks what it must see.
    """
    if task not in SCRIPTS:
        raise UserError(f"expert: {task!r}: must be one of {', '.join(SCRIPTS)}")
    script, things = SCRIPTS[task]
    sizes = {"robot0_eef_pos": 3, "robot0_eef_quat": 4, "robot0_gripper_qpos": 2, **dict.fromkeys(things, 3)}
    wanted = {name: [f"{name}.{index}" for index in range(size)] for name, size in sizes.items()}
    missing = [name for name, parts in wanted.items() if not set(parts) <= set(names)]
    if missing:
        raise UserError(f"expert: the state lacks {', '.join(missing)}")
    columns = {name: [list(names).index(part) for part in parts] for name, parts in wanted.items()}

    def act(state: np.ndarray) -> np.ndarray:
        seen = {name: state[places].astype(np.float64) for name, places in columns.items()}
        left, right = seen["robot0_gripper_qpos"]
        spot, grip = script(view := View(seen["robot0_eef_pos"], left - right, seen))
        return np.array([*(GAIN * (spot - view.hand)), *_straight(*seen["robot0_eef_quat"]), grip], np.float32)

    return act


def adapted(controls: Controls, control: np.ndarray) -> np.ndarray:
    """An expert's control as the robot's, float32 [7] or without turns [4], within the limits."""
    return controls.checked(control if len(controls) == len(control) else control[[0, 1, 2, -1]])


def _straight(x: float, y: float, z: float, w: float) -> tuple[float, float, float]:
    """The small turn, in radians about x, y and z, from a Panda hand's quaternion to that of one that points down."""
    sign = math.copysign(2.0, x)
    return sign * w, sign * z, -sign * y


def _lift(view: View) -> Goal:
    cube = view.things["cube_pos"]
    if _held(view, cube, 0.062):
        return view.beside(0, 0, 0.05), CLOSE
    return _fetch(view, cube)


def _stack(view: View) -> Goal:
    cube, base = view.things["cubeA_pos"], view.things["cubeB_pos"]
    above = cube - base
    aside = float(np.linalg.norm(above[:2]))
    if aside < 1.5 * NEAR and abs(above[2] - STACKED) < NEAR / 2:
        return _let_go(view, 0.062)
    if not _held(view, cube, 0.062):
        return _fetch(view, cube)
    if aside < (NEAR if above[2] > STACKED + NEAR else 1.5 * NEAR):
        return view.beside(*-above[:2], -0.015), CLOSE
    return _carry(view, cube, base[:2], base[2] + STACKED + 0.03), CLOSE


def _can(view: View) -> Goal:
    can = view.things["Can_pos"]
    aside = float(np.linalg.norm(can[:2] - BIN))
    if aside < 0.07 and can[2] < INSIDE:
        return _let_go(view, 0.06)
    if not _held(view, can, 0.06):
        return _fetch(view, can)
    if aside < 0.05:
        return view.beside(*(BIN - can[:2]), -0.05), CLOSE
    return _carry(view, can, np.array(BIN), CARRY), CLOSE


SCRIPTS: Mapping[str, tuple[Callable[[View], Goal], tuple[str, ...]]] = {
    "Lift": (_lift, ("cube_pos",)),
    "Stack": (_stack, ("cubeA_pos", "cubeB_pos")),
    "PickPlaceCan": (_can, ("Can_pos",)),
}


def _held(view: View, thing: np.ndarray, width: float) -> bool:
    """Is the thing between fingers no wider apart than `width`, in metres?"""
    off = view.hand - thing
    return bool(np.linalg.norm(off[:2]) < 2 * NEAR and abs(off[2]) < 2 * NEAR and EMPTY < view.fingers < width)


def _fetch(view: View, thing: np.ndarray) -> Goal:
    """Over to above the thing with open fingers, down, and closed. Once they close, the hand may shake more."""
    off = view.hand - thing
    aside = float(np.linalg.norm(off[:2]))
    slack = NEAR if view.fingers > CLOSING or view.fingers < EMPTY else 2 * NEAR
    if aside < slack and abs(off[2]) < slack:
        return thing, CLOSE
    if aside < (2 * NEAR if off[2] < 0.06 else NEAR):
        return thing, OPEN
    return np.array([*(view.hand[:2] if off[2] < 0.04 else thing[:2]), thing[2] + 0.08]), OPEN


def _let_go(view: View, width: float) -> Goal:
    """Still until the fingers are wider apart than the thing, then up."""
    return view.beside(0, 0, 0.05 if view.fingers > width else 0), OPEN


def _carry(view: View, thing: np.ndarray, place: np.ndarray, height: float) -> np.ndarray:
    """The hand's next spot to bring a held thing to above a place: first up, then over."""
    up = height - thing[2]
    over = place - thing[:2] if up < 0.02 else np.zeros(2)
    return view.beside(*over, up)
