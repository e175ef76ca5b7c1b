"""A robot's side of the policy plane: observations out, chunks in, in a thread of its own. Loads no torch."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

from robot.serving.dialects import Dialect, Met, Native, Openpi
from robot.serving.ledger import Answer, Ledger, Stats
from robot.serving.link import Link
from robot.serving.openpi_codec import KEYS, Keys
from robot.serving.spec import Asked, Spec, Wants
from vlrl.system.clock import boottime
from vlrl.types import UserError


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
        self, url: str, token: str | None, ca: Path | None, dialect: Callable[[], Dialect], patience: float,
        silence: float,
    ) -> None:  # fmt: skip
        self.stats, self.failure = Stats(), ""
        self._ledger, self._seq, self._lock = Ledger(self.stats), -1, threading.Condition()
        self._met: Met | None = None
        self._lost, self._answers = "not yet connected", []
        self._link = Link(_checked(url), token, _tls(url, ca), dialect, silence, self)
        try:
            self._await_greeting(url, patience)
        except BaseException:
            self.close()
            raise

    def _await_greeting(self, url: str, patience: float) -> None:
        with self._lock:
            done = self._lock.wait_for(lambda: self._met or self._link.refused, patience)
            if not done or not self._met:
                hint = "; `vlrl serve` starts one" if self._lost == "Connection refused" else ""
                raise UserError(f"policy server {url}: {self._lost}{hint}")

    @property
    def spec(self) -> Spec:
        """What the policy sees and gives."""
        return self._met.spec

    @property
    def model(self) -> str:
        return self._met.model

    @property
    def lost(self) -> str:
        """Why there is no connection now; '' while there is one."""
        return self._lost

    def ask(self, asked: Asked) -> int:
        """Sends an observation, at once; its number, which rises. One that is still unsent is replaced."""
        with self._lock:
            self._seq += 1
            seq, at = self._seq, boottime()
            self.stats.asked += 1
        self._link.send(seq, at, replace(asked, images=dict(asked.images)))
        return seq

    def answers(self, timeout: float = 0.0) -> list[Answer]:
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

    def parted(self, why: str) -> None:
        with self._lock:
            self._lost = why
            self._ledger.disconnected()
            self._lock.notify_all()

    def went(self, seq: int, at: float, episode: int) -> None:
        """An observation is on its way."""
        with self._lock:
            self._ledger.asked(seq, at, episode)
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
        self, url: str, *, spec: Spec, keys: Keys = KEYS, token: str | None = None, ca: Path | None = None,
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
