"""Whether the cameras still see what the robot does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from robot.deploy.sight import Seen
from robot.motion.body import Channel

MOVED = MappingProxyType({"deg": 3.0, "rad": 0.05, "m": 0.01, "%": 5.0})  # so far, a camera must have noticed it
PLAIN = 6  # of 255: a picture without larger differences shows nothing: a cap, a broken sensor


@dataclass(frozen=True)
class Sight:
    """What is wrong with the cameras: '' or a cause in one line; hold first, then stop."""

    hold: str = ""
    stop: str = ""


class Lookout:
    """Judges each tick's pictures. A still robot before a noiseless camera is no fault: a picture that stays the same
    counts as frozen only once the robot has moved under it.

    Args:
        cameras: names that are to show something.
        stale_s, stop_s: seconds without a new picture until hold, and until stop.
    """

    def __init__(self, cameras: Sequence[str], channels: Sequence[Channel], stale_s: float, stop_s: float):
        self._cameras, self._stale_s, self._stop_s = tuple(cameras), stale_s, stop_s
        self._far = np.array([MOVED.get(channel.unit, np.inf) for channel in channels])
        self._far[[channel.kind == "speed" for channel in channels]] = np.inf
        # camera -> since when the same, where the robot was then, and whether it has moved since
        self._at: dict[str, tuple[float, np.ndarray, bool]] = {}
        self._plain: dict[str, float] = {}  # camera -> since when it shows one colour only
        self._begun: float | None = None

    def judge(self, seen: Mapping[str, Seen], measured: np.ndarray, now: float) -> Sight:
        """measured: float32 [A], where each channel is."""
        self._begun = now if self._begun is None else self._begun
        found = [(*self._gap(name, seen.get(name), measured, now), name) for name in self._cameras]
        gap, what, name = max(found, default=(0.0, "", ""))
        cause = f"camera {name}: {what} for {gap:.1f} s"
        return Sight(cause if gap > self._stale_s else "", cause if gap > self._stop_s else "")

    def _gap(self, name: str, seen: Seen | None, measured: np.ndarray, now: float) -> tuple[float, str]:
        if seen is None:
            return now - self._begun, "no picture"
        since, there, moved = self._at.get(name, (None, measured, False))
        moved = since == seen.changed and (moved or bool((np.abs(measured - there) > self._far).any()))
        self._at[name] = (seen.changed, there if since == seen.changed else measured.copy(), moved)
        plain = np.ptp(seen.picture[::8, ::8]) < PLAIN
        self._plain[name] = self._plain.get(name, seen.t) if plain else now
        if moved and seen.t > seen.changed:
            return now - seen.changed, "the same picture while the robot moves"
        if plain and seen.t - self._plain[name] > now - seen.t:
            return now - self._plain[name], "one colour only"
        return now - seen.t, "no new picture"
