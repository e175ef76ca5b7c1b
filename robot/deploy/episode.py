"""One episode: observe, ask, plan, watch every tick, until something ends it. Never waits for the network."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from robot.deploy.chunks import Chunks
from robot.deploy.dialogue import Dialogue
from robot.deploy.ending import DIED, EMERGENCY, LOST, Ending, halted, judged
from robot.deploy.hands import FOR_S
from robot.deploy.record import Recording
from robot.deploy.rig import PAUSE_S, Rig
from robot.deploy.spool import Spool
from robot.motion.body import Ticked
from robot.robot import RobotError, Signals
from robot.serving.client import Client
from vlrl.system.clock import boottime

Judge = Callable[[Ticked, Mapping[str, np.ndarray]], Signals]


class Episode:
    """Plays once, by `play`.

    Args:
        number: of the episode, from 1; what the server is told.
        spool: where it is recorded; None: nowhere.
        client, chunks: of the policy that plays.
        judge: how the job stands at a tick, of which it is shown the pictures.
        after: called after each tick: why the episode should end, or ''.
    """

    def __init__(
        self, rig: Rig, number: int, *, seconds: float, spool: Spool | None = None, client: Client | None = None,
        chunks: Chunks | None = None, judge: Judge | None = None, after: Callable[[Ticked], str] = lambda ticked: "",
    ):  # fmt: skip
        self._rig, self._recording = rig, Recording(spool, rig.seen)
        self._chunks = chunks or rig.chunks
        self._policy = Dialogue(rig, number, client or rig.client, self._chunks)
        self._takeover = rig.takeover()
        self._judge, self._after = judge or rig.scene.verdict, after
        self._ticks = round(seconds * rig.motion.about.hz)
        self._lookout, self._blind = rig.lookout(), ""
        self._newest: Ticked | None = None
        self.ending: Ending | None = None

    def play(self, first: Ticked) -> Ending:
        """Args: first: what `Motion.begin` gave."""
        motion, self._first = self._rig.motion, first.tick
        self._policy.begin()
        while self.ending is None:
            self._obey()
            for ticked in motion.ticks():
                if ticked.tick >= first.tick and self.ending is None:
                    self._tick(ticked)
            self._look()
            self._converse()
            motion.pet()
            self._rig.show(self._newest)
        self._policy.hold()
        motion.idle()
        return self.ending

    def _obey(self) -> None:
        for order in self._rig.orders():
            if order == "stop":
                self._rig.motion.stop("the operator's emergency stop", emergency=True)
                self._end(Ending("stopped", "the operator's emergency stop", code=EMERGENCY))
            elif order == "take" and self._takeover is not None:
                self._take(not self._taken)
            elif order in ("success", "failure"):
                self._rig.scene.order(order)
        if self._takeover is not None and self._rig.config.teleop.take == "device":
            takes = self._rig.hands.takes
            if takes is not None and takes != self._taken:  # a device that is lost gives nothing back
                self._take(takes)

    @property
    def _taken(self) -> bool:
        return self._takeover is not None and self._takeover.taken

    def _take(self, taken: bool) -> None:
        self._takeover.turn(taken)
        self._note(self._takeover.said)
        self._policy.hold()

    def _tick(self, ticked: Ticked) -> None:
        rig, ticked = self._rig, self._labelled(ticked)
        self._newest = ticked
        rig.ledger.tick(ticked)
        self._chunks.saw(ticked)
        self._keep(ticked)
        for event in ticked.events:
            rig.event(f"{event.stage} {event.reaction}", event.cause)
        if self._taken:
            self._follow(ticked)
        self._end(self._standing(ticked))

    def _standing(self, ticked: Ticked) -> Ending | None:
        """How the episode ends with this tick, if it does."""
        if ticked.stopped:
            gone = self._policy.lost or self._policy.failure
            return halted(ticked, self._takeover.lost if self._taken else "", gone)
        try:
            signals = self._judge(ticked, self._rig.images(ticked))
        except RobotError as error:
            return Ending("error", str(error), code=LOST)
        over = ticked.tick - self._first >= self._ticks
        done = signals.success or signals.failure is not None or signals.cut is not None
        problem = "" if done or self.ending else self._after(ticked)
        return judged(signals, problem, over, self._rig.scene.knows)

    def _labelled(self, ticked: Ticked) -> Ticked:
        """With whoever really drove."""
        if ticked.source == "policy" and self._chunks.scripted(ticked.seq):
            return replace(ticked, source="script")
        return ticked if self._takeover is None else self._takeover.seen(ticked)

    def _follow(self, ticked: Ticked) -> None:
        takeover, followed, lost = self._takeover, self._takeover.follows, self._takeover.lost
        target = takeover.target(ticked)
        if target is not None:
            self._rig.motion.hand(target, FOR_S)
        if takeover.follows != followed or bool(takeover.lost) != bool(lost):
            self._note(takeover.said)
        self._rig.said = takeover.said

    def _keep(self, ticked: Ticked) -> None:
        problem = self._recording.tick(ticked)
        if problem and self._rig.config.record.on_full == "stop":
            self._end(Ending("error", f"nothing more can be recorded: {problem}", code=2))
        elif problem:
            self._rig.say(f"recording stopped: {problem}; the episode goes on", bad=True)

    def _look(self) -> None:
        """After the robot's and the cameras' health."""
        rig = self._rig
        if not rig.motion.alive:
            ended = rig.motion.close()
            died = ended.code < 0 or ended.code in (0, 1)
            cause = rig.motion.fault or ended.cause
            return self._end(Ending("error", cause, code=DIED if died else ended.code))
        if rig.ender.code:
            return self._end(Ending("stopped", "interrupted", code=rig.ender.code))
        if self._newest is None:
            return None
        sight = self._lookout.judge(rig.seen(), self._newest.sensed.measured, boottime())
        if sight.stop and self.ending is None:
            rig.motion.stop(sight.stop)
        if sight.hold and not self._blind:
            self._policy.hold()
            rig.ledger.count("camera", "hold", sight.hold)
        if bool(sight.hold) != bool(self._blind):
            self._note(sight.hold or "the cameras see again")
        self._blind = sight.hold
        return None

    def _converse(self) -> None:
        """Waits a moment for an answer, or for the next look at everything; asks if it is time."""
        news = self._policy.look()
        if news:
            self._note(news)
        for plan in self._policy.plans(self._newest.tick if self._newest else 0, PAUSE_S):
            if self.ending is not None or self._taken or self._blind:
                continue
            try:
                self._rig.motion.plan(plan)
            except ValueError as error:
                self._end(Ending("error", f"the policy: {error}", code=2))
        if self._newest is not None and not (self.ending or self._blind or self._taken):
            self._policy.ask(self._newest)

    def _note(self, text: str) -> None:
        self._rig.say(text, bad=bool(self._policy.lost or self._blind or (self._taken and self._takeover.lost)))
        self._rig.event(text)
        self._recording.note(text)

    def _end(self, ending: Ending | None) -> None:
        """The first one counts."""
        self.ending = self.ending or ending
