"""One HTTP request to an engine that ends in time, whatever the server does; what is sent may be a file."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from vlrl.decoders import parse_json

MOST = 256 * 2**20  # bytes of an answer


class FailedError(Exception):
    """No usable answer, in a few words. Another time, or another server, it may work."""


class RefusedError(Exception):
    """The server says no for good, in its own words: the request is wrong, and would be elsewhere."""


class Caller:
    """Requests to one server.

    Args:
        url: where its paths begin, without `/v1`.
        headers: of each request, for example the token.
    """

    def __init__(self, url: str, headers: Mapping[str, str]):
        self.url, self._headers, self._parts = url, dict(headers), urlsplit(url)

    def get(self, path: str, seconds: float) -> dict[str, Any]:
        return self._call("GET", path, None, {}, seconds)

    def post(self, path: str, body: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """JSON out and in; an answer without a body is {}.

        Raises:
            FailedError: no answer in time, or one of a server in trouble.
            RefusedError: 400, 401, 403, 404, 405, 413 or 422.
        """
        return self._call("POST", path, json.dumps(body).encode(), {"Content-Type": "application/json"}, seconds)

    def send(self, path: str, file: Path, headers: Mapping[str, str], seconds: float) -> dict[str, Any]:
        """A file as the body of a POST; errors as `post`."""
        sizes = {"Content-Type": "application/octet-stream", "Content-Length": str(file.stat().st_size)}
        with file.open("rb") as body:
            return self._call("POST", path, body, {**sizes, **headers}, seconds)

    def _call(self, method: str, path: str, body: Any, headers: Mapping[str, str], seconds: float) -> dict[str, Any]:
        parts, late, watch = self._parts, threading.Event(), None
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        connection = kind(parts.hostname, parts.port, timeout=seconds)
        try:
            connection.connect()
            watch = threading.Timer(seconds, _cut, (connection.sock, late))  # a socket's own time-out begins anew
            watch.daemon = True
            watch.start()
            connection.request(method, parts.path.rstrip("/") + path, body, {**self._headers, **headers})
            response = connection.getresponse()
            text = response.read(MOST + 1)
        except (OSError, http.client.HTTPException, ValueError) as error:
            slow = late.is_set() or isinstance(error, TimeoutError)
            raise FailedError(f"no answer in {seconds:g} s" if slow else f"no connection ({_reason(error)})") from None
        finally:
            if watch:
                watch.cancel()
            connection.close()
        if late.is_set() or len(text) > MOST:
            raise FailedError(f"no answer in {seconds:g} s" if late.is_set() else "an answer that is too long")
        return _read(path, response.status, text)


def _read(path: str, status: int, text: bytes) -> dict[str, Any]:
    try:
        answer = parse_json(text) if text.strip() else {}
    except (ValueError, RecursionError):
        answer = None
    if status in (400, 401, 403, 404, 405, 413, 422):
        raise RefusedError(f"{path}: HTTP {status}: {_said(answer, text)}")
    if status // 100 != 2:
        raise FailedError(f"{path}: HTTP {status}: {_said(answer, text)}")
    if status == 200 and answer is None and not text.startswith(b"{"):
        return {}  # plain words, as some servers say that all is well
    if not isinstance(answer, dict):
        raise FailedError("an answer that is no JSON object")
    return answer


def _said(answer: Any, text: bytes) -> str:
    """The server's own words, on one line."""
    for name in ("error", "detail", "message"):
        if isinstance(answer, dict) and name in answer:
            answer = answer[name]
            answer = answer.get("message", answer) if isinstance(answer, dict) else answer
    words = answer if isinstance(answer, str) else text.decode(errors="replace")
    return " ".join(words.split())[:200]


def _cut(connection: socket.socket, late: threading.Event) -> None:
    late.set()
    with contextlib.suppress(OSError):  # it had ended
        connection.shutdown(socket.SHUT_RDWR)


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or type(error).__name__
