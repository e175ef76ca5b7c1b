"""Our side of `costs`: the policy server, a client that asks in turn, and a motion process with its loop."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import bridge_policy
import numpy as np
from bridge_body import CHUNK, JOINTS, frames, turned
from bridge_loop import Episode, figures
from bridge_policy import Kind, Watch
from bridge_worker import cpu_of

from robot.control.process import Motion
from robot.safety.limits import Safety, Stale
from robot.serving.client import Client
from vlrl.serving.protocol import PolicyRequest, PolicySpec


class Server:
    """`vlrl serve` in this process."""

    def __init__(self) -> None:
        from vlrl.serving.policies import servable

        self._load, self._open = servable, contextlib.ExitStack()

    def serve(self, folder: str, kind: Kind, wait_s: float) -> int:
        """Its port."""
        from vlrl.serving.server import running

        self._open.close()
        self._watch, policy = Watch(kind, wait_s), self._load(folder, device="cpu")
        if kind == "none":
            policy = _Nothing(policy.spec)
        else:
            self._watch.into(policy._model)
        policy.infer = self._watch.around(policy.infer)
        url = self._open.enter_context(running(policy))
        self._watch.taken()
        return int(url.rpartition(":")[2])

    def taken(self) -> dict[str, list[float]]:
        return self._watch.taken()

    def save(self, folder: str, height: int, width: int) -> None:
        """The policy of both sides."""
        bridge_policy.save(Path(folder), height, width)


class _Nothing:
    """Answers zeros."""

    name, version = "nothing", "0"

    def __init__(self, spec: PolicySpec):
        self.spec = spec

    def infer(self, asked: Sequence[PolicyRequest]) -> list[np.ndarray]:
        return [np.zeros((CHUNK, len(JOINTS)), np.float32) for _ in asked]

    def forget(self, session: str) -> None: ...


class Robot:
    """The robot's computer."""

    def meet(self, port: int, folder: str, height: int, width: int, quality: int | None = None) -> None:
        self._client = Client(f"ws://127.0.0.1:{port}", quality=quality)
        self._frames, self._count = frames(height, width), 0

    def part(self) -> None:
        self._client.close()

    def trips(self, count: int) -> list[float]:
        """Seconds of round trips, one after the other: from an observation in memory to its actions in memory."""
        return [self._trip() for _ in range(count)]

    def _trip(self) -> float:
        self._count += 1
        state = turned(np.zeros(len(JOINTS), np.float32), self._count)
        asked = PolicyRequest("", 0, "", state, self._frames[self._count % len(self._frames)])
        began = time.perf_counter()
        seq = self._client.ask(asked)
        answers = self._client.answers(60.0)
        ended = time.perf_counter()
        if [answer.seq for answer in answers] != [seq]:
            raise RuntimeError(f"no answer to {seq}: {self._client.lost or self._client.failure or answers}")
        return ended - began

    def loop(self, port: int, folder: str, height: int, width: int, hz: float, seconds: float, threshold: float,
             real: bool = True) -> dict[str, Any]:  # fmt: skip
        """An episode: the motion process ticks, and a new chunk is asked for when the share left is `threshold`."""
        body = {"name": "bridge_body:Still", "hz": hz, "height": height, "width": width, "real": real}
        safety = Safety(stale=Stale(hold_s=3.0))  # half of a chunk of 50 at 30 Hz lasts 0.8 s
        with Client(f"ws://127.0.0.1:{port}") as client, contextlib.closing(Motion(body, safety)) as motion:
            began = [cpu_of(motion.pid), time.process_time()]
            ticks = Episode(motion, client, threshold).run(seconds)
            used = cpu_of(motion.pid) - began[0] + time.process_time() - began[1]
            return figures(ticks) | {"cpu": used, "priority": motion.info.priority, "dropped": motion.lost}
