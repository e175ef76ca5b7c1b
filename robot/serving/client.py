"""A robot's side of the policy plane: observations out, chunks in, in a thread of its own. Loads no torch."""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
import threading
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

import numpy as np
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException

from vlrl.serving import protocol
from vlrl.serving.protocol import (
    KEYS,
    PROTOCOL,
    Chunk,
    Failure,
    Hello,
    Keys,
    Observe,
    Ping,
    PolicyRequest,
    PolicySpec,
    Pong,
    Refused,
    Reset,
    Wants,
    Welcome,
    arrays_pack,
    arrays_unpack,
    press,
)
from vlrl.system.clock import boottime
from vlrl.types import UserError

# A client's side of a protocol: how it greets, what it writes, how it reads. Each connection has its own.


@dataclass(frozen=True)
class Met:
    """Who answers."""

    spec: PolicySpec
    model: str


@dataclass(frozen=True, eq=False)
class PolicyReply:
    """An answer as it came; of what the protocol does not say, 0 or ''."""

    seq: int
    actions: np.ndarray  # float32 [K, A]
    hz: float
    expires_s: float
    queue_s: float
    infer_s: float
    version: str


class PolicyDialect(Protocol):
    path: str
    in_turn: bool  # one observation at a time is unanswered, as the protocol's replies do not say which they answer

    async def greet(self, connection: ClientConnection) -> Met:
        """Raises Refused where the server does not want this client."""

    def observe(self, seq: int, t: float, asked: PolicyRequest) -> bytes: ...

    def reset(self, episode: int) -> bytes | None:
        """None: the protocol has none."""

    def ping(self) -> bytes | None:
        """None: the protocol has none, so the websocket's own is used."""

    def read(self, data: bytes | str) -> PolicyReply | Pong | Refused | None:
        """What the server says. Raises Refused for what is no message."""


class Native:
    """Our own protocol.

    Args:
        wants: what will be sent; None: not said, so not compared.
        quality: of pictures as JPEG, 1 to 95; None: raw.
    """

    path, in_turn = "/vlrl", False

    def __init__(self, wants: Wants | None, quality: int | None):
        self._wants, self._quality, self._session, self._spec = wants, quality, "", None

    async def greet(self, connection: ClientConnection) -> Met:
        await connection.send(protocol.encode(Hello(PROTOCOL, "vlrl", self._wants)))
        welcome = protocol.from_server(await connection.recv())
        if isinstance(welcome, Failure):
            raise Refused(welcome.code, welcome.reason, retry=welcome.retry)
        if not isinstance(welcome, Welcome) or welcome.protocol != PROTOCOL:
            raise Refused("protocol", f"the server does not greet in protocol {PROTOCOL}")
        self._session, self._spec = welcome.session, welcome.spec
        return Met(welcome.spec, welcome.model)

    def observe(self, seq: int, t: float, asked: PolicyRequest) -> bytes:
        images = {name: self._picture(picture) for name, picture in asked.images.items()}
        prefix = None if asked.prefix is None else arrays_pack(asked.prefix)
        return protocol.encode(
            Observe(
                self._session, seq, t, asked.episode, asked.task, arrays_pack(asked.state), images, prefix, asked.delay
            )
        )

    def _picture(self, picture: np.ndarray):
        return arrays_pack(picture, "|u1") if self._quality is None else press(picture, self._quality)

    def reset(self, episode: int) -> bytes:
        return protocol.encode(Reset(self._session, episode))

    def ping(self) -> bytes:
        return protocol.encode(Ping(time.monotonic()))

    def read(self, data: bytes | str) -> PolicyReply | Pong | Refused | None:
        message = protocol.from_server(data)
        if isinstance(message, Failure):
            return Refused(message.code, message.reason, retry=message.retry, seq=message.seq)
        if isinstance(message, Chunk):
            if message.session != self._session:
                raise Refused("session", "a chunk of another session")
            return PolicyReply(
                message.seq, _actions(message, len(self._spec.action)), message.hz, message.expires_s,
                message.queue_s, message.infer_s, message.version,
            )  # fmt: skip
        return message if isinstance(message, Pong) else None


