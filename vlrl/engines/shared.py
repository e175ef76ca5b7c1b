"""One engine for several copies of a policy, each with weights of its own."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from vlrl.engines.base import Asked, Completion, Engine, Options

if TYPE_CHECKING:
    from torch import Tensor


class Shared:
    """An engine as one of the copies asks it: by that copy's weights, while no other asks.

    Args:
        engine: has `follow(policy)`, which says whose weights are published from there on.
        turn: held while a copy asks.
    """

    def __init__(self, engine: Engine, policy: Any, turn: threading.Lock):
        self._engine, self._policy, self._turn = engine, policy, turn
        self.rescore = engine.rescore

    @classmethod
    def beside(cls, first: Any, policy: Any) -> Shared:
        """The engine of a policy, for another one; the first from now on shares it."""
        if not isinstance(first.engine, Shared):
            first.engine = cls(first.engine, first, threading.Lock())
        return cls(first.engine._engine, policy, first.engine._turn)

    @property
    def metrics(self) -> Mapping[str, float]:
        return self._engine.metrics

    def check(self, asked: Asked, options: Options) -> list[Completion]:
        with self._turn:
            self._engine.follow(self._policy)
            return self._engine.check(asked, options)

    def publish(self) -> None:
        """Nothing: before its turn a copy's weights do not count."""

    def generate(self, asked: Sequence[Asked], options: Options) -> list[list[Completion]]:
        with self._turn:
            self._engine.follow(self._policy)
            self._engine.publish()
            return self._engine.generate(asked, options)

    def told(self, gaps: Sequence[Tensor]) -> None:
        self._engine.told(gaps)

    def close(self) -> None:
        self._engine.close()
