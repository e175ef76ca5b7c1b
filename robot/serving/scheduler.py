"""Who is inferred next: one thread for the policy, one waiting observation a client, first come first served.

A client's newer observation takes the place of its older one, in the older one's turn: asking often neither brings a
client forward nor sets it back, so each of n clients has its turn within n inferences.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from robot.serving.messages import Refused
from robot.serving.metrics import Metrics
from robot.serving.sessions import Request
from robot.serving.spec import Asked, Servable
from vlrl.system.clock import boottime
from vlrl.types import UserError

log = logging.getLogger("vlrl.serve")


@dataclass(frozen=True, eq=False)
class Inferred:
    """The answer to a request."""

    request: Request
    actions: np.ndarray  # float32 [K, A]
    version: str
    queue_s: float
    infer_s: float
    total_s: float


Answer = Callable[[Inferred | Refused], None]


class Scheduler:
    """Hands requests to the policy. All but the policy itself runs in the event loop.

    Args:
        batch: requests of several clients that are inferred together, at most.
    """

    def __init__(self, servable: Servable, metrics: Metrics, batch: int):
        self._servable, self._metrics, self._batch = servable, metrics, batch
        self._waiting: OrderedDict[str, tuple[Request, Answer]] = OrderedDict()
        self._more = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="policy")

    async def call(self, function: Callable, *given: object) -> object:
        """Runs something in the policy's thread."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *given)

    def offer(self, request: Request, answer: Answer) -> None:
        """Queues a request; `answer` is called once, in the event loop, unless a newer request takes its place."""
        if request.session in self._waiting:
            self._metrics.stale.inc()
        self._waiting[request.session] = (request, answer)
        self._more.set()

    def drop(self, session: str) -> None:
        """A client's episode is over, or the client is gone: what waits is dropped and the policy forgets it."""
        self._waiting.pop(session, None)
        self._thread.submit(self._forget, session)

    def close(self) -> None:
        """Takes no more; waits for an inference that runs."""
        self._thread.shutdown(cancel_futures=True)

    async def run(self) -> None:
        """Serves until it is cancelled."""
        while True:
            await self._more.wait()
            while self._waiting:
                taken = self._next()
                self._metrics.waiting.set(len(self._waiting))
                started = boottime()
                results = await self.call(self._infer, [request for request, _ in taken])
                for (request, answer), result in zip(taken, results, strict=True):
                    answer(self._answer(request, started, *result))
            self._more.clear()

    def _next(self) -> list[tuple[Request, Answer]]:
        """The request that has waited longest, and others of its shape."""
        first = next(iter(self._waiting.values()))[0].shape
        chosen = [session for session, (request, _) in self._waiting.items() if request.shape == first]
        return [self._waiting.pop(session) for session in chosen[: self._batch]]

    def _answer(self, request: Request, started: float, outcome: np.ndarray | Refused, infer_s: float, version: str):
        total_s, queue_s = boottime() - request.arrived, started - request.arrived
        self._metrics.queue.observe(queue_s)
        self._metrics.total.observe(total_s)
        if isinstance(outcome, Refused):
            return Refused(outcome.code, outcome.reason, retry=outcome.retry, seq=request.seq)
        return Inferred(request, outcome, version, queue_s, infer_s, total_s)

    # in the policy's thread

    def _infer(self, requests: Sequence[Request]) -> list[tuple[np.ndarray | Refused, float, str]]:
        started = boottime()
        results: list[np.ndarray | Refused] = []
        asked: dict[int, Asked] = {}
        for place, request in enumerate(requests):
            try:
                asked[place] = request.asked()
            except Refused as refused:
                results.append(refused)
            else:
                results.append(Refused("policy", "no answer"))
        for place, outcome in zip(asked, self._outcomes(list(asked.values())), strict=True):
            results[place] = outcome
        taken, version = boottime() - started, self._servable.version
        self._metrics.infer.observe(taken)
        self._metrics.batch.observe(len(requests))
        return [(outcome, taken, version) for outcome in results]

    def _outcomes(self, asked: Sequence[Asked]) -> list[np.ndarray | Refused]:
        """A chunk for each; what fails in a batch is asked one by one, so that a fault is its own client's alone."""
        if not asked:
            return []
        try:
            chunks = self._servable.infer(asked)
            if len(chunks) != len(asked):
                raise ValueError(f"{len(chunks)} chunks for {len(asked)} observations")
            return [self._checked(chunk) for chunk in chunks]
        except Exception as error:  # a policy may be anybody's code
            if len(asked) > 1:
                return [outcome for each in asked for outcome in self._outcomes([each])]
            if not isinstance(error, UserError):
                log.error("the policy raised %s: %s", type(error).__name__, error, exc_info=log.isEnabledFor(10))
            return [Refused("policy", f"{type(error).__name__}: {error}".removeprefix("UserError: "), retry=True)]

    def _checked(self, chunk: np.ndarray) -> np.ndarray | Refused:
        width = len(self._servable.spec.action)
        actions = np.asarray(chunk, np.float32)
        if actions.ndim != 2 or not len(actions) or actions.shape[1] != width:
            return Refused("policy", f"the policy gave actions {list(actions.shape)}, wanted [K, {width}]")
        if not np.isfinite(actions).all():
            return Refused("policy", "the policy gave actions that are not finite", retry=True)
        return actions

    def _forget(self, session: str) -> None:
        try:
            self._servable.forget(session)
        except Exception as error:  # as above
            log.error("the policy could not forget: %s", error)
