"""One tick after another: sense, choose, govern, send. Knows nothing of processes and little of time."""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import platform
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from robot.control.messages import ActionPlan, MotionTiming, Timeline
from robot.safety.checks import DEFAULTS, bounds
from robot.safety.governor import Governor
from robot.safety.limits import Safety
from robot.types import Channel, RobotDriver, RobotState, SafetyEvent, Source, TickRecord
from vlrl.system.clock import boottime

# Chunks that no policy can mean: finite numbers far outside its range, such as 1e30. The governor would clip them and
# drive the robot to its limits. They are not executed, and several in a row hold it.

FAR = 10.0  # widths of the robot's own range, beyond which a target means nothing, where the policy declares no range


class Plausible:
    """What the chunks of a policy are judged by. Used by one thread.

    Args:
        channels: of the robot's targets.
        controls: what chunks say: the channels, or their speeds.
    """

    def __init__(self, channels: Sequence[Channel], controls: Sequence[Channel], safety: Safety, hz: float):
        of = bounds(channels, safety, hz)
        self._names, self._units = [each.name for each in controls], [each.unit for each in controls]
        added = np.array([a.kind != b.kind for a, b in zip(channels, controls, strict=True)], bool)  # speeds of targets
        low, high = np.where(added, -of.speed, of.low), np.where(added, of.speed, of.high)
        known = np.array([DEFAULTS.get(each.unit, (0.0, 0.0))[:2] for each in controls], np.float64).reshape(-1, 2)
        low, high = np.minimum(low, known[:, 0]), np.maximum(high, known[:, 1])
        self._chunks, self._beyond = safety.range.chunks, safety.range.beyond
        self._low, self._high = low - FAR * (high - low), high + FAR * (high - low)
        self.count = 0  # chunks in a row that were not executed
        self._cause = ""

    def begin(self) -> None:
        """An episode begins."""
        self.count = 0

    def admit(self, plan: ActionPlan) -> bool:
        """Whether a plan may be executed. Numbers that are not finite, and wrong shapes, are others' business."""
        low, high = self._limits(plan)
        if plan.actions.shape[1] != len(low):
            return True
        values = np.where(np.isfinite(plan.actions), plan.actions, np.float32(0)).astype(np.float64)
        excess = np.maximum(values - high, low - values)
        if (excess <= 0).all():
            self.count = 0
            return True
        row, i = np.unravel_index(int(np.argmax(excess)), excess.shape)
        limit = high[i] if values[row, i] > high[i] else low[i]
        self.count += 1
        self._cause = (
            f"{self._names[i]}: a chunk asks for {values[row, i]:.4g} {self._units[i]}, far outside the policy's range "
            f"(limit {limit:.4g}): {self.count} such chunk{'s' * (self.count > 1)} not executed"
        )
        return False

    def _limits(self, plan: ActionPlan) -> tuple[np.ndarray, np.ndarray]:
        """Low and high, float64 [A]: what the policy declares can only narrow what counts as far."""
        if plan.declared is None or plan.declared.shape != (2, len(self._low)):
            return self._low, self._high
        low, high = plan.declared.astype(np.float64)
        reach = self._beyond * (high - low)
        return np.fmax(self._low, low - reach), np.fmin(self._high, high + reach)

    @property
    def full(self) -> bool:
        """Whether so many were refused in a row that the robot holds until a good one comes."""
        return self.count >= self._chunks

    def event(self) -> SafetyEvent | None:
        """What is to be said at a tick, if anything."""
        if not self._cause or not self.count:
            return None
        event = SafetyEvent("range", "hold" if self.full else "warn", self._cause)
        self._cause = self._cause if self.full else ""
        return event


# Speeds as targets: where the policy says how fast, and the robot wants to be told where to.


def speeds(channels: Sequence[Channel]) -> tuple[Channel, ...]:
    """The channels as a policy of speeds says them: every position becomes a speed in its unit a second."""
    return tuple(
        replace(each, unit=f"{each.unit}/s", kind="speed") if each.kind == "position" else each for each in channels
    )


def integrated(last: np.ndarray, requested: np.ndarray, channels: Sequence[Channel], hz: float) -> np.ndarray:
    """The next target, float32 [A], after `last`: positions go on by asked / hz, speeds of the robot are as asked."""
    moves = np.array([channel.kind == "position" for channel in channels])
    return np.where(moves, last + requested / np.float32(hz), requested).astype(np.float32)


# What is counted and timed around the tick: silence of whoever started the process, faults in a row, lateness.

TURN_NS = 100_000  # the shortest turn that the kernel grants
SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}  # numbers of the system call


class Silence:
    """How long the other side has said nothing.

    Args:
        silence_s: seconds after which its plans no longer count.
        stop_s: further seconds after which the robot is stopped.
    """

    def __init__(self, silence_s: float, stop_s: float):
        self._hold, self._stop = silence_s, silence_s + stop_s
        self._last_heard_s = boottime()

    def end(self) -> None:
        self._last_heard_s = boottime()

    def verdict(self, now: float) -> tuple[Literal["", "hold", "stop"], float]:
        """What to do, and the seconds of silence."""
        quiet = now - self._last_heard_s
        return ("stop" if quiet > self._stop else "hold" if quiet > self._hold else ""), quiet


