"""One episode: observe, ask, plan, watch every tick, until something ends it. Never waits for the network."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from robot.deploy.chunks import Chunks, Question
from robot.deploy.hands import FOR_S
from robot.deploy.rig import PAUSE_S, Rig, shown, told_of
from robot.deploy.spool import Spool
from robot.motion.body import Ticked
from robot.robot import RobotError, Signals
from robot.serving.client import Client
from robot.serving.spec import Asked

STOPPED, LOST, SERVER, EMERGENCY, DIED = 3, 4, 5, 6, 7  # exit codes


@dataclass(frozen=True)
class Ending:
    """How an episode ended. `code`: of the run, if it cannot go on; else 0. `success` None: nobody knows."""

    outcome: str  # success, failure, time_out, stopped, error
    reason: str = ""
    success: bool | None = None
    code: int = 0


class Episode:
    """Plays once, by `play`.

    Args:
        number: of the episode, from 1; what the server is told.
        spool: where it is recorded; None: nowhere.
        client, chunks: of the policy that plays.
        judge: how the job stands at a tick.
        after: called after each tick: why the episode should end, or ''.
    """

    def __init__(
        self, rig: Rig, number: int, *, seconds: float, spool: Spool | None = None, client: Client | None = None,
        chunks: Chunks | None = None, judge: Callable[[Ticked], Signals] | None = None,
        after: Callable[[Ticked], str] = lambda ticked: "",
    ):  # fmt: skip
        self._rig, self._number, self._spool = rig, number, spool
        self._client, self._chunks = client or rig.client, chunks or rig.chunks
        self._judge, self._after = judge or rig.scene.verdict, after
        self._ticks = round(seconds * rig.motion.about.hz)
        self._lookout, self._task = rig.lookout(), rig.config.task or rig.motion.task
        self._told = told_of(rig.motion.about.names, rig.config.policy.state)
        self._newest: Ticked | None = None
        self._asked_at = -1  # the tick of the last observation that was sent
        self._kept: dict[str, int] = {}  # camera -> the last picture that was recorded
        self._blind, self._lost, self._taken = "", "", False
        self.ending: Ending | None = None

    def play(self, first: Ticked) -> Ending:
        """Args: first: what `Motion.begin` gave."""
        self._chunks.begin()
        self._client.reset(self._number)
        self._first, self._task = first.tick, self._rig.config.task or self._rig.motion.task
        motion = self._rig.motion
        while self.ending is None:
            self._obey()
            for ticked in motion.ticks():
                if ticked.tick >= first.tick and self.ending is None:
                    self._tick(ticked)
            self._look()
            self._answer()
            self._ask()
            motion.pet()
            self._rig.show(self._newest)
        motion.plan(self._chunks.nothing(len(motion.about.controls)))
        motion.idle()
        return self.ending

    def _obey(self) -> None:
        for order in self._rig.orders():
            if order == "stop":
                self._rig.motion.stop("the operator's emergency stop")
                self._end("stopped", "the operator's emergency stop", code=EMERGENCY)
            elif order == "take" and self._rig.hands is not None:
                self._take(not self._taken)
            elif order in ("success", "failure"):
                self._rig.scene.order(order)
        hands = self._rig.hands
        if hands is not None and self._rig.config.teleop.take == "device" and hands.takes != self._taken:
            self._take(hands.takes)

    def _take(self, taken: bool) -> None:
        self._taken = taken
        self._note("a person takes over" if taken else "a person gives back")
        self._hold()

    def _tick(self, ticked: Ticked) -> None:
        rig, self._newest = self._rig, ticked
        rig.ledger.tick(ticked)
        self._chunks.saw(ticked)
        self._record(ticked)
        for event in ticked.events:
            rig.event(f"{event.stage} {event.reaction}: {event.cause}")
        if self._taken and (target := rig.hands.target()) is not None:
            rig.motion.hand(target, FOR_S)
        if ticked.stopped:
            return self._stopped(ticked)
        try:
            signals = self._judge(ticked)
        except RobotError as error:
            return self._end("error", str(error), code=LOST)
        return self._conclude(ticked, signals)

    def _conclude(self, ticked: Ticked, signals: Signals) -> None:
        if signals.success:
            self._end("success", success=True)
        elif signals.failure is not None:
            self._end("failure", signals.failure, success=False)
        elif signals.cut is not None:
            self._end("stopped", signals.cut)
        elif problem := self._after(ticked):
            self._end("failure", problem, success=False)
        elif ticked.tick - self._first >= self._ticks:
            self._end("time_out", success=None if self._rig.scene.ready else False)

    def _stopped(self, ticked: Ticked) -> None:
        """The motion process holds for good. A server that is gone is the cause of a stop for want of actions."""
        pressed = any(event.stage == "estop" for event in ticked.events) or ticked.stopped.startswith("estop")
        code = EMERGENCY if pressed else SERVER if self._lost else STOPPED
        cause = f"{ticked.stopped}; the policy server was lost: {self._lost}" if code == SERVER else ticked.stopped
        self._end("stopped", cause, code=code)

    def _record(self, ticked: Ticked) -> None:
        spool = self._spool
        if spool is None:
            return
        fresh = {}
        for name, seen in self._rig.seen().items():
            if self._kept.get(name) != seen.seq:
                fresh[name], self._kept[name] = seen.picture, seen.seq
        spool.tick(ticked, fresh | dict(ticked.sensed.images))
        if spool.problem and self._rig.config.record.on_full == "stop":
            self._end("error", f"nothing more can be recorded: {spool.problem}", code=2)
        elif spool.problem and not self._kept.get("told"):
            self._kept["told"] = 1
            self._rig.say(f"recording stopped: {spool.problem}; the episode goes on", bad=True)

    def _look(self) -> None:
        """After the robot's and the cameras' health."""
        rig = self._rig
        if not rig.motion.alive:
            ended = rig.motion.close()
            died = ended.code < 0 or ended.code in (0, 1)
            return self._end("error", rig.motion.fault or ended.cause, code=DIED if died else ended.code)
        if rig.ender.code:
            return self._end("stopped", "interrupted", code=rig.ender.code)
        if self._newest is None:
            return None
        sight = self._lookout.judge(rig.seen(), self._newest.sensed.measured, time.monotonic())
        if sight.stop and self.ending is None:
            rig.motion.stop(sight.stop)
        if sight.hold and not self._blind:
            self._hold()
        if sight.hold != self._blind and bool(sight.hold) != bool(self._blind):
            rig.ledger.count("camera", "hold", sight.hold) if sight.hold else None
            self._note(sight.hold or "the cameras see again")
        self._blind = sight.hold
        return None

    def _answer(self) -> None:
        """Waits a moment for an answer, or for the next look at everything."""
        for answer in self._client.answers(PAUSE_S):
            plan = self._chunks.plan(answer, self._newest.tick if self._newest else 0)
            if plan is None or self.ending is not None or self._taken:
                continue
            self._rig.ledger.answer(answer)
            try:
                self._rig.motion.plan(plan)
            except ValueError as error:
                self._end("error", f"the policy: {error}", code=2)

    def _ask(self) -> None:
        """Sends the newest observation if it is time, and the server is there."""
        lost = self._client.lost
        if bool(lost) != bool(self._lost):
            self._server(lost)
        self._lost = lost
        ticked = self._newest
        if ticked is None or self.ending or lost or self._blind or self._taken or ticked.tick <= self._asked_at:
            return
        if not np.isfinite(ticked.sensed.state).all() or not self._chunks.wants(ticked.tick, time.monotonic()):
            return
        prefix, delay = self._chunks.prefix(ticked.tick)
        images = shown(self._rig.images(ticked), self._rig.config.policy.pictures)
        state = ticked.sensed.state[self._told]
        asked = Asked("", self._number, self._task, state, images, prefix, delay)
        self._chunks.asked(self._client.ask(asked), Question(ticked.tick, ticked.sensed.t, self._number))
        self._asked_at = ticked.tick

    def _server(self, lost: str) -> None:
        self._chunks.forget()
        if lost:
            self._rig.ledger.count("server", "warn", lost)
            self._note(f"policy server lost: {lost}")
        else:
            self._rig.ledger.reconnects += 1
            self._client.reset(self._number)
            self._note("policy server back")

    def _hold(self) -> None:
        motion = self._rig.motion
        motion.plan(self._chunks.nothing(len(motion.about.controls)))

    def _note(self, text: str) -> None:
        self._rig.say(text, bad="lost" in text)
        self._rig.event(text)
        if self._spool is not None:
            self._spool.note(text=text)

    def _end(self, outcome: str, reason: str = "", success: bool | None = None, code: int = 0) -> None:
        self.ending = self.ending or Ending(outcome, reason, success, code)


def row(number: int, seed: int, ending: Ending, ticks: int, seconds: float) -> dict[str, Any]:
    """An episode as result.json has it. `void`: the fault that makes it say nothing of the policy, or ''."""
    void = ending.reason or ending.outcome if ending.outcome == "error" or ending.code in (SERVER, 130, 143) else ""
    return {
        "number": number, "seed": seed, "outcome": ending.outcome, "reason": ending.reason,
        "success": None if void else ending.success, "ticks": ticks, "seconds": round(seconds, 3), "void": void,
    }  # fmt: skip
