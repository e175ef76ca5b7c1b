"""A policy behind a port: websocket on `/vlrl` (ours) and `/` (openpi's), `/healthz` and `/metrics` over plain HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import secrets
import ssl
import stat
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path

import numpy as np
from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

from vlrl.serving.protocol import KEYS, Keys, PolicyRequest, PolicySpec, Servable
from vlrl.serving.sessions import Limits, Metrics, Scheduler, Service, native_converse, openpi_converse
from vlrl.system.http_server import is_loopback
from vlrl.types import UserError

# Who may come in: tokens, addresses, certificates, and what is answered over plain HTTP.

TOKEN = 16  # characters, at least


@dataclass(frozen=True)
class Door:
    """Where a server listens and whom it lets in."""

    host: str = "127.0.0.1"
    port: int = 8765  # 0: any that is free
    token: str | None = None
    cert: Path | None = None
    key: Path | None = None

    def __post_init__(self):
        if not self.token and not is_loopback(self.host):
            raise UserError(
                f"--host {self.host}: others could drive the robot: give --token-file, or stay on 127.0.0.1"
            )
        if (self.cert is None) != (self.key is None):
            raise UserError("--tls-cert and --tls-key belong together")

    def admits(self, request: Request) -> bool:
        """Whether a request has the token: `Authorization: Bearer TOKEN`, or `Api-Key TOKEN` as openpi sends it."""
        if self.token is None:
            return True
        kind, _, credential = request.headers.get("Authorization", "").partition(" ")
        same = hmac.compare_digest(credential.strip().encode(), self.token.encode())
        return kind.lower() in ("bearer", "api-key") and same

    def tls(self) -> ssl.SSLContext | None:
        """Raises UserError where the files are none."""
        if self.cert is None:
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_cert_chain(self.cert, self.key)
        except (OSError, ssl.SSLError) as error:
            raise UserError(f"--tls-cert {self.cert}, --tls-key {self.key}: {error}") from None
        return context

    def url(self, port: int) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'wss' if self.cert else 'ws'}://{host}:{port}"


def refusal(connection: ServerConnection, status: HTTPStatus, reason: str) -> Response:
    """An HTTP answer of one line."""
    return connection.respond(status, f"{reason}\n")


def token_in(file: Path) -> str:
    """The token of a file that nobody else may read.

    Raises:
        UserError: there is none, it is too short, or others may read it.
    """
    try:
        others, text = file.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO), file.read_text("ascii").strip()
    except (OSError, ValueError) as error:
        raise UserError(
            f"--token-file {file}: {(isinstance(error, OSError) and error.strerror) or 'is no text'}"
        ) from None
    if others:
        raise UserError(f"--token-file {file}: others may read it: chmod 600 {file}")
    if len(text) < TOKEN or not text.isprintable() or " " in text:
        raise UserError(f"--token-file {file}: a token has {TOKEN} characters at least and no space: use --new-token")
    return text


def new_token(file: Path) -> None:
    """Writes a token drawn by chance, 256 bits, into a new file that its owner alone may read.

    Raises:
        UserError: the file is there already, or cannot be written.
    """
    try:
        file.touch(0o600, exist_ok=False)
        file.write_text(f"{secrets.token_urlsafe(32)}\n", "ascii")
    except OSError as error:
        raise UserError(f"--new-token {file}: {error.strerror}") from None


STOPS = "the server stops"
log = logging.getLogger("vlrl.serving.policies")
_hushed = logging.getLogger("vlrl.serving.policies.websockets")  # a stranger's broken handshake is no news
_hushed.propagate = False
_hushed.addHandler(logging.NullHandler())


async def run(
    servable: Servable, door: Door, limits: Limits, stop: asyncio.Event, ready: Callable[[str], None], keys: Keys = KEYS
) -> None:
    """Serves a policy until `stop` is set; then clients are told and what runs is finished.

    Args:
        ready: is called with the url when the policy is warm and the port is open.
        keys: what openpi's clients call the parts of an observation.

    Raises:
        UserError: the port cannot be opened, or the policy fails at a blank observation.
    """
    metrics, tls = Metrics(), door.tls()
    service = Service(servable, limits, metrics, Scheduler(servable, metrics, limits.batch), keys)
    try:
        await _warm(service)
        listening = await _listen(service, door, tls)
        serving = asyncio.create_task(service.scheduler.run())
        ready(door.url(listening.sockets[0].getsockname()[1]))
        await stop.wait()
        listening.close(reason=STOPS)
        await listening.wait_closed()
        serving.cancel()
    finally:
        service.scheduler.close()


@contextlib.contextmanager
def running(
    servable: Servable, door: Door | None = None, limits: Limits | None = None, keys: Keys = KEYS
) -> Iterator[str]:
    """A server in a thread of this process, for tests and benchmarks: gives its url, stops at the end.

    Raises:
        UserError: as `run`.
    """
    loop, stop, up = asyncio.new_event_loop(), asyncio.Event(), threading.Event()
    answers: list[str | BaseException] = []

    def ready(url: str) -> None:
        answers.append(url)
        up.set()

    def work() -> None:
        try:
            loop.run_until_complete(run(servable, door or Door(port=0), limits or Limits(), stop, ready, keys))
        except BaseException as error:
            answers.append(error)
        finally:
            loop.close()
            up.set()

    thread = threading.Thread(target=work, name="serving", daemon=True)
    thread.start()
    up.wait()
    if isinstance(answers[0], BaseException):
        raise answers[0]
    try:
        yield answers[0]
    finally:
        with contextlib.suppress(RuntimeError):  # it has ended by itself
            loop.call_soon_threadsafe(stop.set)
        thread.join()


async def _listen(service: Service, door: Door, tls) -> Server:
    try:
        return await serve(
            lambda connection: _converse(service, connection), door.host, door.port,
            process_request=lambda connection, request: _received(service, door, connection, request),
            origins=[None],  # pages in a browser may not drive a robot
            compression=None, max_size=service.limits.message(service.servable.spec), max_queue=2, ssl=tls,
            logger=_hushed, server_header=None, open_timeout=service.limits.hello_s, close_timeout=2.0,
        )  # fmt: skip
    except OSError as error:
        raise UserError(f"--host {door.host} --port {door.port}: {error.strerror or error}") from None


def _received(service: Service, door: Door, connection: ServerConnection, request: Request) -> Response | None:
    """The answer to a request that is not to become a websocket; None lets it."""
    path = request.path.partition("?")[0]
    if path == "/healthz":
        return connection.respond(HTTPStatus.OK, "OK\n")
    if path not in ("/", "/vlrl", "/metrics"):
        return refusal(connection, HTTPStatus.NOT_FOUND, "there are /vlrl, / (openpi), /healthz and /metrics")
    if not door.admits(request):
        service.metrics.refused.labels("token").inc()
        return refusal(
            connection, HTTPStatus.UNAUTHORIZED, "the token is missing or wrong: Authorization: Bearer TOKEN"
        )
    if path == "/metrics":
        policy = service.servable
        service.metrics.model.clear()
        service.metrics.model.labels(policy.name, policy.version).set(1)
        text = service.metrics.text()
        kind = Headers(
            [("Content-Type", "text/plain; version=0.0.4; charset=utf-8"), ("Content-Length", str(len(text)))]
        )
        return Response(HTTPStatus.OK, "OK", kind, text)
    if not service.make_room():
        service.metrics.refused.labels("clients").inc()
        reason = f"{service.limits.clients} clients are connected, which is all that this server takes"
        return refusal(connection, HTTPStatus.SERVICE_UNAVAILABLE, reason)
    return None


async def _converse(service: Service, connection: ServerConnection) -> None:
    ours = connection.request.path.partition("?")[0] == "/vlrl"
    with service.client(connection), contextlib.suppress(ConnectionClosed):
        await (native_converse if ours else openpi_converse)(service, connection)


async def _warm(service: Service) -> None:
    """One inference before the port opens: the first is slow, and what is broken shows."""
    try:
        await service.scheduler.call(service.servable.infer, [blank(service.servable.spec)])
        await service.scheduler.call(service.servable.forget, "")
    except UserError as error:
        log.warning("at a blank observation: %s", error)  # a model that speaks may have nothing to say to it
    except Exception as error:
        raise UserError(f"--policy: it fails at a blank observation: {type(error).__name__}: {error}") from None


def blank(spec: PolicySpec) -> PolicyRequest:
    """An observation of zeros; pictures of any size are 224 x 224."""
    images = {
        picture.name or str(place): np.zeros((picture.height or 224, picture.width or 224, 3), np.uint8)
        for place, picture in enumerate(spec.pictures)
    }
    return PolicyRequest("", 0, "", np.zeros(len(spec.state), np.float32), images)
