"""What a robot is to the rest: the protocol, its controls, states, outcomes, smoothness of motion."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

import numpy as np
from PIL import Image

from vlrl.types import Observation, UserError

# What the numbers of a control mean, and which of them a robot may carry out.


class BadControlError(ValueError):
    """A control that no robot may carry out: of another shape, not of numbers, or not finite."""


@dataclass(frozen=True, eq=False)
class ActionSpec:
    """What one control says, dimension by dimension, and its limits, which are sent as they are."""

    names: tuple[str, ...]  # [A]
    units: tuple[str, ...]  # [A], for example m/s, rad, N
    low: np.ndarray  # float32 [A]
    high: np.ndarray  # float32 [A]

    def __post_init__(self):
        object.__setattr__(self, "low", np.array(self.low, np.float32))
        object.__setattr__(self, "high", np.array(self.high, np.float32))
        shapes = {(len(self.names),), (len(self.units),), self.low.shape, self.high.shape}
        if len(shapes) != 1 or not (np.isfinite([self.low, self.high]).all() and (self.low < self.high).all()):
            raise ValueError(f"controls {self.names}: each needs a unit and finite limits, low < high")

    def __len__(self) -> int:
        return len(self.names)

    def checked(self, control: np.ndarray) -> np.ndarray:
        """The control as float32 [A], within the limits.

        Raises:
            BadControlError: of another shape, not of numbers, not finite.
        """
        return self.chunk(np.asarray(control)[None])[0].clip(self.low, self.high)

    def chunk(self, action: object) -> np.ndarray:
        """An action as controls float32 [K, A], K at least 1, not yet within the limits; [A] is one control.

        Raises:
            BadControlError: of another shape, not of numbers, not finite.
        """
        if not isinstance(action, np.ndarray) or action.dtype.kind not in "fiu":
            raise BadControlError("not an array of numbers")
        controls = action[None] if action.ndim == 1 else action
        if controls.ndim != 2 or controls.shape[1] != len(self) or not len(controls):
            raise BadControlError("wrong shape")
        with np.errstate(over="ignore"):  # beyond float32 is infinite
            controls = controls.astype(np.float32)
        if not np.isfinite(controls).all():
            raise BadControlError("not finite")
        return controls


# What a robot is, real or simulated: it goes home, is looked at, moves by one control and says how it stands.
#
# A control is float32 [A] in physical units; one lasts 1 / hz seconds.


class RobotError(Exception):
    """A fault of a robot or its simulator, in one line. It ends the episode, which is then neither won nor lost."""


@dataclass(frozen=True)
class RobotStatus:
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


@dataclass(frozen=True, eq=False)
class Snapshot:
    """A simulator's whole state: what follows it under equal controls is equal bit for bit, in any process."""

    seed: int  # of the scene
    arrays: Mapping[str, np.ndarray]


class Robot(ABC):
    """A body that is moved in ticks of 1 / hz seconds. Used by one thread at a time, for any number of episodes.

    Every method but `close` may raise RobotError; anything else that one raises is taken for one. What a robot has no
    script, no pictures or no snapshots for it leaves as it is here.
    """

    hz: float
    controls: ActionSpec
    names: tuple[str, ...] = ()  # of the numbers of its state; (): not known

    @abstractmethod
    def reset(self, seed: int) -> None:
        """Begins an episode. A simulator makes the scene of this seed, the same bit for bit whatever came before."""

    @abstractmethod
    def get_observation(self) -> Observation:
        """What a policy is shown now: images, then the instruction, and the state, float32 [S], finite."""

    @abstractmethod
    def send_action(self, control: np.ndarray) -> np.ndarray:
        """One tick, over when it returns: the control that was really sent, float32 [A], within the limits.

        Raises:
            BadControlError: of another shape or not finite; the robot has not moved.
        """

    @abstractmethod
    def status(self) -> RobotStatus:
        """How the last tick went."""

    @abstractmethod
    def close(self) -> None:
        """Leaves the body safe and frees what was taken. May be called at any time, also twice."""

    def expert(self) -> np.ndarray:
        """The control, float32 [A], that a script which shows the job would send now, within the limits."""
        raise UserError(f"robot: {type(self).__name__} has no script that could show the job")

    def picture(self, size: tuple[int, int]) -> Image.Image:
        """What a person would look at, RGB, width and height in pixels; by default the first image that it shows.

        Raises:
            UserError: it shows none.
        """
        images = self.get_observation().images
        if not images:
            name = type(self).__name__
            raise UserError(f"video: {name} shows no picture: give it a camera, or a method picture(size)")
        return images[0]

    def snapshot(self) -> Snapshot:
        """The state as it is now, warm starts and everything else that the next tick hangs on included."""
        raise UserError(f"robot: {type(self).__name__} has no snapshots: start from a seed")

    def restore(self, snapshot: Snapshot) -> None:
        """Goes on from there, whatever came before; takes the place of `reset`."""
        raise UserError(f"robot: {type(self).__name__} has no snapshots: start from a seed")

    @property
    def versions(self) -> Mapping[str, str]:
        """Of the packages that a simulator is made of, by name, where vlrl's own versions do not tell."""
        return {}

    @property
    def has_script(self) -> bool:
        return type(self).expert is not Robot.expert

    @property
    def has_snapshots(self) -> bool:
        return type(self).snapshot is not Robot.snapshot


