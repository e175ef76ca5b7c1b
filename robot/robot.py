"""What a robot is, real or simulated: it goes home, is looked at, moves by one control and says how it stands.

A control is float32 [A] in physical units; one lasts 1 / hz seconds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import numpy as np

from robot.controls import Controls
from vlrl.types import Observation, UserError


class RobotError(Exception):
    """A fault of a robot or its simulator, in one line. It ends the episode, which is then neither won nor lost."""


@dataclass(frozen=True)
class Signals:
    """How a robot stands after a tick. All false: the episode goes on.

    Raises RobotError on a reward or number that is not finite.
    """

    success: bool = False
    reward: float = 0.0  # of this tick
    failure: str | None = None  # why the job can no longer be done
    cut: str | None = None  # why the robot stopped without that being a failure, for example a person's hand
    numbers: Mapping[str, float] = field(default_factory=dict)  # to report: distances in metres, forces in newtons

    def __post_init__(self):
        for name, value in {"reward": self.reward, **self.numbers}.items():
            if not math.isfinite(value):
                raise RobotError(f"{name} is not finite")


class Robot(Protocol):
    """A body that is moved in ticks of 1 / hz seconds. Used by one thread at a time, for any number of episodes.

    Every method but `close` may raise RobotError; anything else that one raises is taken for one. It may also have
    `names`, of the numbers of its state, and a script that shows the job, `expert() -> float32 [A]`: the control that
    it would send now, within the limits.
    """

    hz: float
    controls: Controls

    def home(self, seed: int) -> None:
        """Begins an episode. A simulator makes the scene of this seed, the same bit for bit whatever came before."""

    def observe(self) -> Observation:
        """What a policy is shown now: images, then the instruction, and the state, float32 [S], finite."""

    def move(self, control: np.ndarray) -> np.ndarray:
        """One tick, over when it returns: the control that was really sent, float32 [A], within the limits.

        Raises:
            BadControlError: of another shape or not finite; the robot has not moved.
        """

    def signals(self) -> Signals:
        """How the last tick went."""

    def close(self) -> None:
        """Leaves the body safe and frees what was taken. May be called at any time, also twice."""


@dataclass(frozen=True, eq=False)
class Snapshot:
    """A simulator's whole state: what follows it under equal controls is equal bit for bit, in any process."""

    seed: int  # of the scene
    arrays: Mapping[str, np.ndarray]


@runtime_checkable
class Simulator(Robot, Protocol):
    """A robot that can be put back."""

    def snapshot(self) -> Snapshot:
        """The state as it is now, warm starts and everything else that the next tick hangs on included."""

    def restore(self, snapshot: Snapshot) -> None:
        """Goes on from there, whatever came before; takes the place of `home`."""


def send_home(robot: Robot, start: int | Snapshot) -> None:
    """Begins an episode at a seed or a snapshot.

    Raises:
        RobotError: as the robot does.
        UserError: it cannot be put back to a snapshot.
    """
    if not isinstance(start, Snapshot):
        robot.home(start)
    elif isinstance(robot, Simulator):
        robot.restore(start)
    else:
        raise UserError(f"robot: {type(robot).__name__} has no snapshots: start from a seed")
