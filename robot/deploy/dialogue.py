"""What an episode says to the policy's server and hears from it. Never waits for the network."""

from __future__ import annotations

import numpy as np

from robot.deploy.chunks import Chunks, Question
from robot.deploy.rig import Rig, shown, told_of
from robot.motion.body import Ticked
from robot.motion.timeline import Plan
from robot.serving.client import Client
from robot.serving.spec import Asked
from vlrl.system.clock import boottime


class Dialogue:
    """Questions and plans of one episode.

    Args:
        number: of the episode, from 1; what the server is told.
    """

    def __init__(self, rig: Rig, number: int, client: Client, chunks: Chunks):
        self._rig, self._number, self._client, self._chunks = rig, number, client, chunks
        self._told = told_of(rig.motion.about.names, rig.config.policy.state)
        self._task = ""
        self._asked_at = -1  # the tick of the last observation that was sent
        self._failures, self._said = client.stats.failures, ""
        self.lost = ""  # why there is no server, or ''

    def begin(self) -> None:
        self._chunks.begin()
        self._client.reset(self._number)
        self._task = self._rig.config.task or self._rig.motion.task

    def look(self) -> str:
        """News of the connection in one line, or ''. What was asked on a connection that is lost is forgotten."""
        before, self.lost = self.lost, self._client.lost
        if bool(before) == bool(self.lost):
            return self._refused()
        self._chunks.forget()
        if self.lost:
            self._rig.ledger.count("server", "warn", self.lost)
            return f"policy server lost: {self.lost}"
        self._rig.ledger.reconnects += 1
        self._client.reset(self._number)
        return "policy server back"

    @property
    def failure(self) -> str:
        """Why the server, which is there, gave nothing for the last observation; '' where it did."""
        return self._client.failure

    def _refused(self) -> str:
        """News of an observation that the server could not answer: it is not waited for, the next one is asked."""
        before, self._failures = self._failures, self._client.stats.failures
        if before == self._failures:
            return ""
        self._chunks.forget()
        self._rig.ledger.count("server", "warn", self.failure)
        known, self._said = self._said, self.failure
        return "" if known == self._said else f"policy server: {self._said}"

    def plans(self, tick: int, timeout: float) -> list[Plan]:
        """Those of the answers that have come. Args: tick: the newest; timeout: seconds to wait for one."""
        found = []
        for answer in self._client.answers(timeout):
            plan = self._chunks.plan(answer, tick)
            if plan is not None:
                self._rig.ledger.answer(answer)
                found.append(plan)
        return found

    def ask(self, ticked: Ticked) -> None:
        """Sends the newest observation if it is time, and the server is there."""
        if self.lost or ticked.tick <= self._asked_at or not np.isfinite(ticked.sensed.state).all():
            return
        if not self._chunks.wants(ticked.tick, boottime()):
            return
        prefix, delay = self._chunks.prefix(ticked.tick)
        images = shown(self._rig.images(ticked), self._rig.config.policy.pictures)
        state = ticked.sensed.state[self._told]
        asked = Asked("", self._number, self._task, state, images, prefix, delay)
        self._chunks.asked(self._client.ask(asked), Question(ticked.tick, ticked.sensed.t, self._number))
        self._asked_at = ticked.tick

    def hold(self) -> None:
        """The robot holds until the next plan; what was asked is no longer waited for."""
        motion = self._rig.motion
        motion.plan(self._chunks.nothing(len(motion.about.controls)))
