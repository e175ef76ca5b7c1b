"""The `safety:` section of a deployment: what the governor and the watchdog of a robot hold it to.

Distances are in a channel's own unit, speeds in that a second; seconds, metres and ticks where the name says so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from robot.types import REACTIONS, Reaction
from vlrl.config import Count, Rate, Section
from vlrl.types import suggest

Finite = Annotated[float, Field(allow_inf_nan=False)]
Size = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Point = Annotated[list[Finite], Field(min_length=3, max_length=3)]
Rest = Literal["hold", "off"]


class ChannelLimits(Section):
    """What is left out comes from `safety.default`, then from the unit (`robot.safety.checks.DEFAULTS`).

    null stands for no limit, where that is harmless: the speed and the acceleration hold without them.
    """

    low: Finite = Field(default=None)
    high: Finite = Field(default=None)
    margin: Size = Field(default=None)  # taken off both ends
    speed: Rate = Field(default=None)
    acceleration: Rate = Field(default=None)
    step: Rate | None = None  # largest change of the target in a tick
    jump: Rate | None = None  # largest distance of the first target from where the robot is
    lead: Rate | None = None  # largest distance of a target from where the robot is: bounds the servo's force
    disagree: Rate | None = None  # largest distance of the robot from where it was lately sent
    stuck: bool = Field(default=None)  # whether the stage `stuck` watches it: all but grippers (unit %)


class Workspace(Section):
    model: str  # an MJCF file, or a known model's name: so101
    low: Point = [-10.0, -10.0, -10.0]  # metres, in the model's world: the box that the sites stay in
    high: Point = [10.0, 10.0, 10.0]
    sites: list[str] = ["grip"]
    floor: Finite | None = None  # metres: no moving part is below this height
    apart: list[Annotated[list[str], Field(min_length=2, max_length=2)]] = []  # pairs of bodies
    gap: Size = 0.01  # metres that they keep between them
    margin: Size = 0.01  # metres inside the box and above the floor, for a servo that lags behind its target
    joints: dict[str, str] = {}  # channel -> joint; the joint of the channel's name up to its first dot; '': none

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        for axis, low, high in zip("xyz", self.low, self.high, strict=True):
            if not low + self.margin < high - self.margin:
                raise ValueError(f"low and high leave no room along {axis} between the margins")
        return self


class Stale(Section):
    hold_s: Rate = 1.0  # an action that answers an observation older than this is not carried out
    stop_s: Rate = 5.0  # a hold, whatever its cause, that lasts longer than this becomes a stop


class Range(Section):
    """Chunks far outside what the policy declares that it gives are not executed."""

    beyond: Size = 1.0  # widths of the declared range that a number may be outside of it
    chunks: Count = 3  # in a row, then the robot holds until a good one comes


class Sensor(Section):
    age_s: Rate = 0.1  # of a reading when the target is chosen
    same_ticks: Count = 10  # as many readings that are the same while the robot is sent to move: it is not read
    disagree_ticks: Count = 3
    lag_s: Rate = 0.5  # a robot that is where it was sent within this time is not astray


class Health(Section):
    low: Finite | None = None
    high: Finite | None = None


class DeadMan(Section):
    """The robot moves only while a person says so. One of the three."""

    key: str | None = None  # of the terminal's keyboard, held down (it repeats)
    button: int | None = None  # of the gamepad
    socket: str | None = None  # host:port where datagrams arrive
    within_s: Rate = 0.5  # so long after the last sign of the person

    @model_validator(mode="after")
    def _one(self) -> Self:
        if sum(source is not None for source in (self.key, self.button, self.socket)) != 1:
            raise ValueError("needs one of key, button, socket")
        return self


class EStop(Section):
    """What stops the robot for good. Keys are read where standard input is a terminal."""

    keys: list[str] = ["space", "esc"]
    gamepad: int | None = None  # the number of a button
    file: str | None = None  # stops once it exists
    signals: list[str] = ["SIGUSR1"]
    socket: str | None = None  # host:port: stops on any datagram


class Safety(Section):
    default: ChannelLimits = ChannelLimits()
    channels: dict[str, ChannelLimits] = {}
    workspace: Workspace | None = None
    stale: Stale = Stale()
    range: Range = Range()
    sensor: Sensor = Sensor()
    # what follows the last dot of a number's name; torque: 1 on, 0 off
    health: dict[str, Health] = {  # error: 1 where the servo itself reports one
        "temperature": Health(high=65.0), "torque": Health(low=0.5), "error": Health(high=0.5),
    }  # fmt: skip
    react: dict[str, Reaction] = {}  # stage -> warn, clip, hold or stop; docs/safety.md has the defaults
    dead_man: DeadMan | None = None
    estop: EStop = EStop()
    silence_s: Rate = 1.0  # no message from the deployment loop: hold
    at_exit: Rest | None = None  # how the robot is left; none: as its body says
    at_fault: Rest | None = None

    @field_validator("react")
    @classmethod
    def _known(cls, react: dict[str, Any]) -> dict[str, Any]:
        for stage, reaction in react.items():
            if stage not in REACTIONS:
                raise ValueError(f"unknown stage {stage!r}{suggest(stage, list(REACTIONS))}")
            if reaction not in REACTIONS[stage]:
                raise ValueError(f"{stage}: {reaction!r} is not for this stage; one of {', '.join(REACTIONS[stage])}")
        return react

    def reaction(self, stage: str) -> Reaction:
        return self.react.get(stage, REACTIONS[stage][0])


# The robot's own limits of position in the governor's: the narrower of the two holds.


def narrowed(safety: Safety, ranges: Mapping[str, tuple[float, float]]) -> Safety:
    """`safety` with every channel in `ranges` held to low and high, in its unit, unless it is held tighter anyway."""
    channels = dict(safety.channels)
    for name, (low, high) in ranges.items():
        own = channels.get(name, ChannelLimits())
        ends = {
            "low": max(low, _read_end(own, safety, "low", -math.inf)),
            "high": min(high, _read_end(own, safety, "high", math.inf)),
        }
        channels[name] = own.model_copy(update=ends)
    return safety.model_copy(update={"channels": channels})


def _read_end(own: ChannelLimits, safety: Safety, end: str, unless: float) -> float:
    """What the config says of an end itself."""
    for limits in (own, safety.default):
        if end in limits.model_fields_set:
            return dict(limits)[end]
    return unless
