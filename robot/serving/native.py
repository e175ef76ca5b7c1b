"""The server's side of our own protocol (docs/serve.md)."""

from __future__ import annotations

import asyncio
import logging

from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConnectionClosed

from robot.serving import messages
from robot.serving.arrays import pack
from robot.serving.messages import Chunk, Failure, Hello, Observe, Ping, Pong, Refused, Reset, Welcome
from robot.serving.metrics import Lateness
from robot.serving.scheduler import Inferred
from robot.serving.service import Pace, Service, close_reason
from robot.serving.sessions import Session
from robot.serving.spec import difference

log = logging.getLogger("vlrl.serve")


async def converse(service: Service, connection: ServerConnection) -> None:
    """One client, from its Hello to its end."""
    try:
        async with asyncio.timeout(service.limits.hello_s):
            first = await connection.recv()
        session = _welcomed(service, messages.hello_of(first))
    except (Refused, TimeoutError) as error:
        slow = Refused("hello", f"no Hello within {service.limits.hello_s:g} s")
        refused = error if isinstance(error, Refused) else slow
        service.metrics.refused.labels(refused.code).inc()
        await connection.send(messages.encode(_failure(refused)))
        await connection.close(1008, close_reason(str(refused)))
        return
    await connection.send(messages.encode(_welcome(service, session)))
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
    return Welcome(messages.PROTOCOL, session.id, policy.name, policy.version, policy.spec, largest)


def _failure(refused: Refused) -> Failure:
    return Failure(refused.code, refused.reason, refused.retry, refused.seq)


class _Dialogue:
    """What follows the greeting. Answers are sent by a task of their own, for a client may be slow to read them."""

    def __init__(self, service: Service, connection: ServerConnection, session: Session):
        self._service, self._connection, self._session = service, connection, session
        self._out: asyncio.Queue[bytes] = asyncio.Queue(service.limits.answers)
        self._bad, self._lateness, self._pace = 0, Lateness(), Pace(service.limits.rate)

    async def run(self) -> None:
        sending = asyncio.create_task(self._send())
        try:
            async for data in self._connection:
                self._service.heard(self._connection)
                try:
                    self._take(messages.from_client(data))
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
                request.session, request.seq, request.t, request.episode, pack(answer.actions), spec.hz,
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
            self._out.put_nowait(messages.encode(message))
        except asyncio.QueueFull:
            self._service.closing(self._connection, 1008, "answers are not read")

    async def _send(self) -> None:
        try:
            while True:
                await self._connection.send(await self._out.get())
        except ConnectionClosed:
            pass