def send_home(robot: Robot, start: int | Snapshot) -> None:
    """Begins an episode at a seed or a snapshot.

    Raises:
        RobotError: as the robot does.
        UserError: it cannot be put back to a snapshot.
    """
    if isinstance(start, Snapshot):
        robot.restore(start)
    else:
        robot.reset(start)


# What the motion process drives, and what it tells of each tick. Loads neither torch nor any driver.

Reaction = Literal["warn", "clip", "hold", "stop"]
# stage of the governor, in their order -> the reactions that it can have, its default first
REACTIONS: dict[str, tuple[Reaction, ...]] = {
    "finite": ("hold", "stop"),
    "stale": ("hold", "stop"),
    "jump": ("clip", "hold", "stop", "warn"),
    "position": ("clip", "hold", "stop"),
    "step": ("clip", "hold", "stop"),
    "speed": ("clip", "hold", "stop"),
    "acceleration": ("clip", "hold", "stop"),
    "lead": ("clip", "hold", "stop", "warn"),
    "workspace": ("clip", "hold", "stop", "warn"),
    "reading": ("hold", "stop"),
    "age": ("hold", "stop", "warn"),
    "frozen": ("hold", "stop", "warn"),
    "stuck": ("stop", "hold", "warn"),
    "disagree": ("stop", "hold", "warn"),
    "health": ("stop", "hold", "warn"),
}
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
class RobotState:
    """One reading of a robot."""

    t: float  # boottime() when it was begun
    state: np.ndarray  # float32 [S]
    measured: np.ndarray  # float32 [A], where each channel is; of a speed: 0 where the robot does not say
    images: Mapping[str, np.ndarray] = field(default_factory=dict)  # uint8 [height, width, 3], RGB
    health: Mapping[str, float] = field(default_factory=dict)  # of servos, such as shoulder_pan.temperature in deg C
    signals: RobotStatus = field(default_factory=RobotStatus)  # of simulators, which know how the job stands


@dataclass(frozen=True)
class SafetyEvent:
    """What a stage of the governor or the watchdog did, and why."""

    stage: str  # finite, stale, jump, position, step, speed, acceleration, lead, workspace, sensor, health, ...
    reaction: Reaction
    cause: str  # in one line, with the channel and the numbers


@dataclass(frozen=True, eq=False)
class TickRecord:
    """One tick of the motion process."""

    tick: int  # from 0, counted since the start of the process
    sensed: RobotState
    requested: np.ndarray | None  # float32 [A], before the governor; None where nothing was due
    sent: np.ndarray | None  # float32 [A]; None where nothing was sent
    source: Source
    age: float  # seconds from the observation that led to the action; 0 without one
    seq: int  # of the chunk; -1 without one
    events: tuple[SafetyEvent, ...] = ()
    stopped: str = ""  # why it is stopped for good (latched), or ''


