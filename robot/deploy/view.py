"""The live view: a web page on this machine alone, with a stop button."""

from __future__ import annotations

import hmac
import io
import json
import queue
import secrets
import threading
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote, urlsplit

import numpy as np
from PIL import Image

from robot.deploy.page import live
from vlrl.http_server import HttpError, HttpHandler, HttpServer
from vlrl.types import UserError

ORDERS = ("stop", "success", "failure", "take", "next")
EMPTY = {
    "title": "vlrl deploy",
    "said": "starting",
    "bad": False,
    "facts": [],
    "cameras": [],
    "joints": [],
    "events": [],
}


class View:
    """Serves the page on 127.0.0.1. What a person asks for there waits in `orders`.

    An order is a POST with the page's token, which no other web site can read, to a host of this machine's name.

    Args:
        port: 0: any free one.

    Raises:
        UserError: the port is taken.
    """

    def __init__(self, port: int):
        self._told: dict[str, Any] = EMPTY
        self._pictures: dict[str, np.ndarray] = {}
        self._orders: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.token = secrets.token_urlsafe(16)
        try:
            self._server = HttpServer("127.0.0.1", port, _handler(self))
        except OSError as error:
            raise UserError(f"view.port: {port}: {error.strerror}; another number, or view: none") from None
        self.port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}/"
        threading.Thread(target=self._server.serve_forever, args=(0.1,), name="view", daemon=True).start()

    def show(self, told: Mapping[str, Any], pictures: Mapping[str, np.ndarray]) -> None:
        """What the page says from now on: `EMPTY`'s keys, and the cameras' pictures. Quick: nothing is encoded."""
        self._told, self._pictures = {**EMPTY, **told}, dict(pictures)

    def orders(self) -> list[str]:
        """What was asked for since the last call, of ORDERS."""
        found = []
        while not self._orders.empty():
            found.append(self._orders.get())
        return found

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _answer(self, path: str, told: bool) -> tuple[str, bytes] | None:
        """Content type and body; `told`: whoever asks has the token."""
        if path == "/":
            nonce = secrets.token_urlsafe(12)
            return "text/html; charset=utf-8", live(self.token, nonce).encode()
        if path == "/state" and told:
            return "application/json", json.dumps(self._told).encode()
        name = unquote(path.removeprefix("/camera/").removesuffix(".jpg"))
        if path.startswith("/camera/") and name in self._pictures:
            made = io.BytesIO()
            Image.fromarray(self._pictures[name]).save(made, "JPEG", quality=80)
            return "image/jpeg", made.getvalue()
        return None

    def _order(self, text: str) -> bool:
        if text in ORDERS:
            self._orders.put(text)
        return text in ORDERS


def _handler(view: View) -> type[HttpHandler]:
    class Handler(HttpHandler):
        def handle_get(self) -> None:
            found = view._answer(urlsplit(self.path).path, self._knows())
            self.send(*(200, *found) if found else (404, "text/plain", b"not here\n"))

        def handle_post(self) -> None:
            if not (self._knows() and self.path == "/order"):
                return self.send(403, "text/plain", b"refused\n")
            order: list[bytes] = []
            try:
                self.read_body(order.append, 63)
            except HttpError as error:
                return self.send(error.status, "text/plain", f"{error}\n".encode())
            good = view._order(b"".join(order).decode("ascii", "replace"))
            return self.send(200 if good else 400, "text/plain", b"taken\n" if good else b"no such order\n")

        def _knows(self) -> bool:
            return hmac.compare_digest(self.headers.get("X-Token", "").encode(), view.token.encode())

    return Handler
