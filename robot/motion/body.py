"""What the motion process drives, and what it tells of each tick. Loads neither torch nor any driver."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np

from robot.robot import Signals

Reaction = Literal["warn", "clip", "hold", "stop"]
Source = Literal["policy", "person", "hold", "none", "script"]  # script: a motion of the deployment's own


@dataclass(frozen=True)
class Channel:
    """One number of a target.

    kind: `position` is held by repeating it (a servo's goal); `speed` by sending 0.
    """

    name: str  # as the driver says it, for example shoulder_pan.pos
    unit: str  # deg, rad, m, m/s, %
    kind: Literal["position", "speed"] = "position"


@dataclass(frozen=True, eq=False)
class Sensed:
    """One reading of a robot."""

    t: float  # boottime() when it was begun
    state: np.ndarray  # float32 [S]
    measured: np.ndarray  # float32 [A], where each channel is; of a speed: 0 where the robot does not say
    images: Mapping[str, np.ndarray] = field(default_factory=dict)  # uint8 [height, width, 3], RGB
    health: Mapping[str, float] = field(default_factory=dict)  # of servos, such as shoulder_pan.temperature in deg C
    signals: Signals = field(default_factory=Signals)  # of simulators, which know how the job stands


@dataclass(frozen=True)
class Event:
    """What a stage of the governor or the watchdog did, and why."""

    stage: str  # finite, stale, jump, position, step, speed, acceleration, lead, workspace, sensor, health, ...
    reaction: Reaction
    cause: str  # in one line, with the channel and the numbers


@dataclass(frozen=True, eq=False)
class Ticked:
    """One tick of the motion process."""

    tick: int  # from 0, counted since the start of the process
    sensed: Sensed
    asked: np.ndarray | None  # float32 [A], before the governor; None where nothing was due
    sent: np.ndarray | None  # float32 [A]; None where nothing was sent
    source: Source
    age: float  # seconds from the observation that led to the action; 0 without one
    seq: int  # of the chunk; -1 without one
    events: tuple[Event, ...] = ()
    stopped: str = ""  # why it is stopped for good (latched), or ''


class Body(Protocol):
    """A robot as the motion process sees it: quick calls that never wait for a whole tick.

    Every method but `rest` and `close` may raise; whatever is raised counts as a fault of the robot. Used by one
    thread. Real robots are moved by their own time; simulated ones advance by 1 / hz seconds with each `send`.

    It may also have

        at_exit, at_fault   `hold` or `off`: how it is left in order, and after a fault; default `hold`
        ranges              channel -> (low, high) that it knows of itself, as calibrated
        drive               `speed` where policies give speeds of its position channels, which are then integrated
        task                the instruction of this episode, from a simulator
        simulated           true where ticks are not bound to the clock's time
        spare()             called at the end of a tick with time to spare: slow registers, one at a time
    """

    hz: float
    channels: tuple[Channel, ...]
    names: tuple[str, ...]  # of the state

    def connect(self) -> None:
        """Takes the port and makes the robot ready; it does not move."""

    def begin(self, seed: int) -> None:
        """Begins an episode: simulators make the scene of this seed, others do nothing."""

    def sense(self) -> Sensed: ...

    def send(self, target: np.ndarray) -> np.ndarray:
        """A target float32 [A] that the governor let pass -> what was really sent."""

    def rest(self, how: Literal["hold", "off"]) -> list[str]:
        """Makes the robot safe: `hold` where it is, or torque `off`, joint by joint. Never raises, may be repeated.

        Returns:
            Problems, each in one line; [] when every joint is safe.
        """

    def close(self) -> None:
        """Frees the port. Never raises, may be repeated; does not change whether the robot holds."""
