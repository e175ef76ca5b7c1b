"""What the server holds of a client, and whether an observation is one that its policy can be shown."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
from msgspec import Raw
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConnectionClosed

from vlrl.serving import protocol
from vlrl.serving.protocol import (
    KEYS,
    Chunk,
    Failure,
    Hello,
    Jpeg,
    Keys,
    Numbers,
    Observe,
    Ping,
    PolicyRequest,
    PolicySpec,
    Pong,
    Refused,
    Reset,
    Servable,
    Welcome,
    arrays_pack,
    arrays_unpack,
    difference,
    picture_of,
    size_of,
)
from vlrl.system.clock import boottime
from vlrl.types import UserError


@dataclass(frozen=True)
class Limits:
    """What one server takes."""

    clients: int = 8
    pixels: int = 2**21  # of a picture whose size the policy leaves open
    batch: int = 8  # observations of several clients in one inference
    hello_s: float = 5.0  # for the handshakes of TLS and websocket each, and until a client's Hello
    idle_s: float = 30.0  # without a message; then a client makes room for another where all places are taken
    bad: int = 16  # refused messages of a connection, then it is closed
    rate: float = 500.0  # messages a second of a connection; what is above waits in the client
    answers: int = 8  # that a client has not read, then its connection is closed

    def message(self, spec: PolicySpec) -> int:
        """Bytes of the largest message: all pictures raw, and what else belongs to an observation."""
        pictures = sum(3 * (p.height * p.width or self.pixels) for p in spec.pictures)
        return pictures + 4 * len(spec.state) + 4 * spec.chunk * len(spec.action) + 2**16


@dataclass(frozen=True, eq=False)
class Request:
    """An observation that was found good, its pictures not yet decoded."""

    session: str
    seq: int
    t: float  # the client's clock
    episode: int
    task: str
    state: np.ndarray  # float32 [S]
    pictures: Mapping[str, Numbers | Jpeg]  # in the spec's order
    prefix: np.ndarray | None = None  # float32 [P, A]
    delay: int = 0
    arrived: float = field(default_factory=boottime)

    @property
    def shape(self) -> tuple[object, ...]:
        """What observations of one batch have in common."""
        sizes = tuple(size_of(picture) for picture in self.pictures.values())
        return sizes, None if self.prefix is None else len(self.prefix), self.delay

    def decode(self) -> PolicyRequest:
        """With its pictures decoded. Raises Refused for a damaged one."""
        try:
            images = {name: picture_of(picture) for name, picture in self.pictures.items()}
        except ValueError as error:
            raise Refused("picture", f"a picture {error}", seq=self.seq) from None
        return PolicyRequest(self.session, self.episode, self.task, self.state, images, self.prefix, self.delay)


class Session:
    """One connection of a client.

    Args:
        names: of its pictures, in the policy's order; '' for one that has none.
    """

    def __init__(self, spec: PolicySpec, limits: Limits, names: tuple[str, ...]):
        self.id, self.episode, self.seq = secrets.token_urlsafe(16), 0, -1
        self._spec, self._limits, self._names = spec, limits, names

    def known(self, session: str) -> None:
        """Raises Refused for a message that names another session."""
        if not secrets.compare_digest(session.encode(), self.id.encode()):
            raise Refused("session", "the message names a session that is not this connection's")

    def reset(self, reset: Reset) -> None:
        """An episode begins. Raises Refused for another session's, and for one that is over."""
        self.known(reset.session)
        if reset.episode < self.episode:
            raise Refused("episode", f"episode {reset.episode} is over, this is {self.episode}")
        self.episode = reset.episode

    def request(self, observe: Observe) -> Request:
        """The observation, checked.

        Raises:
            Refused: of another session, not newer than the last, or of another shape than the policy sees.
        """
        self.known(observe.session)
        if observe.seq <= self.seq:
            raise Refused("seq", f"observation {observe.seq} is not newer than {self.seq}", seq=observe.seq)
        if observe.episode < self.episode:
            reason = f"observation {observe.seq} is of episode {observe.episode}, which is over"
            raise Refused("episode", reason, seq=observe.seq)
        self.seq, self.episode = observe.seq, observe.episode
        try:
            state, pictures, prefix = self._state(observe), self._pictures(observe), self._prefix(observe)
        except ValueError as error:
            raise Refused("shape", str(error), seq=observe.seq) from None
        return Request(
            self.id, observe.seq, observe.t, observe.episode, observe.task, state, pictures, prefix, observe.delay
        )

    def _state(self, observe: Observe) -> np.ndarray:
        state = _named("the state", observe.state, 1)
        if len(state) != len(self._spec.state):
            raise ValueError(f"the state has {len(state)} numbers, the policy sees {len(self._spec.state)}")
        return state

    def _pictures(self, observe: Observe) -> dict[str, Numbers | Jpeg]:
        images, names = observe.images, self._names
        fits = set(images) == set(names) or all(w in ("", g) for w, g in zip(names, images, strict=False))
        if len(images) != len(names) or not fits:
            raise ValueError(f"pictures {sorted(images)}, the policy sees {sorted(names)}")
        chosen = {name: images[name] for name in names} if set(images) == set(names) else dict(images)
        for (name, picture), want in zip(chosen.items(), self._spec.pictures, strict=True):
            try:
                height, width = size_of(picture)
            except ValueError as error:
                raise ValueError(f"picture {name!r} {error}") from None
            fits = want.height in (0, height) and want.width in (0, width)
            if not fits or height * width > (want.height * want.width or self._limits.pixels) or not height * width:
                allowed = f"{want.width}x{want.height}" if want.height else f"{self._limits.pixels} pixels at most"
                raise ValueError(f"picture {name!r} is {width}x{height}, the policy sees {allowed}")
        return chosen

    def _prefix(self, observe: Observe) -> np.ndarray | None:
        if observe.prefix is None and not observe.delay:
            return None
        if not self._spec.rtc or observe.prefix is None:
            raise ValueError("a delay has no prefix" if self._spec.rtc else "this policy takes no prefix and no delay")
        prefix = _named("the prefix", observe.prefix, 2)
        if len(prefix) > self._spec.chunk or prefix.shape[1] != len(self._spec.action) or observe.delay > len(prefix):
            most = f"[{self._spec.chunk} at most, {len(self._spec.action)}]"
            raise ValueError(f"a prefix {list(prefix.shape)} with a delay of {observe.delay}, the policy takes {most}")
        return prefix if len(prefix) else None


