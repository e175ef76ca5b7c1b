"""The routes of `vlrl serve-model`, each request in a thread of its own."""

from __future__ import annotations

import hmac
import json
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vlrl.decoders import parse_json
from vlrl.engines.hosting.batching import Writer
from vlrl.engines.hosting.replies import reply
from vlrl.engines.hosting.requests import Chat, Completions, RequestError, read
from vlrl.engines.hosting.weights import confined
from vlrl.http_server import LIMITS, HttpError, HttpHandler, HttpLimits, HttpServer

LARGEST = 2**28  # bytes of a request's JSON


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


class ModelServer(HttpServer):
    def __init__(self, host: str, port: int, service: Service, limits: HttpLimits = LIMITS):
        self.service = service
        super().__init__(host, port, Handler, limits)


class Handler(HttpHandler):
    """One connection."""

    server: ModelServer

    def handle_get(self) -> None:
        self._answer({"/health": self._health, "/v1/models": self._models})

    def handle_post(self) -> None:
        self._answer({
            "/v1/completions": lambda: self._completed(Completions),
            "/v1/chat/completions": lambda: self._completed(Chat),
            "/v1/weights": self._weights,
        })  # fmt: skip

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
            if not isinstance(path, str) or not isinstance(version, str) or not 0 < len(version) <= 256:
                raise RequestError("path and version are required, both text, of a version at most 256 characters")
            count = service.writer.take(confined(service.weights, path), version)
            return {"weights_version": version, "tensors": count}
        version = self.headers.get("X-Weights-Version", "")
        if not version:
            raise RequestError("the header X-Weights-Version is required")
        with tempfile.NamedTemporaryFile(suffix=".safetensors") as file:
            self.read_body(file.write, service.size)
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
        except HttpError as error:
            self._send(error.status, _error(str(error)))
        except (ConnectionError, TimeoutError):
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
        self.read_body(parts.append, LARGEST)
        try:
            body = parse_json(b"".join(parts))
        except (ValueError, RecursionError):
            body = None
        if not isinstance(body, dict):
            raise RequestError("the body is no JSON object")
        return body

    def _send(self, status: int, body: dict[str, Any]) -> None:
        self.send(status, "application/json", json.dumps(body).encode())


def _error(message: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": "invalid_request_error"}}
