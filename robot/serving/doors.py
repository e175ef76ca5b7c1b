"""Who may come in: tokens, addresses, certificates, and what is answered over plain HTTP."""

from __future__ import annotations

import hmac
import secrets
import ssl
import stat
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path

from websockets.asyncio.server import ServerConnection
from websockets.http11 import Request, Response

from vlrl.http_server import is_loopback
from vlrl.types import UserError

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
        kind, _, given = request.headers.get("Authorization", "").partition(" ")
        same = hmac.compare_digest(given.strip().encode(), self.token.encode())
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
        raise UserError(f"--token-file {file}: {getattr(error, 'strerror', None) or 'is no text'}") from None
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