def _named(name: str, numbers: Numbers, dims: int) -> np.ndarray:
    try:
        return arrays_unpack(numbers, "<f4", dims)
    except ValueError as error:
        raise ValueError(f"{name} {error}") from None


# What a policy server counts, as Prometheus reads it.

SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)


class Metrics:
    """Counts of one server, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        kept = {"registry": self.registry}
        self.queue = Histogram("vlrl_queue_seconds", "From arrival to the policy", buckets=SECONDS, **kept)
        self.infer = Histogram("vlrl_inference_seconds", "In the policy, a batch", buckets=SECONDS, **kept)
        self.total = Histogram("vlrl_total_seconds", "From arrival to the answer", buckets=SECONDS, **kept)
        self.spread = Histogram(
            "vlrl_observation_lateness_seconds", "On the way for longer than its connection's quickest observation",
            buckets=SECONDS, **kept,
        )  # fmt: skip
        self.batch = Histogram("vlrl_batch_size", "Observations of an inference", buckets=(1, 2, 4, 8, 16, 32), **kept)
        self.answers = Counter("vlrl_answers", "Chunks sent", **kept)
        self.stale = Counter("vlrl_stale_observations", "Dropped, for a newer one came first", **kept)
        self.refused = Counter("vlrl_refused", "Connections, messages and observations refused", ["code"], **kept)
        self.clients = Gauge("vlrl_clients", "Connected now", **kept)
        self.waiting = Gauge("vlrl_waiting", "Observations that wait", **kept)
        self.model = Gauge("vlrl_model", "The policy; always 1", ["model", "version"], **kept)

    def text(self) -> bytes:
        """Prometheus' text format."""
        return generate_latest(self.registry)


class Lateness:
    """How much longer than the quickest each observation of one connection was on the way.

    The clocks of two machines differ by what nobody knows, so only differences of their differences mean anything.
    """

    def __init__(self) -> None:
        self._least = float("inf")

    def of(self, t: float, arrived: float) -> float:
        """Seconds. Args: t: when it was sent, by the client's clock; arrived: by the server's."""
        self._least = min(self._least, arrived - t)
        return arrived - t - self._least


