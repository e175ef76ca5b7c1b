"""Our loop in `bench/bridge.py costs`: a motion process that ticks, and chunks asked for beside it."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

from bridge_body import CHUNK

from robot.control.messages import ActionPlan
from robot.control.process import Motion
from robot.serving.client import Client
from robot.types import TickRecord
from vlrl.serving.protocol import PolicyRequest


class Episode:
    """One episode. Args: threshold: the share of a chunk that is left when the next one is asked for."""

    def __init__(self, motion: Motion, client: Client, threshold: float):
        self._motion, self._client, self._threshold = motion, client, threshold
        self._asked: dict[int, TickRecord] = {}
        self._first, self._last, self._waits = 0, -1, False  # ticks of the newest plan; whether an answer is awaited
        self._over = threading.Event()

    def run(self, seconds: float) -> list[TickRecord]:
        """All its ticks, without their pictures."""
        ticked, until, ticks = self._motion.begin(0), time.monotonic() + seconds, []
        answers = threading.Thread(target=self._receive)
        answers.start()
        try:
            while ticked.sensed.t < until:
                ticks += [_figure(each) for each in self._motion.ticks()]
                self._maybe_ask(ticked)
                ticked = self._motion.wait(ticked.tick + 1, 5.0)
        finally:
            self._over.set()
            answers.join()
        return ticks

    def _maybe_ask(self, ticked: TickRecord) -> None:
        if not self._waits and (self._last - ticked.tick) / CHUNK <= self._threshold and ticked.sensed.images:
            self._waits = True
            seq = self._client.ask(PolicyRequest("", 0, "", ticked.sensed.state, ticked.sensed.images))
            self._asked[seq] = ticked
        else:
            self._motion.pet()

    def _receive(self) -> None:
        while not self._over.is_set():
            for answer in self._client.answers(0.1):
                while answer.seq not in self._asked:  # it was asked this moment
                    time.sleep(0.0002)
                ticked = self._asked.pop(answer.seq)
                self._motion.plan(
                    ActionPlan(answer.seq, ticked.tick + 1, answer.actions, self._motion.info.hz,
                         answer.sent_at + answer.expires_s, ticked.sensed.t)
                )  # fmt: skip
                self._last, self._waits = ticked.tick + len(answer.actions), False


def _figure(ticked: TickRecord) -> tuple[float, float | None]:
    """When it began, and the age of the action that was carried out."""
    held = any(event.reaction in ("hold", "stop") for event in ticked.events)
    return ticked.sensed.t, ticked.age if ticked.source == "policy" and not held else None


def figures(ticks: Sequence[tuple[float, float | None]]) -> dict[str, Any]:
    return {"starts": [start for start, _ in ticks], "ages": [age for _, age in ticks]}
