"""Motions of our own between episodes and out of a jam. They go through the governor like a policy's."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Mapping

import numpy as np

from robot.deploy.config import Stuck
from robot.deploy.rig import PAUSE_S, Rig
from robot.deploy.watch import MOVED
from robot.motion.body import Channel, Ticked
from vlrl.types import UserError

AHEAD_S = 0.3  # seconds of a motion that are handed over at a time
SETTLE_S = 1.0  # to arrive
ARRIVED = 4  # times what counts as moved: an arm hangs some degrees below its target


def pose_of(pose: Mapping[str, float], channels: tuple[Channel, ...], key: str) -> np.ndarray:
    """float32 [A], NaN for channels that stay where they are. `key`: of the config, for the error.

    Raises:
        UserError: no such channel, or one that is a speed.
    """
    known = {channel.name: channel for channel in channels}
    for name in pose:
        if name not in known or known[name].kind == "speed":
            places = ", ".join(channel.name for channel in channels if channel.kind == "position") or "none here"
            raise UserError(f"{key}.{name}: must be a channel that is a position: {places}")
    return np.array([pose.get(channel.name, np.nan) for channel in channels], np.float32)


def ramp(rig: Rig, goal: np.ndarray, seconds: float) -> bool:
    """Moves to a pose, float32 [A], at even speed -> whether the robot arrived. Needs an episode that has begun.

    What the operator presses meanwhile is lost, but for a stop.
    """
    motion, about = rig.motion, rig.motion.about
    first = motion.latest()
    start = first.sensed.measured if first.sent is None else first.sent
    goal = np.where(np.isfinite(goal), goal, start)
    last, speeds = first.tick, np.array([channel.kind == "speed" for channel in about.controls])
    end, ahead = first.tick + seconds * about.hz, math.ceil(AHEAD_S * about.hz)
    far = ARRIVED * np.array([MOVED.get(channel.unit, np.inf) for channel in about.channels])

    def arrived(ticked: Ticked) -> bool:
        return bool((~(np.abs(ticked.sensed.measured - goal) > far)).all())

    while motion.alive and not rig.ender.code:
        now = motion.latest()
        if now.stopped or now.tick > end + SETTLE_S * about.hz or (now.tick > end and arrived(now)):
            break
        if now.tick > last or now is first:
            last = now.tick
            ticks = np.arange(1, ahead + 1) + now.tick
            shares = np.clip((ticks - first.tick) / (end - first.tick), 0, 1)[:, None]
            places = start + shares * (goal - start)
            at = start if now.sent is None else now.sent
            paces = np.diff(np.vstack([at, places]), axis=0) * about.hz  # where plans are speeds
            actions = np.where(speeds, paces, places).astype(np.float32)
            motion.plan(rig.chunks.own(actions, AHEAD_S))
        if "stop" in rig.orders():
            motion.stop("the operator's emergency stop")
        rig.show(now)
        time.sleep(PAUSE_S)
    return arrived(motion.latest())


class Jam:
    """Sees a robot that is sent somewhere and does not move. Only channels that are positions and measured count, and
    no gripper (of unit %): that closes on things.

    Args:
        hz: ticks a second.
    """

    def __init__(self, stuck: Stuck, channels: tuple[Channel, ...], hz: float):
        self._share, self._back = stuck.share, round(stuck.back_s * hz)
        size = round(stuck.seconds * hz)
        self._window: deque[tuple[np.ndarray, np.ndarray]] = deque(maxlen=max(2, size))
        self._path: deque[np.ndarray] = deque(maxlen=max(2, size) + self._back)
        counts = [channel.kind != "speed" and channel.unit != "%" for channel in channels]
        self._far = np.where(counts, [MOVED.get(channel.unit, np.inf) for channel in channels], np.inf)

    def see(self, ticked: Ticked) -> bool:
        """Whether it is stuck as of this tick."""
        self._path.append(ticked.sensed.measured)
        if ticked.source != "policy" or ticked.asked is None:
            self._window.clear()
            return False
        self._window.append((ticked.asked, ticked.sensed.measured))
        if len(self._window) < self._window.maxlen:
            return False
        asked, measured = (np.array(each) for each in zip(*self._window, strict=True))
        wanted = np.abs((asked - measured).mean(axis=0))  # a policy may begin each chunk anew from where the robot is
        came = np.ptp(measured, axis=0)
        return bool(((wanted > self._far) & (came < self._share * wanted)).any())

    def free(self) -> np.ndarray:
        """Where the robot was before it got stuck, float32 [A]; forgets the jam."""
        place = self._path[0]
        self._window.clear()
        return place