# Who is inferred next: one thread for the policy, one waiting observation a client, first come first served.
#
# A client's newer observation takes the place of its older one, in the older one's turn: asking often neither brings a
# client forward nor sets it back, so each of n clients has its turn within n inferences.

log = logging.getLogger("vlrl.serving.policies")


@dataclass(frozen=True, eq=False)
class Inferred:
    """The answer to a request."""

    request: Request
    actions: np.ndarray  # float32 [K, A]
    version: str
    queue_s: float
    infer_s: float
    total_s: float


Answer = Callable[[Inferred | Refused], None]


class Scheduler:
    """Hands requests to the policy. All but the policy itself runs in the event loop.

    Args:
        batch: requests of several clients that are inferred together, at most.
    """

    def __init__(self, servable: Servable, metrics: Metrics, batch: int):
        self._servable, self._metrics, self._batch = servable, metrics, batch
        self._waiting: OrderedDict[str, tuple[Request, Answer]] = OrderedDict()
        self._more = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="policy")

    async def call(self, function: Callable, *given: object) -> object:
        """Runs something in the policy's thread."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *given)

    def offer(self, request: Request, answer: Answer) -> None:
        """Queues a request; `answer` is called once, in the event loop, unless a newer request takes its place."""
        if request.session in self._waiting:
            self._metrics.stale.inc()
        self._waiting[request.session] = (request, answer)
        self._more.set()

    def drop(self, session: str) -> None:
        """A client's episode is over, or the client is gone: what waits is dropped and the policy forgets it."""
        self._waiting.pop(session, None)
        self._thread.submit(self._forget, session)

    def close(self) -> None:
        """Takes no more; waits for an inference that runs."""
        self._thread.shutdown(cancel_futures=True)

    async def run(self) -> None:
        """Serves until it is cancelled."""
        while True:
            await self._more.wait()
            while self._waiting:
                taken = self._next()
                self._metrics.waiting.set(len(self._waiting))
                started = boottime()
                results = await self.call(self._infer, [request for request, _ in taken])
                for (request, answer), result in zip(taken, results, strict=True):
                    answer(self._answer(request, started, *result))
            self._more.clear()

    def _next(self) -> list[tuple[Request, Answer]]:
        """The request that has waited longest, and others of its shape."""
        first = next(iter(self._waiting.values()))[0].shape
        chosen = [session for session, (request, _) in self._waiting.items() if request.shape == first]
        return [self._waiting.pop(session) for session in chosen[: self._batch]]

    def _answer(self, request: Request, started: float, outcome: np.ndarray | Refused, infer_s: float, version: str):
        total_s, queue_s = boottime() - request.arrived, started - request.arrived
        self._metrics.queue.observe(queue_s)
        self._metrics.total.observe(total_s)
        if isinstance(outcome, Refused):
            return Refused(outcome.code, outcome.reason, retry=outcome.retry, seq=request.seq)
        return Inferred(request, outcome, version, queue_s, infer_s, total_s)

    # in the policy's thread

    def _infer(self, requests: Sequence[Request]) -> list[tuple[np.ndarray | Refused, float, str]]:
        started = boottime()
        results: list[np.ndarray | Refused] = []
        by_session: dict[int, PolicyRequest] = {}
        for place, request in enumerate(requests):
            try:
                by_session[place] = request.decode()
            except Refused as refused:
                results.append(refused)
            else:
                results.append(Refused("policy", "no answer"))
        for place, outcome in zip(by_session, self._outcomes(list(by_session.values())), strict=True):
            results[place] = outcome
        taken, version = boottime() - started, self._servable.version
        self._metrics.infer.observe(taken)
        self._metrics.batch.observe(len(requests))
        return [(outcome, taken, version) for outcome in results]

    def _outcomes(self, asked: Sequence[PolicyRequest]) -> list[np.ndarray | Refused]:
        """A chunk for each; what fails in a batch is asked one by one, so that a fault is its own client's alone."""
        if not asked:
            return []
        try:
            chunks = self._servable.infer(asked)
            if len(chunks) != len(asked):
                raise ValueError(f"{len(chunks)} chunks for {len(asked)} observations")
            return [self._checked(chunk) for chunk in chunks]
        except Exception as error:  # a policy may be anybody's code
            if len(asked) > 1:
                return [outcome for each in asked for outcome in self._outcomes([each])]
            if not isinstance(error, UserError):
                log.error("the policy raised %s: %s", type(error).__name__, error, exc_info=log.isEnabledFor(10))
            return [Refused("policy", f"{type(error).__name__}: {error}".removeprefix("UserError: "), retry=True)]

    def _checked(self, chunk: np.ndarray) -> np.ndarray | Refused:
        width = len(self._servable.spec.action)
        actions = np.asarray(chunk, np.float32)
        if actions.ndim != 2 or not len(actions) or actions.shape[1] != width:
            return Refused("policy", f"the policy gave actions {list(actions.shape)}, wanted [K, {width}]")
        if not np.isfinite(actions).all():
            return Refused("policy", "the policy gave actions that are not finite", retry=True)
        return actions

    def _forget(self, session: str) -> None:
        try:
            self._servable.forget(session)
        except Exception as error:  # as above
            log.error("the policy could not forget: %s", error)


