"""The safety governor: between what is asked and what is sent, always on, out of the policy's reach.

It sees each tick once and never raises. Whatever is asked, what it lets pass is finite, within the limits of position
(a robot that starts outside may only come in), and changes within those of step, speed and acceleration.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from robot.safety.checks import STAGES, History, Sent, Tick, bounds, measured_of, read_request
from robot.safety.limits import Safety
from robot.types import Channel, Reaction, RobotState, SafetyEvent
from vlrl.system.clock import boottime

_RANK = ("pass", "warn", "clip", "hold", "stop")


@dataclass(frozen=True, eq=False)
class GovernorVerdict:
    """What is to be sent. A warning alone is a `pass`."""

    target: np.ndarray | None  # float32 [A]; None: nothing, while nobody knows where the robot is
    reaction: Literal["pass", "clip", "hold", "stop"]
    events: tuple[SafetyEvent, ...] = ()


class Governor:
    """Used by one thread. `stopped` says why it holds for good, or is ''; `counts` has (stage, reaction) of all events.

    Args:
        channels: of the targets, A of them.
        hz: ticks a second.

    Raises:
        UserError: limits that do not fit the channels, a workspace whose model cannot be read.
    """

    def __init__(self, channels: Sequence[Channel], safety: Safety, hz: float):
        self.bounds, self.stopped, self.counts = bounds(channels, safety, hz), "", Counter[tuple[str, str]]()
        checks = [(stage.name, stage.make(safety, channels)) for stage in STAGES]
        self._stages = [(name, look, safety.reaction(name)) for name, look in checks if look is not None]
        self._stop_s, self._history = safety.stale.stop_s, History(self.bounds, safety.sensor.lag_s)
        self._sent, self._health, self._idle = Sent(self.bounds), dict[str, float](), True
        self._forget()

    def _forget(self) -> None:
        self._goal: np.ndarray | None = None
        self._first, self._held = True, None
        self._sent.begin()
        self._history.clear()

    def begin(self, measured: np.ndarray) -> None:
        """An episode begins: actions are expected from now on. Does not undo a stop."""
        self._idle = False
        self._forget()
        where, _ = read_request(measured, self.bounds.names)
        if self._sent.at is None and where is not None:
            self._sent.at = np.where(self.bounds.speeds, 0, where)

    def idle(self) -> None:
        """No action is expected until the next `begin`: holding is no fault and does not turn into a stop."""
        self._idle, self._held = True, None

    def stop(self, cause: str, stage: str = "estop") -> SafetyEvent:
        """Holds from the next tick on, until `rearm`."""
        self.stopped = self.stopped or f"{stage}: {cause}"
        return self._event(stage, "stop", cause)

    def rearm(self, measured: np.ndarray) -> None:
        """A person says that the robot may move again; then as `begin`."""
        self.stopped = ""
        self.begin(measured)

    def govern(
        self,
        requested: object,
        age_s: float,
        sensed: RobotState,
        last_sent: np.ndarray | None,
        now: float | None = None,
    ) -> GovernorVerdict:
        """One tick: what is asked -> what is to be sent.

        Args:
            asked: float32 [A]; None where nothing is due. Anything else is held against.
            age_s: seconds from the observation that led to it.
            last_sent: float32 [A], what the robot was really sent last; None: nothing since it was made ready.
            now: boottime(), if it is not to be asked for.
        """
        try:
            with np.errstate(all="ignore"):
                return self._govern(requested, _seconds(age_s), sensed, last_sent, boottime() if now is None else now)
        except Exception as error:  # a robot that moves must be held whatever goes wrong here
            event = self.stop(f"{type(error).__name__}: {error}", "governor")
            return GovernorVerdict(self._sent.again(), "stop", (event,))

    def _govern(
        self, requested: object, age: float, sensed: RobotState, last: np.ndarray | None, now: float
    ) -> GovernorVerdict:
        measured, unread = measured_of(sensed, self.bounds.names)
        self._sent.settle(measured, last)
        if self._sent.at is None:
            return GovernorVerdict(
                None, "hold", (self._event("reading", "hold", f"the robot's place is not known: {unread}"),)
            )
        history = self._history
        history.add(measured, self._sent.at)
        self._health |= {name: value for name, value in sensed.health.items() if isinstance(value, int | float)}
        action, problem = (None, "") if requested is None else read_request(requested, self.bounds.names)
        tick = Tick(
            self.bounds, action, problem, age, self._sent.at, self._sent.rate, self._goal, self._first, measured,
            unread, now - sensed.t, history.still, history.moved, history.astray, history.off, self._health,
        )  # fmt: skip
        events, target = ([], None) if self.stopped else self._look(tick)
        self._stop_after(events, now)
        reaction = self._reaction(events, tick)
        self._goal = tick.goal if reaction in ("pass", "clip") else None
        self._first = reaction in ("hold", "stop") or (self._first and any(event.stage == "jump" for event in events))
        chosen = tick.target(tick.rest()) if self._goal is None else target
        return GovernorVerdict(self._sent.send(chosen), reaction, tuple(events))

    def _look(self, tick: Tick) -> tuple[list[SafetyEvent], np.ndarray | None]:
        """Every stage in order -> what they say, and the target that they leave; None: hold."""
        events, target, held = [], tick.requested, False
        for name, look, reaction in self._stages:
            if name == "stale" and self._idle and tick.requested is None:
                continue
            verdict = look(tick, None if held else target)
            if verdict is None:
                continue
            events.append(self._event(name, reaction, verdict.cause))
            held |= reaction in ("hold", "stop")
            target = verdict.within if reaction == "clip" else target
        return events, None if held else target

    def _stop_after(self, events: list[SafetyEvent], now: float) -> None:
        """Latches a stop that a stage asks for, or a hold that has lasted too long."""
        holds = [event for event in events if event.reaction == "hold"]
        self._held = (now if self._held is None else self._held) if holds else None
        if holds and now - self._held >= self._stop_s:
            cause = f"{holds[0].cause}; held for {now - self._held:.1f} s, limit {self._stop_s:g} s"
            events.append(self._event(holds[0].stage, "stop", cause))
        for event in events:
            if event.reaction == "stop":
                self.stopped = self.stopped or f"{event.stage}: {event.cause}"

    def _reaction(self, events: list[SafetyEvent], tick: Tick) -> str:
        if self.stopped:
            return "stop"
        worst = max((event.reaction for event in events), key=_RANK.index, default="pass")
        worst = "pass" if worst == "warn" else worst
        return "hold" if tick.requested is None else worst

    def _event(self, stage: str, reaction: Reaction, cause: str) -> SafetyEvent:
        self.counts[stage, reaction] += 1
        return SafetyEvent(stage, reaction, cause)


def _seconds(age: object) -> float:
    return float(age) if isinstance(age, int | float | np.number) else math.nan
