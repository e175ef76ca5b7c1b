"""What the motion process and whoever started it tell each other, as bytes (`robot.wire`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from robot.motion.body import Channel, Event, Sensed, Ticked
from robot.motion.pictures import Pictures
from robot.motion.timeline import Plan
from robot.robot import Signals
from robot.wire import pack, unpack


@dataclass(frozen=True)
class About:
    """What a motion process drives."""

    hz: float  # ticks a second
    channels: tuple[Channel, ...]  # of targets: what the governor guards and the robot is sent
    controls: tuple[Channel, ...]  # of plans: the same, or speeds that are added to the last target
    names: tuple[str, ...]  # of the state
    images: Mapping[str, tuple[int, int]]  # height and width of each picture; {} where the robot shows none
    priority: str  # how the process is scheduled: nice (before others) or normal


def pack_about(about: About) -> bytes:
    return pack({"kind": "about", "about": asdict(about)})


def read_about(said: Mapping[str, Any]) -> About:
    images = {name: tuple(size) for name, size in said["images"].items()}
    channels, controls = (tuple(Channel(**each) for each in said[key]) for key in ("channels", "controls"))
    return About(said["hz"], channels, controls, tuple(said["names"]), images, said["priority"])


def pack_plan(plan: Plan) -> bytes:
    names = ("seq", "first", "hz", "expires", "observed", "blend")
    arrays = {"actions": plan.actions} | ({} if plan.declared is None else {"declared": plan.declared})
    return pack({"kind": "plan"} | {name: getattr(plan, name) for name in names}, arrays)


def read_plan(fields: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> Plan:
    names = ("seq", "first", "hz", "expires", "observed", "blend")
    return Plan(actions=arrays["actions"], declared=arrays.get("declared"), **{name: fields[name] for name in names})


@dataclass(frozen=True)
class Timing:
    """How punctual the motion process is."""

    late: float  # seconds that this tick began after it should have
    overruns: int  # ticks so far that took longer than a tick


def pack_ticked(ticked: Ticked, timing: Timing, began: int, task: str, pictures: Pictures) -> bytes:
    """`began`: how many episodes have begun; `task`: the instruction, where the robot gives one."""
    sensed = ticked.sensed
    fields = {
        "kind": "tick", "tick": ticked.tick, "t": sensed.t, "health": dict(sensed.health),
        "signals": {**vars(sensed.signals), "numbers": dict(sensed.signals.numbers)},
        "pictures": pictures.write(ticked.tick, sensed.images), "source": ticked.source, "age": ticked.age,
        "seq": ticked.seq, "events": [vars(event) for event in ticked.events], "stopped": ticked.stopped,
        "began": began, "task": task, "timing": vars(timing),
    }  # fmt: skip
    arrays = {"state": sensed.state, "measured": sensed.measured, "asked": ticked.asked, "sent": ticked.sent}
    return pack(fields, {name: array for name, array in arrays.items() if array is not None})


def read_ticked(fields: Mapping[str, Any], arrays: Mapping[str, np.ndarray], pictures: Pictures) -> Ticked:
    images = pictures.read(fields["tick"], fields["pictures"])
    signals = Signals(**fields["signals"])
    sensed = Sensed(fields["t"], arrays["state"], arrays["measured"], images, fields["health"], signals)
    events = tuple(Event(**each) for each in fields["events"])
    asked, sent = arrays.get("asked"), arrays.get("sent")
    return Ticked(fields["tick"], sensed, asked, sent, fields["source"], fields["age"], fields["seq"], events,
                  fields["stopped"])  # fmt: skip


def read(message: bytes) -> tuple[str, dict[str, Any], dict[str, np.ndarray]]:
    """The kind of a message, its fields and its arrays."""
    fields, arrays = unpack(message)
    return fields.pop("kind"), fields, arrays