class Openpi:
    """openpi's protocol.

    Args:
        spec: of the policy, which openpi's servers do not say.
    """

    path, in_turn = "/", True

    def __init__(self, spec: PolicySpec, keys: Keys):
        self._spec, self._keys, self._seq = spec, keys, -1

    async def greet(self, connection: ClientConnection) -> Met:
        about = protocol.openpi_codec_read(await connection.recv())
        return Met(self._spec, protocol.openpi_codec_text(about["model"], "model") if "model" in about else "openpi")

    def observe(self, seq: int, t: float, asked: PolicyRequest) -> bytes:
        self._seq, parts = seq, {self._keys.state[0]: asked.state, self._keys.task: asked.task}
        return protocol.openpi_codec_write(
            parts | {self._keys.picture(name): image for name, image in asked.images.items()}
        )

    def reset(self, episode: int) -> None:
        return None

    def ping(self) -> None:
        return None

    def read(self, data: bytes | str) -> PolicyReply | Pong | Refused | None:
        if isinstance(data, str):
            return Refused("policy", " ".join(data.split()), retry=True, seq=self._seq)
        parts = protocol.openpi_codec_read(data)
        if "actions" not in parts:
            raise Refused("malformed", "the answer has no actions")
        actions = protocol.array(parts["actions"], "actions")
        if actions.ndim != 2 or actions.shape[1] != len(self._spec.action) or not np.isfinite(actions).all():
            raise Refused("shape", f"the answer has actions {list(actions.shape)}, not finite or of another size")
        hz, timing = self._spec.hz, parts.get("server_timing")
        return PolicyReply(
            self._seq, actions.astype(np.float32), hz, len(actions) / (hz or 1.0),
            protocol.seconds(timing, "queue_ms"), protocol.seconds(timing, "infer_ms"), "",
        )  # fmt: skip


def _actions(chunk: Chunk, width: int) -> np.ndarray:
    try:
        actions = arrays_unpack(chunk.actions, "<f4", 2)
    except ValueError as error:
        raise Refused("shape", f"the chunk {error}") from None
    if not len(actions) or actions.shape[1] != width:
        raise Refused("shape", f"the chunk has actions {list(actions.shape)}, wanted [K, {width}]")
    return actions.copy()


# What a client remembers of its observations: which answers it takes, and how long each took.

KEPT = 4096


@dataclass(frozen=True, eq=False)
class ChunkAnswer:
    """A chunk for the newest observation that has been answered."""

    seq: int
    actions: np.ndarray  # float32 [K, A]
    hz: float  # of the actions; 0: the server does not know
    sent_at: float  # boottime() when the observation was asked
    received_at: float
    queue_s: float  # in the server
    infer_s: float
    version: str  # of the policy's weights
    expires_s: float  # after sent_at, from then on all of it is late, where actions are bound to their times


@dataclass(frozen=True)
class AnswerTiming:
    """How long one answer took, in seconds. What is in neither part was on the way."""

    seq: int
    round_trip_s: float
    queue_s: float
    infer_s: float


@dataclass
class Stats:
    """Counts of one client since it was made. `dropped` has chunks by why they were not taken."""

    requests: int = 0
    sent: int = 0
    replaced: int = 0  # observations that a newer one took the place of before they were sent
    answered: int = 0
    failures: int = 0  # observations and messages that the server refused
    connections: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    timings: deque[AnswerTiming] = field(default_factory=lambda: deque(maxlen=KEPT))
    pings: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT))  # round trips without an inference, s