class RobotDriver(ABC):
    """A robot as the motion process sees it: quick calls that never wait for a whole tick.

    Every method but `rest` and `close` may raise; whatever is raised counts as a fault of the robot. Used by one
    thread. Real robots are moved by their own time; simulated ones advance by 1 / hz seconds with each `send`.
    """

    hz: float
    channels: tuple[Channel, ...]
    names: tuple[str, ...]  # of the state
    at_fault: Literal["hold", "off"] = "hold"  # how it is left after a fault
    at_exit: Literal["hold", "off"] | None = None  # how it is left in order; None: as after a fault
    ranges: Mapping[str, tuple[float, float]] = MappingProxyType({})  # channel -> low and high, as calibrated
    drive: Literal["position", "speed"] = "position"  # `speed`: policies give speeds of its positions, to be integrated
    task: str = ""  # the instruction of this episode, from a simulator
    simulated: bool = False  # whether ticks are not bound to the clock's time

    @abstractmethod
    def connect(self) -> None:
        """Takes the port and makes the robot ready; it does not move."""

    def begin(self, seed: int) -> None:
        """Begins an episode: simulators make the scene of this seed, others do nothing."""

    @abstractmethod
    def sense(self) -> RobotState:
        """One reading."""

    def spare(self, seconds: float) -> None:
        """Called at the end of a tick with so much time to spare: slow registers, one at a time."""

    @abstractmethod
    def send(self, target: np.ndarray) -> np.ndarray:
        """A target float32 [A] that the governor let pass -> what was really sent."""

    @abstractmethod
    def rest(self, how: Literal["hold", "off"]) -> list[str]:
        """Makes the robot safe: `hold` where it is, or torque `off`, joint by joint. Never raises, may be repeated.

        Returns:
            Problems, each in one line; [] when every joint is safe.
        """

    @abstractmethod
    def close(self) -> None:
        """Frees the port. Never raises, may be repeated; does not change whether the robot holds."""


# How an episode can end, and how that stands in `Step.info`.

OUTCOMES = {  # name -> whether the policy is to answer for it (`done`), or else the episode was cut
    "success": True,
    "failure": True,  # the job can no longer be done
    "bad_action": True,  # an action that no robot may carry out
    "time_out": False,
    "stopped": False,  # by a person or the robot itself
    "error": False,  # of the robot, its simulator or its process
}


@dataclass(frozen=True)
class Ending:
    """Why an episode is over. `reason` is one line, for whoever counts the endings."""

    outcome: str  # of OUTCOMES
    reason: str = ""
    done: bool = field(init=False)

    def __post_init__(self):
        object.__setattr__(self, "done", OUTCOMES[self.outcome])

    @property
    def void(self) -> str:
        """Why the episode says nothing of the policy, or ''."""
        return (self.reason or self.outcome) if self.outcome in ("stopped", "error") else ""

    def info(self) -> dict[str, float]:
        """{outcome: 1} and, where there is a reason, {outcome: reason: 1}."""
        return {self.outcome: 1.0} | ({f"{self.outcome}: {self.reason}": 1.0} if self.reason else {})


def outcome_in(info: Mapping[str, float]) -> str:
    """How the episode ended whose last `Step.info` this is: a name of OUTCOMES."""
    return next((name for name in OUTCOMES if name in info), "error")


def fault(error: Exception) -> Ending:
    """The ending of an episode whose robot raised."""
    message = (str(error).splitlines() or [""])[0]
    return Ending(
        "error", message if isinstance(error, RobotError) else f"{type(error).__name__}: {message}".rstrip(": ")
    )


# How smooth the controls of an episode were, each number in halves of its limits' width.


def smoothness(sent: Sequence[np.ndarray], controls: ActionSpec) -> dict[str, float]:
    """Of the controls u, float32 [A] each, that were sent in T ticks, with half widths h of the limits, float32 [A]:

        action_rate   mean over ticks and numbers of |u[t] - u[t-1]| / h: 0 for a constant control, at most 2
        action_jerk   mean of |u[t] - 2 u[t-1] + u[t-2]| / h, at most 4

    The first and second differences that smooth policies are trained for (CAPS, arXiv 2012.06644, temporal smoothness;
    Lee et al., arXiv 2010.11251, target smoothness). Means, so that episodes of any length compare. Each is left out
    where there are too few ticks.
    """
    if len(sent) < 2:
        return {}
    half = (controls.high - controls.low) / 2
    steps = np.diff(np.concatenate(sent).reshape(len(sent), -1) / half, axis=0)
    differences = {"action_rate": steps, "action_jerk": np.diff(steps, axis=0)}
    return {name: float(np.abs(each).mean(dtype=np.float64)) for name, each in differences.items() if len(each)}
