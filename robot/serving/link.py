"""A client's thread: connects, greets, sends the newest observation, reads, and begins again when that ends."""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
import threading
import time
from collections.abc import Callable
from typing import Protocol

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException

from robot.serving.dialects import Dialect, Met, Reply
from robot.serving.messages import Pong, Refused
from robot.serving.spec import Asked

LARGEST = 2**24  # bytes of an answer
PAUSES = (0.1, 5.0)  # seconds between connections: the first, doubled up to the last


class Owner(Protocol):
    """Who is told, from the link's thread."""

    stats: object

    def met(self, met: Met) -> str: ...
    def parted(self, why: str) -> None: ...
    def went(self, seq: int, at: float, episode: int) -> None: ...
    def came(self, reply: Reply) -> None: ...
    def failed(self, why: str) -> None: ...


class _Direct(connect):
    """Follows no redirect: a token is for the server that was named."""

    def process_redirect(self, exc: Exception) -> Exception:
        return exc


class Link:
    """The thread and its event loop.

    Args:
        silence: seconds without a word from the server after which the connection counts as lost.
    """

    def __init__(
        self, url: str, token: str | None, tls: ssl.SSLContext | None, dialect: Callable[[], Dialect], silence: float,
        owner: Owner,
    ):  # fmt: skip
        self.refused = False  # the server does not want this client
        self._url, self._token, self._tls, self._make, self._silence = url, token, tls, dialect, silence
        self._owner, self._lock, self._heard = owner, threading.Lock(), 0.0
        self._pending: tuple[int, float, Asked] | None = None
        self._episode: int | None = None  # to be told
        self._unanswered = False
        self._loop, self._wake, self._closing = asyncio.new_event_loop(), asyncio.Event(), asyncio.Event()
        self._thread = threading.Thread(target=self._work, name="policy client", daemon=True)
        self._thread.start()

    def send(self, seq: int, at: float, asked: Asked) -> None:
        with self._lock:
            self._owner.stats.replaced += self._pending is not None
            self._pending = (seq, at, asked)
        self._call(self._wake.set)

    def reset(self, episode: int) -> None:
        with self._lock:
            self._owner.stats.replaced += self._pending is not None
            self._pending, self._episode = None, episode
        self._call(self._wake.set)

    def close(self) -> None:
        self._call(self._closing.set)
        self._thread.join()

    def _call(self, function: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(function)

    # in the thread

    def _work(self) -> None:
        try:
            self._loop.run_until_complete(self._live())
        finally:
            self._loop.close()

    async def _live(self) -> None:
        pause = PAUSES[0]
        while not self._closing.is_set():
            began = time.monotonic()
            self._owner.parted(await self._once_or_closed())
            pause = PAUSES[0] if time.monotonic() - began > PAUSES[1] else min(2 * pause, PAUSES[1])
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._closing.wait(), pause)

    async def _once_or_closed(self) -> str:
        ends = [asyncio.create_task(self._once()), asyncio.create_task(self._closing.wait())]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        for task in ends:
            task.cancel()
        why, _ = await asyncio.gather(*ends, return_exceptions=True)
        return why if isinstance(why, str) else "closed"

    async def _once(self) -> str:
        """One connection from beginning to end. Returns why it ended."""
        dialect, headers = self._make(), {"Authorization": f"Bearer {self._token}"} if self._token else None
        try:
            async with _Direct(
                self._url + dialect.path, additional_headers=headers, ssl=self._tls, compression=None, proxy=None,
                max_size=LARGEST, ping_interval=None, open_timeout=5.0, close_timeout=1.0, user_agent_header=None,
            ) as connection:  # fmt: skip
                async with asyncio.timeout(5.0):
                    met = await dialect.greet(connection)
                if unfit := self._owner.met(met):
                    return unfit
                return await self._talk(connection, dialect)
        except Refused as refused:
            self.refused = not refused.retry
            return f"refused: {refused.reason}"
        except InvalidStatus as error:
            self.refused = error.response.status_code in (401, 403, 404)
            body = (error.response.body or b"").decode(errors="replace").strip().splitlines()
            return f"refused: {error.response.status_code}: {body[0] if body else 'no reason given'}"
        except ConnectionClosed as error:
            return _closed(error)
        except TimeoutError:
            return "it does not greet in time"
        except OSError as error:
            named = error.errno and error.errno > 0 and not isinstance(error, ssl.SSLError)
            return os.strerror(error.errno) if named else " ".join(str(error).split())
        except (WebSocketException, EOFError) as error:
            return " ".join(str(error).split()) or type(error).__name__

    async def _talk(self, connection: ClientConnection, dialect: Dialect) -> str:
        """Until the first of its parts ends. Returns why."""
        self._unanswered, self._heard = False, time.monotonic()
        parts = (self._send, self._read, self._watch)
        tasks = [asyncio.create_task(part(connection, dialect)) for part in parts]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            return next(each.result() for each in done)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _send(self, connection: ClientConnection, dialect: Dialect) -> str:
        while True:
            await self._wake.wait()
            self._wake.clear()
            with self._lock:
                episode, self._episode = self._episode, None
                taken = None if dialect.in_turn and self._unanswered else self._pending
                self._pending = self._pending if taken is None else None
            if episode is not None and (said := dialect.reset(episode)):
                await connection.send(said)
            if taken:
                await self._observe(connection, dialect, *taken)

    async def _observe(self, connection: ClientConnection, dialect: Dialect, seq: int, at: float, asked: Asked) -> None:
        try:
            said = dialect.observe(seq, at, asked)
        except (TypeError, ValueError) as error:  # not what an observation is made of
            self._owner.failed(f"observation {seq} cannot be sent: {error}")
            return
        self._unanswered = True
        self._owner.went(seq, at, asked.episode)
        await connection.send(said)

    async def _read(self, connection: ClientConnection, dialect: Dialect) -> str:
        async for data in connection:
            self._heard = time.monotonic()
            said = dialect.read(data)
            if isinstance(said, Pong):
                self._owner.stats.pings.append(self._heard - said.t)
            elif isinstance(said, Refused):
                self._owner.failed(str(said))
            elif said:
                self._owner.came(said)
            if not isinstance(said, Pong):
                self._unanswered = False
                self._wake.set()
        return _closed(connection.protocol.close_exc)

    async def _watch(self, connection: ClientConnection, dialect: Dialect) -> str:
        """Asks for a word, and sees whether any comes. While this process stood still it could hear none."""
        while (began := time.monotonic()) - self._heard < self._silence:
            with contextlib.suppress(TimeoutError):  # what is on its way fills the line
                async with asyncio.timeout(self._silence / 4):
                    if said := dialect.ping():
                        await connection.send(said)
                    else:
                        (await connection.ping()).add_done_callback(self._ponged)
            await asyncio.sleep(self._silence / 4)
            late = time.monotonic() - began - self._silence / 2  # the longest that a round takes
            if late > 0:
                self._heard = min(time.monotonic(), self._heard + late)
        connection.transport.abort()
        return f"not a word for {self._silence:g} s"

    def _ponged(self, pong: asyncio.Future) -> None:
        if not pong.cancelled() and not pong.exception():
            self._heard = time.monotonic()
            self._owner.stats.pings.append(pong.result())


def _closed(error: ConnectionClosed) -> str:
    said = error.rcvd
    return f"closed by the server: {said.reason or said.code}" if said else "the connection broke"
