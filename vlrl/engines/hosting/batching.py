"""One model, many clients: what waits at the same time is written in one batch."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from vlrl.engines.base import Asked, Completion, Options
from vlrl.engines.hosting.prompts import Prompts
from vlrl.engines.hosting.requests import Wish
from vlrl.engines.hosting.weights import Weights
from vlrl.engines.local import Local
from vlrl.policies.codecs import Prompt
from vlrl.policies.scorer import bare
from vlrl.types import Observation

GATHER = 0.005  # seconds without a newcomer after which a batch begins
Answer = tuple[Prompt, list[Completion], str]  # and the version of the weights that wrote it


class Writer:
    """Owns the model: one thread writes batches and, between them, takes new weights.

    Args:
        policy: a VLM; its weights are no longer trained.
        batch: completions that are written at once, at most.
    """

    def __init__(self, policy: Any, batch: int):
        self._policy, self._batch, self.version = policy, batch, "start"
        policy.model.requires_grad_(False)
        self._weights = Weights(bare(policy.model))
        self._engine, self._prompts = Local(policy), Prompts(policy.codec)
        self._inbox: SimpleQueue[tuple[Wish, Future] | tuple[Callable[[], Any], Future] | None] = SimpleQueue()
        self._waiting: list[tuple[Wish, Future]] = []
        self._thread = threading.Thread(target=self._run, name="writer", daemon=True)
        self._thread.start()

    @property
    def queue(self) -> int:
        return self._inbox.qsize() + len(self._waiting)

    def write(self, wish: Wish) -> Answer:
        """Waits for a request's completions; raises what went wrong with it."""
        return self._hand_in(wish)

    def take(self, path: Path, version: str) -> int:
        """New weights, once the batch under way has ended; how many tensors. Nothing made by the old ones is kept."""

        def change() -> int:
            count = self._weights.put(path)
            self._policy.forget()
            self.version = version
            return count

        return self._hand_in(change)

    def close(self) -> None:
        self._inbox.put(None)
        self._thread.join(timeout=30)

    def _hand_in(self, what: Any) -> Any:
        future: Future = Future()
        self._inbox.put((what, future))
        return future.result()

    def _run(self) -> None:
        while True:
            if not self._gather():
                return
            self._write(self._next())

    def _gather(self) -> bool:
        """Takes what has come, until nothing more does or a batch is full; waits where there is nothing to do.

        Returns:
            False at the end.
        """
        while sum(wish.count for wish, _ in self._waiting) < self._batch:
            try:
                item = self._inbox.get(timeout=GATHER if self._waiting else None)
            except Empty:
                break
            if item is None:
                return False
            what, future = item
            if isinstance(what, Wish):
                self._waiting.append((what, future))
            else:
                _settle(future, what)
        return True

    def _next(self) -> list[tuple[Wish, Future]]:
        """The first that waits, and all that are sampled in the same way, as far as there is room."""
        options, chosen, size = self._waiting[0][0].options, [], 0
        for each in self._waiting:
            if each[0].options == options and (not chosen or size + each[0].count <= self._batch):
                chosen.append(each)
                size += each[0].count
        self._waiting = [each for each in self._waiting if not any(each is other for other in chosen)]
        return chosen

    def _write(self, chosen: list[tuple[Wish, Future]]) -> None:
        asked: list[tuple[Asked, Future]] = []
        for wish, future in chosen:
            try:
                prompt = self._prompts.of(wish.prompt, wish.images)
                asked.append((Asked(Observation(()), prompt, wish.count, (), wish.drawn), future))
            except Exception as error:
                future.set_exception(error)
        if not asked:
            return
        options: Options = chosen[0][0].options
        try:
            written = self._engine.generate([each for each, _ in asked], options)
        except Exception as error:
            for _, future in asked:
                future.set_exception(error)
            return
        for (each, future), completions in zip(asked, written, strict=True):
            future.set_result((each.prompt, completions, self.version))


def _settle(future: Future, do: Callable[[], Any]) -> None:
    try:
        future.set_result(do())
    except Exception as error:
        future.set_exception(error)
