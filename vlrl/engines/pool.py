"""Work spread over servers that may be slow, fail and come back. Clocks are monotonic."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from vlrl.engines.base import EngineError
from vlrl.engines.wire import Caller, FailedError

LONGEST = 60.0  # seconds at most until a server that fails is tried again


@dataclass
class Host:
    """A server, and what is known of it from one batch to the next."""

    caller: Caller
    version: str | None = None  # of its weights, as far as is known
    pace: float | None = None  # answers a second, lately
    fails: int = 0  # in a row
    until: float = 0.0  # not asked before this time
    busy: int = 0  # requests under way
    done: int = 0  # answers of the present batch
    spent: float = 0.0  # seconds from the batch's beginning to the latest of them
    updating: threading.Lock = field(default_factory=threading.Lock)


class Pool:
    """Servers that share batches of jobs.

    Each takes a job when it has a place for one, so that slow ones get fewer; how many it may hold at a time follows
    its pace so far. A job that fails goes to another server. A server that fails is left alone for `backoff` seconds,
    twice as long each time, then tried with one job; with the first answer it is a server as the others.

    Args:
        concurrent: jobs of a server at a time, at most.
        patience: seconds without any answer, of any server, after which a batch has failed.
    """

    def __init__(self, hosts: Sequence[Host], *, concurrent: int, backoff: float, patience: float):
        self.hosts, self.concurrent, self.backoff, self.patience = hosts, concurrent, backoff, patience
        self.retries = 0  # jobs that were given back

    def run[T, R](self, do: Callable[[Host, T], R], jobs: Sequence[T]) -> list[R]:
        """What `do` makes of each job. FailedError of `do` sends the job elsewhere; any other error is raised here.

        Raises:
            EngineError: no server answered for `patience` seconds.
        """
        batch = _Batch(self, do, jobs)
        for host in self.hosts:
            host.done, host.busy = 0, 0
            for _ in range(min(self.concurrent, len(jobs))):
                threading.Thread(target=batch.work, args=(host,), daemon=True).start()
        return batch.wait()


class _Batch:
    def __init__(self, pool: Pool, do: Callable[[Host, Any], Any], jobs: Sequence[Any]):
        self.pool, self.do, self.jobs = pool, do, jobs
        self.waiting: deque[tuple[int, Host | None]] = deque((i, None) for i in range(len(jobs)))  # and who failed last
        self.found: dict[int, Any] = {}
        self.error: Exception | None = None
        self.change = threading.Condition()
        self.began = self.latest = time.monotonic()
        self.faults: dict[str, str] = {}  # the latest of each server

    def wait(self) -> list[Any]:
        with self.change:
            while self.error is None and len(self.found) < len(self.jobs):
                left = self.latest + self.pool.patience - time.monotonic()
                if left <= 0:
                    self.error = EngineError(self.told())
                    break
                self.change.wait(min(left, 1.0))
            self.change.notify_all()
            if self.error is not None:
                raise self.error
            for host in self.pool.hosts:
                if host.done:
                    now = host.done / max(1e-6, host.spent)
                    host.pace = now if host.pace is None else (host.pace + now) / 2
        return [self.found[i] for i in range(len(self.jobs))]

    def told(self) -> str:
        faults = "; ".join(f"{url}: {fault}" for url, fault in self.faults.items())
        return f"no engine answered for {self.pool.patience:g} s ({faults or 'no answer yet'}): start one, then resume"

    def work(self, host: Host) -> None:
        while (number := self.next(host)) is not None:
            try:
                result, error = self.do(host, self.jobs[number]), None
            except Exception as raised:
                result, error = None, raised
            with self.change:
                host.busy -= 1
                if error is None:
                    self.found[number], self.latest, host.fails = result, time.monotonic(), 0
                    host.done, host.spent = host.done + 1, self.latest - self.began
                elif isinstance(error, FailedError):
                    self.give_back(host, number, error)
                else:
                    self.error = self.error or error
                self.change.notify_all()

    def next(self, host: Host) -> int | None:
        """The next job of a server, when there is one and it may have it; None at the end."""
        with self.change:
            while self.error is None and len(self.found) < len(self.jobs):
                now = time.monotonic()
                place = self.place(host, now) if now >= host.until and host.busy < self.room(host) else None
                if place is not None:
                    number, _ = self.waiting[place]
                    del self.waiting[place]
                    host.busy += 1
                    return number
                self.change.wait(min(1.0, max(0.005, host.until - now)))
        return None

    def place(self, host: Host, now: float) -> int | None:
        """Where a job stands that the server did not fail at last, or, where it is alone, any."""
        others = any(other is not host and now >= other.until for other in self.pool.hosts)
        return next((at for at, (_, last) in enumerate(self.waiting) if last is not host or not others), None)

    def room(self, host: Host) -> int:
        """How many jobs the server may hold."""
        if host.fails:
            return 1
        paces = [other.pace for other in self.pool.hosts]
        if any(pace is None for pace in paces) or not sum(paces):
            return self.pool.concurrent
        share = -(-len(self.jobs) * host.pace // sum(paces))
        return min(self.pool.concurrent, max(1, int(share)))

    def give_back(self, host: Host, number: int, error: FailedError) -> None:
        now, pool = time.monotonic(), self.pool
        self.waiting.appendleft((number, host))
        pool.retries += 1
        self.faults[host.caller.url] = str(error)
        if now >= host.until:  # not one of several that failed together
            host.until = now + min(LONGEST, pool.backoff * 2**host.fails)
            host.fails, host.version = host.fails + 1, None  # it may begin anew, with other weights