class RequestLedger:
    """Judges answers by what was asked. Clocks are this machine's."""

    def __init__(self, stats: Stats):
        self._stats, self._episode, self._newest = stats, 0, -1
        self._open: OrderedDict[int, tuple[float, int]] = OrderedDict()  # seq -> when, episode

    def add_request(self, seq: int, at: float, episode: int) -> None:
        self._open[seq] = (at, episode)
        self._episode = episode
        while len(self._open) > KEPT:
            self._open.popitem(last=False)

    def reset(self, episode: int) -> None:
        self._episode = episode

    def disconnected(self) -> None:
        """What was asked on the old connection is answered by nobody."""
        self._open.clear()

    def judge(self, reply: PolicyReply, now: float) -> ChunkAnswer | None:
        """The answer, or None for one that a newer one or another episode has overtaken; why is counted.

        An answer older than its chunk is long is one still: what carries it out knows whether it is of use.
        """
        if reply.seq not in self._open:  # it says nothing about what is open
            why = "older" if reply.seq <= self._newest else "not asked on this connection"
            self._stats.dropped[why] += 1
            return None
        at, episode = self._open[reply.seq]
        self._newest = reply.seq
        for seq in [each for each in self._open if each <= reply.seq]:
            del self._open[seq]
        if episode != self._episode:
            self._stats.dropped["episode"] += 1
            return None
        self._stats.answered += 1
        self._stats.timings.append(AnswerTiming(reply.seq, now - at, reply.queue_s, reply.infer_s))
        return ChunkAnswer(
            reply.seq, reply.actions, reply.hz, at, now, reply.queue_s, reply.infer_s, reply.version, reply.expires_s
        )


# A client's thread: connects, greets, sends the newest observation, reads, and begins again when that ends.

LARGEST = 2**24  # bytes of an answer
PAUSES = (0.1, 5.0)  # seconds between connections: the first, doubled up to the last


class Owner(Protocol):
    """Who is told, from the link's thread."""

    stats: object

    def met(self, met: Met) -> str: ...
    def parted(self, why: str, refused: bool) -> None: ...
    def went(self, seq: int, at: float, episode: int) -> None: ...
    def came(self, reply: PolicyReply) -> None: ...
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
        self, url: str, token: str | None, tls: ssl.SSLContext | None, dialect: Callable[[], PolicyDialect],
        silence: float, owner: Owner,
    ):  # fmt: skip
        self._refused = False  # the server does not want this client
        self._url, self._token, self._tls, self._make, self._silence = url, token, tls, dialect, silence
        self._owner, self._lock, self._last_heard_s = owner, threading.Lock(), 0.0
        self._pending: tuple[int, float, PolicyRequest] | None = None
        self._episode: int | None = None  # to be told
        self._unanswered = False
        self._loop, self._wake, self._closing = asyncio.new_event_loop(), asyncio.Event(), asyncio.Event()
        self._thread = threading.Thread(target=self._work, name="policy client", daemon=True)
        self._thread.start()

    def send(self, seq: int, at: float, request: PolicyRequest) -> None:
        with self._lock:
            self._owner.stats.replaced += self._pending is not None
            self._pending = (seq, at, request)
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
            why = await self._once_or_closed()
            self._owner.parted(why, self._refused)
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
            self._refused = not refused.retry
            return f"refused: {refused.reason}"
        except InvalidStatus as error:
            self._refused = error.response.status_code in (401, 403, 404)
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

    async def _talk(self, connection: ClientConnection, dialect: PolicyDialect) -> str:
        """Until the first of its parts ends. Returns why."""
        self._unanswered, self._last_heard_s = False, time.monotonic()
        parts = (self._send, self._read, self._watch)
        tasks = [asyncio.create_task(part(connection, dialect)) for part in parts]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            return next(each.result() for each in done)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _send(self, connection: ClientConnection, dialect: PolicyDialect) -> str:
        while True:
            await self._wake.wait()
            self._wake.clear()
            with self._lock:
                episode, self._episode = self._episode, None
                taken = None if dialect.in_turn and self._unanswered else self._pending
                self._pending = self._pending if taken is None else None
            if episode is not None and (message := dialect.reset(episode)):
                await connection.send(message)
            if taken:
                await self._observe(connection, dialect, *taken)

    async def _observe(
        self, connection: ClientConnection, dialect: PolicyDialect, seq: int, at: float, request: PolicyRequest
    ) -> None:
        try:
            message = dialect.observe(seq, at, request)
        except (TypeError, ValueError) as error:  # not what an observation is made of
            self._owner.failed(f"observation {seq} cannot be sent: {error}")
            return
        self._unanswered = True
        self._owner.went(seq, at, request.episode)
        await connection.send(message)

    async def _read(self, connection: ClientConnection, dialect: PolicyDialect) -> str:
        async for data in connection:
            self._last_heard_s = time.monotonic()
            message = dialect.read(data)
            if isinstance(message, Pong):
                self._owner.stats.pings.append(self._last_heard_s - message.t)
            elif isinstance(message, Refused):
                self._owner.failed(str(message))
            elif message:
                self._owner.came(message)
            if not isinstance(message, Pong):
                self._unanswered = False
                self._wake.set()
        return _closed(connection.protocol.close_exc)

    async def _watch(self, connection: ClientConnection, dialect: PolicyDialect) -> str:
        """Asks for a word, and sees whether any comes. While this process stood still it could hear none."""
        while (began := time.monotonic()) - self._last_heard_s < self._silence:
            with contextlib.suppress(TimeoutError):  # what is on its way fills the line
                async with asyncio.timeout(self._silence / 4):
                    if message := dialect.ping():
                        await connection.send(message)
                    else:
                        (await connection.ping()).add_done_callback(self._ponged)
            await asyncio.sleep(self._silence / 4)
            late = time.monotonic() - began - self._silence / 2  # the longest that a round takes
            if late > 0:
                self._last_heard_s = min(time.monotonic(), self._last_heard_s + late)
        connection.transport.abort()
        return f"not a word for {self._silence:g} s"

    def _ponged(self, pong: asyncio.Future) -> None:
        if not pong.cancelled() and not pong.exception():
            self._last_heard_s = time.monotonic()
            self._owner.stats.pings.append(pong.result())


