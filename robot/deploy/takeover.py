"""A person takes the robot over from the policy and gives it back: never with a jump, never unnoticed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from robot.deploy.hands import Hands
from robot.motion.body import Channel, Ticked

RAMP_S = 0.5  # seconds in which what the hand and the robot differ by when it takes over is faded out


class Takeover:
    """Who drives. While `taken` the policy does not, whatever becomes of the hand.

    First the robot comes to rest, then it waits until no channel of the hand is further than `near` from it, then it
    follows the hand. A hand that says nothing moves nothing: the robot holds.

    Args:
        near: float [A], in the channels' units.
        hz: ticks a second.
    """

    def __init__(self, hands: Hands, channels: Sequence[Channel], near: np.ndarray, hz: float):
        self._hands, self._channels, self._near, self._ramp = hands, tuple(channels), near, RAMP_S * hz
        self._speeds = np.array([channel.kind == "speed" for channel in channels])
        self._waited: np.ndarray | None = None  # the last `_still` that there was
        self.turn(False)

    def turn(self, taken: bool) -> None:
        """The person takes over, or gives back."""
        self.taken, self.lost = taken, ""
        self.said = "a person takes over" if taken else "a person gives back: the policy drives"
        self._rest()

    def _rest(self) -> None:
        self._last: np.ndarray | None = None  # where the robot was sent a tick ago
        self._still: np.ndarray | None = None  # where it waits for the hand
        self._begun: tuple[int, np.ndarray] | None = None  # the tick, and by how much the robot was off the hand

    @property
    def follows(self) -> bool:
        return self._begun is not None

    def target(self, ticked: Ticked) -> np.ndarray | None:
        """What the robot is to be sent after this tick, float32 [A]; None: nothing, so that it holds.

        `said` is then what the person should know, in one line, and `lost` why there is no hand, or ''.
        """
        asked = self._hands.target()
        if asked is None:
            self._rest()
            self.lost = self._hands.trouble or "it says nothing"
            self.said = f"the teleoperator is lost ({self.lost}): the robot holds; mend it, or give back"
            return None
        self.lost = ""
        if self._begun is None and not self._takes(ticked, asked):
            return self._still
        tick, off = self._begun
        share = min(1.0, (ticked.tick - tick) / self._ramp)
        return (asked + (1 - share) * off).astype(np.float32)

    def _takes(self, ticked: Ticked, asked: np.ndarray) -> bool:
        """Whether the robot follows from now on."""
        sent, last = ticked.sent, self._last
        self._last = sent
        if self._still is None:
            if sent is None or last is None or (sent != last).any():
                self.said = "a person takes over: the robot comes to rest"
                return False
            self._still = self._waited = np.where(self._speeds, np.float32(0), sent)
        off = self._still - asked
        worst = int(np.argmax(np.abs(off) / self._near))
        if abs(off[worst]) > self._near[worst]:
            channel = self._channels[worst]
            self.said = f"bring the hand to the robot: {channel.name} is {-off[worst]:+.0f} {channel.unit} off"
            return False
        self._begun, self.said = (ticked.tick, off), "a person drives"
        return True

    def seen(self, ticked: Ticked) -> Ticked:
        """The tick as it is to be told: a robot that waits for the hand is held, not driven."""
        held = ticked.source == "person" and not self.follows and self._waited is not None
        waits = held and np.array_equal(ticked.asked, self._waited)
        return replace(ticked, source="hold") if waits else ticked
