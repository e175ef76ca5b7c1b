"""Servers that write for a policy: `vlrl serve-model`, vLLM, SGLang. `policy.engine: {name: server, urls: [...]}`."""

from __future__ import annotations

import atexit
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import Field

from vlrl import credentials
from vlrl.engines.base import Asked, Completion, Options
from vlrl.engines.dialects import DIALECTS, Written
from vlrl.engines.pool import Host, Pool
from vlrl.engines.published import Store
from vlrl.engines.tally import Tally
from vlrl.engines.wire import Caller, FailedError, RefusedError
from vlrl.strict import Count, Rate
from vlrl.types import UserError

if TYPE_CHECKING:
    from torch import Tensor

STALE = 3  # times that a server is given the weights for one request


class Server:
    """Asks servers, any number of them, each by HTTP; what it needs of them is in docs/engines.md.

    A server gets new weights before its next request, and whenever its answers name others than the policy's, as after
    a restart: such answers are not used but asked for again.

    Args:
        urls: of the servers, up to and without `/v1`.
        api: whose way of asking; `vlrl` is `vlrl serve-model`'s.
        model: as the servers name it; default: the policy's own source.
        key: the environment variable that holds the servers' token.
        folder: one that the servers see under the same path, for weights; required for vllm and sglang. Null: they are
            sent.
        concurrent: prompts that a server is asked at a time, at most.
        timeout: seconds for one request. patience: seconds without any answer until the run stops.
        backoff: seconds that a server is left alone after a failure, twice as long after each further one.
        rescore: score what was written by the trainer's own weights: one forward pass more, exact entropies, the gap
            between both in the log.

    Raises:
        UserError: a URL is none; no such environment variable; the folder cannot be made.
    """

    def __init__(
        self, policy: Any, source: str, *,
        urls: Annotated[list[str], Field(min_length=1)], api: Literal["vlrl", "vllm", "sglang"] = "vlrl",
        model: str | None = None, key: str | None = None, folder: str | None = None, concurrent: Count = 16,
        timeout: Rate = 600.0, patience: Rate = 600.0, backoff: Rate = 1.0, rescore: bool = True,
    ):  # fmt: skip
        headers = credentials.header(key, "policy.engine.key")
        self._dialect, self._timeout, self.rescore = DIALECTS[api](policy.codec, model or source), timeout, rescore
        hosts = [Host(Caller(url.rstrip("/"), headers)) for url in urls]
        self._pool = Pool(hosts, concurrent=concurrent, backoff=backoff, patience=patience)
        self._store = Store(policy, folder, self._dialect.whole)
        self._tally = Tally()
        atexit.register(self.close)

    @staticmethod
    def agree(options: Mapping[str, Any]) -> None:
        """ValueError where options do not go together; a configuration is checked by it."""
        for url in options["urls"]:
            parts = urlsplit(url)
            if parts.scheme not in ("http", "https") or not parts.hostname or parts.path.rstrip("/").endswith("/v1"):
                raise ValueError(f"urls: {url!r}: write http://HOST:PORT, without /v1")
        if len(set(options["urls"])) < len(options["urls"]):
            raise ValueError("urls: the same server stands there twice")
        if options["api"] != "vlrl" and options["folder"] is None:
            raise ValueError(f"folder: {options['api']} reads weights from a folder: name one that it sees as well")

    @property
    def metrics(self) -> Mapping[str, float]:
        return self._tally.row() | {"engine/servers": float(sum(not host.fails for host in self._pool.hosts))}

    def check(self, asked: Asked, options: Options) -> list[Completion]:
        """Asks each server once; what they write, one after the other.

        Raises:
            UserError: none answers, or one answers what cannot be used.
        """
        self.publish()
        made, faults = [], []
        for host in self._pool.hosts:
            try:
                made += self._write(host, asked, options).completions
            except FailedError as error:
                faults.append(f"{host.caller.url}: {error}")
        if not made:
            raise UserError(f"policy.engine: no server answers: {'; '.join(faults)}")
        return made

    def follow(self, policy: Any) -> None:
        self._store.follow(policy)

    def publish(self) -> None:
        before = self._store.newest
        if self._store.take() is not before:
            self._tally.begin()

    def generate(self, asked: Sequence[Asked], options: Options) -> list[list[Completion]]:
        start, retries = time.monotonic(), self._pool.retries
        try:
            return self._pool.run(lambda host, each: self._write(host, each, options).completions, asked)
        finally:
            self._tally.add(seconds=time.monotonic() - start, retries=self._pool.retries - retries)

    def told(self, gaps: Sequence[Tensor]) -> None:
        self._tally.gaps(gaps)

    def close(self) -> None:
        self._store.close()

    def _write(self, host: Host, asked: Asked, options: Options) -> Written:
        """One server's answer, by the present weights.

        Raises:
            FailedError: the server is in trouble.
            UserError: it says no, or answers what cannot be used.
        """
        path, body = self._dialect.ask(asked, options)
        wanted = self._store.newest.version
        for _ in range(STALE):
            self._update(host)
            try:
                answer = host.caller.post(path, body, self._timeout)
            except RefusedError as error:
                raise UserError(f"policy.engine: {host.caller.url}{error}") from None
            written = self._read(host, answer, asked)
            if written.version in (None, wanted):
                return written
            host.version = written.version
            self._tally.add(stale=1)
        raise FailedError("answers by the weights of another version")

    def _read(self, host: Host, answer: Any, asked: Asked) -> Written:
        try:
            written = self._dialect.read(answer, asked)
        except (KeyError, ValueError, TypeError, IndexError) as error:
            raise UserError(
                f"policy.engine: {host.caller.url}: answers lack what training needs, the sampled tokens' ids and "
                f"log-probabilities ({type(error).__name__}: {error}): see docs/engines.md"
            ) from None
        if len(written.completions) != asked.count:
            raise FailedError(f"{len(written.completions)} completions of {asked.count}")
        return written

    def _update(self, host: Host) -> None:
        """Gives a server the newest weights where it has others."""
        weights = self._store.newest
        with host.updating:
            if host.version == weights.version:
                return
            try:
                host.version = self._dialect.version(host.caller, self._timeout)
            except (RefusedError, KeyError) as error:
                raise UserError(
                    f"policy.engine: {host.caller.url} is no server of this kind ({error}): set policy.engine.api"
                ) from None
            if host.version == weights.version:  # another process of the run was faster
                return
            try:
                self._dialect.publish(host.caller, weights, self._timeout)
            except RefusedError as error:
                raise UserError(
                    f"policy.engine: {host.caller.url} takes no weights ({error}): see docs/engines.md"
                ) from None
            host.version = weights.version
            self._tally.add(published=1)
