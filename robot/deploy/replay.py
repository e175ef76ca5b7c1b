"""A recorded episode's sent actions once more on a robot, through its governor, and how far its joints then differ."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from robot.deploy.ending import Ender
from robot.deploy.recorded import Recorded
from robot.deploy.rig import PAUSE_S
from robot.motion.body import Ticked
from robot.motion.process import Motion
from robot.motion.timeline import Plan
from vlrl.system.clock import boottime
from vlrl.types import UserError

PIECE_S = 0.4  # seconds of actions that are handed over at a time, so that none is old
SLOW = 5.0  # a replay that takes so many times as long as the recording is given up


def replay(recorded: Recorded, motion: Motion, ender: Ender) -> dict[str, Any]:
    """Plays and closes the motion process -> frames, of, deviation {joint: mean, max, unit}, code, cause.

    Raises:
        UserError: the recording is of another robot.
    """
    try:
        _check(recorded, motion)
        seen = _play(recorded, motion, ender)
    except BaseException:
        motion.close()
        raise
    left = motion.close()
    stopped = seen[-1].stopped if seen else ""
    code, cause = (left.code, left.cause) if left.code else (ender.code, "interrupted") if ender.code else (0, stopped)
    frames = _frames(recorded, motion, seen)
    return {
        "frames": len(frames), "of": len(recorded.actions), "code": code, "cause": cause,
        "deviation": _deviation(recorded, motion, frames),
    }  # fmt: skip


def _check(recorded: Recorded, motion: Motion) -> None:
    about = motion.about
    names = [channel.name for channel in about.channels]
    if list(recorded.action_names) != names:
        raise UserError(
            f"replay: the recording's actions are {', '.join(recorded.action_names)}, the robot's {', '.join(names)}"
        )
    if about.controls != about.channels:
        raise UserError("replay: the robot is driven by speeds, the recording has targets: set robot.drive=position")


def _play(recorded: Recorded, motion: Motion, ender: Ender) -> list[Ticked]:
    """The ticks from the first action on."""
    about = motion.about
    ratio = about.hz / recorded.hz
    first = motion.begin(recorded.scene)
    start = first.tick + 2
    end = start + round(len(recorded.actions) * ratio)
    seen, sent = [], -1
    until = boottime() + SLOW * len(recorded.actions) / recorded.hz + 10
    while motion.alive and not ender.code and boottime() < until:
        seen += [ticked for ticked in motion.ticks() if ticked.tick >= start]
        tick = motion.latest().tick
        if tick >= end or motion.latest().stopped:
            break
        frame = max(0, int((tick - start) / ratio))
        if frame > sent:
            motion.plan(_piece(recorded, frame, start, ratio))
            sent = frame + round(PIECE_S * recorded.hz / 2) - 1
        motion.pet()
        time.sleep(PAUSE_S)
    motion.idle()
    return seen


def _piece(recorded: Recorded, frame: int, start: int, ratio: float) -> Plan:
    actions = recorded.actions[frame : frame + max(2, round(PIECE_S * recorded.hz))]
    now = boottime()
    return Plan(frame, start + round(frame * ratio), actions, recorded.hz, now + 2 * PIECE_S, now)


def _frames(recorded: Recorded, motion: Motion, seen: list[Ticked]) -> dict[int, np.ndarray]:
    """Frame of the recording -> the robot's state then, float32 [S]."""
    if not seen:
        return {}
    ratio, start = motion.about.hz / recorded.hz, seen[0].tick
    found: dict[int, np.ndarray] = {}
    for ticked in seen:
        frame = int((ticked.tick - start) / ratio + 1e-6)
        if frame < len(recorded.states):
            found.setdefault(frame, ticked.sensed.state)
    return found


def _deviation(recorded: Recorded, motion: Motion, frames: dict[int, np.ndarray]) -> dict[str, Any]:
    """Of each number of the state that both have, over the frames that were played."""
    units = {channel.name: channel.unit for channel in motion.about.channels}
    names = [name for name in motion.about.names if name in recorded.state_names]
    ours = [motion.about.names.index(name) for name in names]
    theirs = [recorded.state_names.index(name) for name in names]
    off = np.array([np.abs(state[ours] - recorded.states[frame][theirs]) for frame, state in frames.items()])
    return {
        name: {"mean": float(off[:, i].mean()), "max": float(off[:, i].max()), "unit": units.get(name, "")}
        for i, name in enumerate(names)
        if len(off)
    }
