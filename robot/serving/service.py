"""What all connections of a server share."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from websockets.asyncio.server import ServerConnection

from robot.serving.metrics import Metrics
from robot.serving.openpi_codec import KEYS, Keys
from robot.serving.scheduler import Scheduler
from robot.serving.sessions import Limits
from robot.serving.spec import Servable


@dataclass(frozen=True, eq=False)
class Service:
    """A policy, who infers with it, and what is counted."""

    servable: Servable
    limits: Limits
    metrics: Metrics
    scheduler: Scheduler
    keys: Keys = KEYS
    open: dict[ServerConnection, float] = field(default_factory=dict)  # -> time.monotonic() of its last message
    tasks: set[asyncio.Task] = field(default_factory=set)

    def expires_s(self, actions: int) -> float:
        """Seconds after its observation from which no action of a chunk should be begun: its length in time.

        One second for each action of a policy that does not know its rate.
        """
        return actions / (self.servable.spec.hz or 1.0)

    @contextlib.contextmanager
    def client(self, connection: ServerConnection) -> Iterator[None]:
        """Counts a client while it is connected."""
        self.heard(connection)
        self.metrics.clients.set(len(self.open))
        try:
            yield
        finally:
            self.open.pop(connection, None)
            self.metrics.clients.set(len(self.open))

    def heard(self, connection: ServerConnection) -> None:
        """A client sent a message: it is not idle."""
        self.open[connection] = time.monotonic()

    def make_room(self) -> bool:
        """Whether one more client may connect. At the limit the client that is idle for longest has to go, if any."""
        if len(self.open) < self.limits.clients:
            return True
        longest = min(self.open, key=self.open.__getitem__, default=None)
        if longest is None or time.monotonic() - self.open[longest] < self.limits.idle_s:
            return False
        del self.open[longest]
        self.metrics.refused.labels("idle").inc()
        self.closing(longest, 1013, f"no message for {self.limits.idle_s:g} s while another client waits")
        return True

    def closing(self, connection: ServerConnection, code: int, reason: str) -> None:
        """Closes a connection without waiting for it."""
        task = asyncio.get_running_loop().create_task(connection.close(code, close_reason(reason)))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)


class Pace:
    """Keeps a loop from going round more often than `rate` times a second; a tenth of a second may be caught up on."""

    def __init__(self, rate: float):
        self._period, self._due = 1 / rate, 0.0

    async def step(self) -> None:
        now = time.monotonic()
        self._due = max(self._due, now - 0.1) + self._period
        if self._due > now:
            await asyncio.sleep(self._due - now)


def close_reason(text: str) -> str:
    """A reason as a websocket's close frame can hold it: 123 bytes."""
    return text.encode()[:120].decode(errors="ignore")