# What all connections of a server share.


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
        self.mark_active(connection)
        self.metrics.clients.set(len(self.open))
        try:
            yield
        finally:
            self.open.pop(connection, None)
            self.metrics.clients.set(len(self.open))

    def mark_active(self, connection: ServerConnection) -> None:
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


class LoopPacer:
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


# The server's side of our own protocol (docs/serve.md).


async def native_converse(service: Service, connection: ServerConnection) -> None:
    """One client, from its Hello to its end."""
    try:
        async with asyncio.timeout(service.limits.hello_s):
            first = await connection.recv()
        session = _welcomed(service, protocol.hello_of(first))
    except (Refused, TimeoutError) as error:
        slow = Refused("hello", f"no Hello within {service.limits.hello_s:g} s")
        refused = error if isinstance(error, Refused) else slow
        service.metrics.refused.labels(refused.code).inc()
        await connection.send(protocol.encode(_failure(refused)))
        await connection.close(1008, close_reason(str(refused)))
        return
    await connection.send(protocol.encode(_welcome(service, session)))
    await _Dialogue(service, connection, session).run()


def _welcomed(service: Service, hello: Hello) -> Session:
    spec, wants = service.servable.spec, hello.wants
    if wants and (differs := difference(wants, spec)):
        raise Refused("spec", differs)
    theirs = [p.name for p in wants.pictures] if wants else [""] * len(spec.pictures)
    names = tuple(mine.name or its for mine, its in zip(spec.pictures, theirs, strict=True))
    return Session(spec, service.limits, names)


def _welcome(service: Service, session: Session) -> Welcome:
    policy = service.servable
    largest = service.limits.message(policy.spec)
    return Welcome(protocol.PROTOCOL, session.id, policy.name, policy.version, policy.spec, largest)


def _failure(refused: Refused) -> Failure:
    return Failure(refused.code, refused.reason, refused.retry, refused.seq)


class _Dialogue:
    """What follows the greeting. Answers are sent by a task of their own, for a client may be slow to read them."""

    def __init__(self, service: Service, connection: ServerConnection, session: Session):
        self._service, self._connection, self._session = service, connection, session
        self._out: asyncio.Queue[bytes] = asyncio.Queue(service.limits.answers)
        self._bad, self._lateness, self._pace = 0, Lateness(), LoopPacer(service.limits.rate)

    async def run(self) -> None:
        sending = asyncio.create_task(self._send())
        try:
            async for data in self._connection:
                self._service.mark_active(self._connection)
                try:
                    self._take(protocol.from_client(data))
                except Refused as refused:
                    await self._refuse(refused)
                await self._pace.step()
        except ConnectionClosed:
            pass
        finally:
            sending.cancel()
            self._service.scheduler.drop(self._session.id)

    def _take(self, message: Observe | Reset | Ping) -> None:
        if isinstance(message, Ping):
            self._put(Pong(message.t))
        elif isinstance(message, Reset):
            self._session.reset(message)
            self._service.scheduler.drop(self._session.id)
        else:
            before = self._session.episode
            request = self._session.request(message)
            if request.episode != before:
                self._service.scheduler.drop(self._session.id)
            self._service.metrics.spread.observe(self._lateness.of(request.t, request.arrived))
            self._service.scheduler.offer(request, self._answer)

    def _answer(self, answer: Inferred | Refused) -> None:
        if isinstance(answer, Refused):
            self._service.metrics.refused.labels(answer.code).inc()
            self._put(_failure(answer))
            return
        request, spec = answer.request, self._service.servable.spec
        self._service.metrics.answers.inc()
        self._put(
            Chunk(
                request.session, request.seq, request.t, request.episode, arrays_pack(answer.actions), spec.hz,
                self._service.expires_s(len(answer.actions)), answer.queue_s, answer.infer_s, answer.total_s,
                answer.version,
            )
        )  # fmt: skip

    async def _refuse(self, refused: Refused) -> None:
        self._service.metrics.refused.labels(refused.code).inc()
        self._put(_failure(refused))
        self._bad += 1
        if self._bad >= self._service.limits.bad:
            await self._connection.close(1008, close_reason(f"{self._bad} messages refused, the last: {refused}"))

    def _put(self, message: Chunk | Pong | Failure) -> None:
        try:
            self._out.put_nowait(protocol.encode(message))
        except asyncio.QueueFull:
            self._service.closing(self._connection, 1008, "answers are not read")

    async def _send(self) -> None:
        try:
            while True:
                await self._connection.send(await self._out.get())
        except ConnectionClosed:
            pass