class TickClock:
    """Ticks at fixed times of the monotonic clock. A tick that took too long delays the next ones, it adds none."""

    def __init__(self, hz: float):
        self._period = 1 / hz
        self._due = time.monotonic()
        self._overruns = 0

    def begin(self) -> MotionTiming:
        """A tick begins now."""
        return MotionTiming(max(0.0, time.monotonic() - self._due), self._overruns)

    def end(self) -> float:
        """Its work is done: seconds that are left of it."""
        self._due += self._period
        left = self._due - time.monotonic()
        if left < 0:
            self._overruns += 1
            if left < -self._period:
                self._due = time.monotonic()
        return max(0.0, left)

    def wait(self) -> None:
        """Until the next tick."""
        time.sleep(max(0.0, self._due - time.monotonic()))

    def again(self) -> None:
        """Something took long that was no tick: the next one is due now."""
        self._due = time.monotonic()


def prioritise(body: RobotDriver) -> Literal["nice", "normal"]:
    """Lets a real robot's ticks go before other work, as far as this user may; a simulator's are ordinary work.

    Not SCHED_FIFO: lerobot's buses wait for a reply in a busy loop, which at that priority keeps the kernel from
    bringing the reply (measured: 20 of 240 reads lost on two busy cores, none without).
    """
    if body.simulated:
        return "normal"
    priority = "normal"
    with contextlib.suppress(OSError):
        os.nice(-10)
        priority = "nice"
    shorten_turns()
    return priority


def shorten_turns() -> None:
    """Asks for short turns on a busy core, which come sooner: this thread's share stays the same, so anybody may.

    Linux 6.12 and later (EEVDF: sched_runtime of SCHED_OTHER); elsewhere nothing happens. Measured with both of two
    cores busy, 6 x 3 s in turn: periods were off by 6.1 ms (p95) without and 4.5 ms with it at 30 Hz, 5.6 and 3.4 ms at
    100 Hz.
    """
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    attributes = struct.pack("=IIQiIQQQII", 56, 0, 0, nice, 0, TURN_NS, 0, 0, 0, 0)  # struct sched_attr
    with contextlib.suppress(KeyError, OSError, AttributeError):
        ctypes.CDLL(None).syscall(SCHED_SETATTR[platform.machine()], 0, attributes, 0)


LOST_S = 0.5  # seconds without an answer after which a robot counts as lost; it is held from the first tick on
SLOW_S = 2.0  # seconds of nothing but slow answers: its speeds are no longer what they are said to be
STOPPED, EMERGENCY = 3, 6  # exit codes


class LostError(Exception):
    """The robot does not answer, in one line."""


@dataclass(frozen=True, eq=False)
class _Chosen:
    """What a tick asks for: a target float32 [A], or None to hold."""

    requested: np.ndarray | None = None
    source: Source = "hold"
    age: float = 0.0
    seq: int = -1


