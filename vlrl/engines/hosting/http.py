"""The routes of `vlrl serve-model`, each request in a thread of its own."""

from __future__ import annotations

import contextlib
import hmac
import json
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from vlrl.engines.hosting.batching import Writer
from vlrl.engines.hosting.replies import reply
from vlrl.engines.hosting.requests import Chat, Completions, RequestError, read
from vlrl.engines.hosting.weights import confined

LARGEST = 2**28  # bytes of a request's JSON
CHUNK = 2**20


@dataclass(frozen=True)
class Service:
    """What a server serves.

    name: of the model. most: tokens of a completion. weights: the folder that paths of new weights are in; None: there
    is none. size: bytes of new weights, at most. token: what clients must show; None: nothing.
    """

    writer: Writer
    codec: Any
    name: str
    most: int
    weights: Path | None
    size: int
    token: str | None


class HttpServer(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def __init__(self, host: str, port: int, service: Service):
        self.service = service
        super().__init__((host, port), Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hung up is no error of ours."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    timeout = 600  # seconds that a connection may be silent
    server: HttpServer

    def do_GET(self) -> None:
        self._answer({"/health": self._health, "/v1/models": self._models})

    def do_POST(self) -> None:
        self._answer({
            "/v1/completions": lambda: self._completed(Completions),
            "/v1/chat/completions": lambda: self._completed(Chat),
            "/v1/weights": self._weights,
        })  # fmt: skip

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: what clients send is theirs."""

    # -- routes --------------------------------------------------------------------------------------------------

    def _health(self) -> dict[str, Any]:
        writer = self.server.service.writer
        return {"status": "ok", "weights_version": writer.version, "queue": writer.queue}

    def _models(self) -> dict[str, Any]:
        service = self.server.service
        model = {"id": service.name, "object": "model", "owned_by": "vlrl", "weights_version": service.writer.version}
        return {"object": "list", "data": [model]}

    def _completed(self, kind: type[Completions] | type[Chat]) -> dict[str, Any]:
        service = self.server.service
        wish = read(kind, self._json(), service.most)
        return reply(service.name, service.codec, wish, service.writer.write(wish), chat=kind is Chat)

    def _weights(self) -> dict[str, Any]:
        """New weights: JSON with a path, or the file itself with its version in `X-Weights-Version`."""
        service = self.server.service
        if self.headers.get_content_type() == "application/json":
            asked = self._json()
            path, version = asked.get("path"), asked.get("version")
            if not isinstance(path, str) or not isinstance(version, str) or not version:
                raise RequestError("path and version are required, both text")
            count = service.writer.take(confined(service.weights, path), version)
            return {"weights_version": version, "tensors": count}
        version = self.headers.get("X-Weights-Version", "")
        if not version:
            raise RequestError("the header X-Weights-Version is required")
        with tempfile.NamedTemporaryFile(suffix=".safetensors") as file:
            self._receive(file.write, service.size)
            file.flush()
            return {"weights_version": version, "tensors": service.writer.take(Path(file.name), version)}

    # -- what all of them do ---------------------------------------------------------------------------------------

    def _answer(self, routes: dict[str, Callable[[], dict[str, Any]]]) -> None:
        path = self.path.partition("?")[0]
        try:
            if path not in routes:
                self._send(404, _error(f"there is no {self.command} {path}"))
            elif path != "/health" and not self._admitted():
                self._send(401, _error("this server wants its token: Authorization: Bearer TOKEN"))
            else:
                self._send(200, routes[path]())
        except RequestError as error:
            self._send(400, _error(str(error)))
        except ConnectionError:
            self.close_connection = True
        except Exception as error:  # the next request may go well
            print(f"vlrl: {path}: {type(error).__name__}: {error}", file=sys.stderr)
            self._send(500, _error(type(error).__name__))

    def _admitted(self) -> bool:
        token = self.server.service.token
        kind, _, given = self.headers.get("Authorization", "").partition(" ")
        same = token is None or hmac.compare_digest(given.strip().encode(), token.encode())
        return same and (token is None or kind.lower() == "bearer")

    def _json(self) -> dict[str, Any]:
        if self.headers.get_content_type() != "application/json":  # others a web page may send unasked
            raise RequestError("Content-Type has to be application/json")
        parts: list[bytes] = []
        self._receive(parts.append, LARGEST)
        try:
            body = json.loads(b"".join(parts))
        except (ValueError, RecursionError):
            body = None
        if not isinstance(body, dict):
            raise RequestError("the body is no JSON object")
        return body

    def _receive(self, put: Callable[[bytes], Any], most: int) -> None:
        """The body, piece by piece."""
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or int(length) > most:
            raise RequestError(f"Content-Length is required, at most {most}")
        left = int(length)
        while left:
            piece = self.rfile.read(min(left, CHUNK))
            if not piece:
                raise ConnectionResetError("the client hung up")
            put(piece)
            left -= len(piece)

    def _send(self, status: int, body: dict[str, Any]) -> None:
        text = json.dumps(body).encode()
        if status != 200:
            self.close_connection = True  # what is left of the request is not read
        with contextlib.suppress(ConnectionError):
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            if self.close_connection:
                self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(text)


def _error(message: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": "invalid_request_error"}}