# The server's side of openpi's protocol, so that clients made for openpi drive any policy here.
#
# At connect the server sends what it is, then each observation is answered by its actions. There are no sequence
# numbers
# and no episodes: a client that connects anew is a new episode. A failure is told as text and ends the connection.


async def openpi_converse(service: Service, connection: ServerConnection) -> None:
    """One client, until it goes or something is wrong."""
    spec = service.servable.spec
    names = tuple(picture.name or f"image{place or ''}" for place, picture in enumerate(spec.pictures))
    session = Session(spec, service.limits, names)
    try:
        await connection.send(protocol.openpi_codec_write(_metadata(service, names)))
        previous = 0.0
        async for data in connection:
            service.mark_active(connection)
            started = time.monotonic()
            answer = await _answered(
                service, session, _observation(session, protocol.openpi_codec_read(data), service.keys, names)
            )
            timing = {"infer_ms": 1000 * answer.infer_s, "queue_ms": 1000 * answer.queue_s}
            if previous:
                timing["prev_total_ms"] = 1000 * previous
            await connection.send(protocol.openpi_codec_write({"actions": answer.actions, "server_timing": timing}))
            service.metrics.answers.inc()
            previous = time.monotonic() - started
    except Refused as refused:
        service.metrics.refused.labels(refused.code).inc()
        await connection.send(str(refused))
        await connection.close(1011, close_reason(str(refused)))
    except ConnectionClosed:
        pass
    finally:
        service.scheduler.drop(session.id)


def _metadata(service: Service, names: tuple[str, ...]) -> dict:
    policy, keys = service.servable, service.keys
    return {
        "model": policy.name, "version": policy.version, "hz": policy.spec.hz, "chunk": policy.spec.chunk,
        "state": [part.name for part in policy.spec.state], "action": [part.name for part in policy.spec.action],
        "keys": {"state": list(keys.state), "task": keys.task, "pictures": [keys.picture(name) for name in names]},
    }  # fmt: skip


async def _answered(service: Service, session: Session, observe: Observe) -> Inferred:
    request = session.request(observe)
    done: asyncio.Future[Inferred | Refused] = asyncio.get_running_loop().create_future()
    service.scheduler.offer(request, lambda answer: done.done() or done.set_result(answer))
    answer = await done
    if isinstance(answer, Refused):
        raise answer
    return answer


def _observation(session: Session, parts: dict[str, Raw], keys: Keys, names: tuple[str, ...]) -> Observe:
    missing = [key for key in (*keys.state, *map(keys.picture, names)) if key not in parts]
    if missing:
        raise Refused("shape", f"{missing[0]!r} is missing; there are {', '.join(sorted(parts)) or 'no keys'}")
    states = [np.atleast_1d(protocol.array(parts[key], key)) for key in keys.state]
    images = {}
    for name in names:
        picture = protocol.array(parts[keys.picture(name)], keys.picture(name))
        if picture.dtype != np.uint8:
            raise Refused("shape", f"{keys.picture(name)!r} is of {picture.dtype}, wanted uint8")
        images[name] = arrays_pack(picture, "|u1")
    with np.errstate(over="ignore"):  # beyond float32 is infinite, which is refused
        state = arrays_pack(np.concatenate([each.ravel() for each in states]).astype(np.float32))
    task = protocol.openpi_codec_text(parts[keys.task], keys.task) if keys.task in parts else ""
    return Observe(session.id, session.seq + 1, 0.0, 0, task, state, images)