def _closed(error: ConnectionClosed) -> str:
    frame = error.rcvd
    return f"closed by the server: {frame.reason or frame.code}" if frame else "the connection broke"


class Client:
    """A connection to a policy server that mends itself. Any thread may call; nothing but the constructor waits.

    Observations are sent as they come: one that is not yet on its way is replaced by the next. A connection that is
    lost is made anew, with longer and longer pauses, and `lost` says why meanwhile.

    Args:
        url: ws://HOST:PORT or wss://HOST:PORT.
        token: of the server; sent in the clear without TLS.
        ca: a file with the certificate that the server's is checked by; None: the system's.
        wants: what will be sent, which the server compares with what its policy sees; None: it is not compared.
        patience: seconds until a first connection is given up.
        silence: seconds without a word from the server, which is asked for one four times in it, that count as lost.
        quality: of pictures as JPEG, 1 to 95; None: raw.

    Raises:
        UserError: the url is none, the server cannot be reached in time, or does not want this client.
    """

    def __init__(
        self, url: str, *, token: str | None = None, ca: Path | None = None, wants: Wants | None = None,
        patience: float = 10.0, silence: float = 2.0, quality: int | None = None,
    ):  # fmt: skip
        self._begin(url, token, ca, lambda: Native(wants, quality), patience, silence)

    def _begin(
        self, url: str, token: str | None, ca: Path | None, dialect: Callable[[], PolicyDialect], patience: float,
        silence: float,
    ) -> None:  # fmt: skip
        self.stats, self.failure = Stats(), ""
        self._ledger, self._seq, self._lock = RequestLedger(self.stats), -1, threading.Condition()
        self._met: Met | None = None
        self._lost, self._refused, self._answers = "not yet connected", False, []
        self._link = Link(_checked(url), token, _tls(url, ca), dialect, silence, self)
        try:
            self._await_greeting(url, patience)
        except BaseException:
            self.close()
            raise

    def _await_greeting(self, url: str, patience: float) -> None:
        with self._lock:
            done = self._lock.wait_for(lambda: self._met or self._refused, patience)
            if not done or not self._met:
                hint = "; `vlrl serve` starts one" if self._lost == "Connection refused" else ""
                raise UserError(f"policy server {url}: {self._lost}{hint}")

    @property
    def spec(self) -> PolicySpec:
        """What the policy sees and gives."""
        return self._met.spec

    @property
    def model(self) -> str:
        return self._met.model

    @property
    def lost(self) -> str:
        """Why there is no connection now; '' while there is one."""
        return self._lost

    def ask(self, request: PolicyRequest) -> int:
        """Sends an observation, at once; its number, which rises. One that is still unsent is replaced."""
        with self._lock:
            self._seq += 1
            seq, at = self._seq, boottime()
            self.stats.requests += 1
        self._link.send(seq, at, replace(request, images=dict(request.images)))
        return seq

    def answers(self, timeout: float = 0.0) -> list[ChunkAnswer]:
        """The chunks that have come since the last call, oldest first. Args: timeout: seconds to wait for one."""
        with self._lock:
            if timeout > 0:
                self._lock.wait_for(lambda: self._answers, timeout)
            taken, self._answers = self._answers, []
        return taken

    def reset(self, episode: int) -> None:
        """An episode begins: what was asked before is no longer answered."""
        with self._lock:
            self._ledger.reset(episode)
            self.stats.dropped["episode"] += len(self._answers)
            self._answers = []
        self._link.reset(episode)

    def close(self) -> None:
        """Ends the connection. May be called twice."""
        self._link.close()

    def __enter__(self):
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # what the link tells, from its own thread

    def met(self, met: Met) -> str:
        """A connection stands. Returns why it cannot be used, or ''."""
        with self._lock:
            if self._met and self._met.spec != met.spec:
                return "the server has another policy now, with other inputs or outputs: start anew"
            self._met, self._lost = met, ""
            self.stats.connections += 1
            self._lock.notify_all()
        return ""

    def parted(self, why: str, refused: bool) -> None:
        """A connection has ended, or there was none. Args: refused: the server does not want this client."""
        with self._lock:
            self._lost, self._refused = why, refused
            self._ledger.disconnected()
            self._lock.notify_all()

    def went(self, seq: int, at: float, episode: int) -> None:
        """An observation is on its way."""
        with self._lock:
            self._ledger.add_request(seq, at, episode)
            self.stats.sent += 1

    def came(self, reply: object) -> None:
        """A reply of the server."""
        with self._lock:
            answer = self._ledger.judge(reply, boottime())
            if answer:
                self.failure = ""
                self._answers.append(answer)
                self._lock.notify_all()

    def failed(self, why: str) -> None:
        """The server refused something."""
        with self._lock:
            self.failure = why
            self.stats.failures += 1
            self._lock.notify_all()


class OpenpiClient(Client):
    """The same for a server that speaks openpi's protocol; it does not say what its policy sees, so the caller does.

    openpi's servers infer in their event loop and answer nothing meanwhile, so `silence` is longer.
    """

    def __init__(
        self, url: str, *, spec: PolicySpec, keys: Keys = KEYS, token: str | None = None, ca: Path | None = None,
        patience: float = 10.0, silence: float = 10.0,
    ):  # fmt: skip
        self._begin(url, token, ca, lambda: Openpi(spec, keys), patience, silence)


def _checked(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("ws", "wss") or not parts.hostname:
        raise UserError(f"policy server {url}: write ws://HOST:PORT or wss://HOST:PORT")
    return url.rstrip("/")


def _tls(url: str, ca: Path | None) -> ssl.SSLContext | None:
    if urlsplit(url).scheme != "wss":
        return None
    try:
        return ssl.create_default_context(cafile=ca)
    except (OSError, ssl.SSLError) as error:
        raise UserError(f"policy server {url}: ca {ca}: {error}") from None