class Loop:
    """Drives a connected body. Until the first `begin` it only senses.

    Args:
        silence: of whoever sends the plans; counts while an episode runs.
        pressed: asked at each tick: why somebody wants an emergency stop, or ''.
        held: asked at each tick: whether the dead man is there, without whom it does not move.
        pause: called before what may take longer than a tick.
    """

    def __init__(
        self,
        body: RobotDriver,
        governor: Governor,
        plausible: Plausible,
        *,
        silence: Silence,
        pressed: Callable[[], str],
        held: Callable[[], bool],
        pause: Callable[[], None],
    ):
        self.body, self.governor, self.tick, self.began, self.code = body, governor, 0, 0, 0
        self._silence, self._pressed, self._held, self._pause = silence, pressed, held, pause
        self._timeline = Timeline(controls_of(body), body.hz)
        self._plausible = plausible
        self._hand: tuple[np.ndarray, float] | None = None
        self._sensed: RobotState | None = None
        self._sent: np.ndarray | None = None
        self._running, self._fresh = False, False
        self._well = self._quick = time.monotonic()
        self._slow = math.inf if body.simulated else 1 / body.hz  # a simulator's time waits

    def begin(self, seed: int) -> None:
        """Begins an episode: no plan is left over. A stop stays one. May raise what the body raises."""
        self._pause()
        self._forget()
        self._plausible.begin()
        self.body.begin(seed)
        self.began, self._running, self._fresh = self.began + 1, True, True
        self._silence.end()

    def idle(self) -> None:
        """No plans are expected until the next `begin`: it holds, and that is no fault."""
        self._forget()
        self._running = False
        self.governor.idle()

    def end_silence(self) -> None:
        """Whoever sends the plans is there."""
        self._silence.end()

    def plan(self, plan: ActionPlan) -> None:
        if self._plausible.admit(plan):
            self._timeline.add(plan, self.tick)
        elif self._plausible.full:
            self._timeline.clear()

    def hand(self, target: np.ndarray, for_s: float) -> None:
        """A person's target, which counts before any plan for so many seconds."""
        self._hand = (target, boottime() + for_s)

    def stop(self, cause: str, stage: str = "asked", code: int = STOPPED) -> SafetyEvent:
        """Brakes and holds until `rearm`."""
        self._forget()
        self.code = code if code == EMERGENCY else self.code or code
        return self.governor.stop(cause, stage)

    def rearm(self) -> None:
        """Takes back a stop; it holds until there is a new plan."""
        self._forget()
        self.code = 0
        if self._sensed is not None:
            self.governor.rearm(self._sensed.measured)
        self._silence.end()

    def do(self) -> TickRecord:
        """The next tick.

        Raises:
            LostError: the robot has not answered for LOST_S.
        """
        events: list[SafetyEvent] = []
        sensed = self._sense(events)
        self._look(events)
        chosen, sent = _Chosen(source="none"), None
        if self.began and sensed is not None:
            held = self.governor.stopped or any(event.reaction != "warn" for event in events)
            chosen = _Chosen() if held else self._choose()
            sent = self._send(chosen, sensed, events)
        self._count(events)
        ticked = TickRecord(self.tick, sensed or self._nothing(), chosen.requested, sent, chosen.source, chosen.age,
                        chosen.seq,
                        tuple(events), self.governor.stopped)  # fmt: skip
        self.tick += 1
        return ticked

    def _sense(self, events: list[SafetyEvent]) -> RobotState | None:
        """A new reading; where there is none, the last one with an event."""
        began = time.monotonic()
        try:
            self._sensed = self.body.sense()
        except Exception as error:  # the border to drivers, which raise what they like
            events.append(SafetyEvent("bus", "hold", f"no reading: {format_error(error)}"))
            return self._sensed
        took = time.monotonic() - began
        if took > self._slow:
            events.append(
                SafetyEvent("bus", "warn", f"reading took {took * 1e3:.0f} ms, a tick is {self._slow * 1e3:.0f} ms")
            )
        if self._fresh:
            self.governor.begin(self._sensed.measured)
            self._fresh, self._sent = False, None
        return self._sensed

    def _look(self, events: list[SafetyEvent]) -> None:
        """Emergency stops, the dead man, and whether there is still somebody who sends plans."""
        cause = self._pressed()
        if cause and self.code != EMERGENCY:
            events.append(self.stop(cause, "estop", EMERGENCY))
        if self._running and not self._held():
            events.append(SafetyEvent("dead_man", "hold", "nobody holds the dead man's switch"))
        if self._running and (event := self._plausible.event()):
            events.append(event)
        verdict, quiet = self._silence.verdict(boottime()) if self._running else ("", 0.0)
        if verdict and not self.governor.stopped:
            cause = f"nothing was heard of the deployment loop for {quiet:.2f} s"
            self._forget()
            events.append(SafetyEvent("silence", "hold", cause) if verdict == "hold" else self.stop(cause, "silence"))

    def _choose(self) -> _Chosen:
        now = boottime()
        if self._hand is not None and now <= self._hand[1]:
            return _Chosen(self._hand[0], "person")
        due = self._timeline.at(self.tick, now)
        if due is None:
            return _Chosen()
        requested = due.action
        if self.body.drive == "speed":
            last = self._sensed.measured if self._sent is None else self._sent
            requested = integrated(last, requested, self.body.channels, self.body.hz)
        return _Chosen(requested, "policy", due.age_s, due.seq)

    def _send(self, chosen: _Chosen, sensed: RobotState, events: list[SafetyEvent]) -> np.ndarray | None:
        """What was really sent, or None where nothing was."""
        verdict = self.governor.govern(chosen.requested, chosen.age, sensed, self._sent)
        events += verdict.events
        if self.governor.stopped:
            self.code = self.code or STOPPED
        if verdict.target is None:
            return None
        try:
            self._sent = self.body.send(verdict.target)
        except Exception as error:  # the border to drivers, which raise what they like
            events.append(SafetyEvent("bus", "hold", f"not sent: {format_error(error)}"))
            return None
        return self._sent

    def _count(self, events: list[SafetyEvent]) -> None:
        """How long the robot has not answered, or not in time."""
        faults, now = [event for event in events if event.stage == "bus"], time.monotonic()
        if not any(event.reaction == "hold" for event in faults):
            self._well = now
        if not faults:
            self._quick = now
        for since, limit in ((self._well, LOST_S), (self._quick, SLOW_S)):
            if now - since > limit:
                raise LostError(f"the robot does not answer in time for {now - since:.1f} s: {faults[0].cause}")

    def _forget(self) -> None:
        self._timeline.clear()
        self._hand = None

    def _nothing(self) -> RobotState:
        """What stands for a reading before there was one."""
        return RobotState(boottime(), np.full(len(self.body.names), np.nan, np.float32),
                      np.full(len(self.body.channels), np.nan, np.float32))  # fmt: skip


def controls_of(body: RobotDriver) -> tuple[Channel, ...]:
    """What plans for a body say: its channels, or their speeds."""
    return speeds(body.channels) if body.drive == "speed" else tuple(body.channels)


def format_error(error: Exception) -> str:
    """A driver's message in one line."""
    return " ".join(str(error).split())[:200] or type(error).__name__
