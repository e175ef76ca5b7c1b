"""What the engines share."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from vlrl.policies.engine import Completion, Engine, GenerationRequest, Options

if TYPE_CHECKING:
    from torch import Tensor


# One engine for several copies of a policy, each with weights of its own.


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
    def share_engine(cls, first: Any, policy: Any) -> Shared:
        """The engine of a policy, for another one; the first from now on shares it."""
        if not isinstance(first.engine, Shared):
            first.engine = cls(first.engine, first, threading.Lock())
        return cls(first.engine._engine, policy, first.engine._turn)

    @property
    def metrics(self) -> Mapping[str, float]:
        return self._engine.metrics

    def check(self, asked: GenerationRequest, options: Options) -> list[Completion]:
        with self._turn:
            self._engine.follow(self._policy)
            return self._engine.check(asked, options)

    def publish(self) -> None:
        """Nothing: before its turn a copy's weights do not count."""

    def generate(self, asked: Sequence[GenerationRequest], options: Options) -> list[list[Completion]]:
        with self._turn:
            self._engine.follow(self._policy)
            self._engine.publish()
            return self._engine.generate(asked, options)

    def record_gaps(self, gaps: Sequence[Tensor]) -> None:
        self._engine.record_gaps(gaps)

    def close(self) -> None:
        self._engine.close()


# What an engine reports: counts, seconds, and how far its log-probabilities lie from the trainer's.

COUNTS = ("seconds", "retries", "stale", "published")
PREFIX_CACHE = "engine/prefix_cache_hit_rate"


class EngineStats:
    """Adds up between two updates of the weights. Threads may add at the same time."""

    def __init__(self):
        self._lock = threading.Lock()
        self.begin()

    def begin(self) -> None:
        """From zero: new weights."""
        self._counts = dict.fromkeys(COUNTS, 0.0)
        self._gaps, self._tokens, self._largest = 0.0, 0, 0.0
        self._prompt_tokens = self._cached_tokens = 0

    def add(self, **counts: float) -> None:
        with self._lock:
            for name, count in counts.items():
                self._counts[name] += count

    def add_prompt(self, tokens: int, cached: int) -> None:
        """A prompt's tokens, and those of them that its server had in its prefix cache."""
        with self._lock:
            self._prompt_tokens, self._cached_tokens = self._prompt_tokens + tokens, self._cached_tokens + cached

    def gaps(self, differences: Sequence[Tensor]) -> None:
        """Log-probabilities of sampled tokens, the trainer's less the engine's, of each completion [T]."""
        for each in differences:
            if len(each):
                self._gaps += float(each.abs().sum())
                self._tokens += len(each)
                self._largest = max(self._largest, float(each.abs().max()))

    def row(self) -> dict[str, float]:
        """seconds that rollouts waited, requests asked again after a failure, answers of other weights that were not
        used, weights given to a server; the share of prompts' tokens that came from a prefix cache, where servers say
        it; the gap's mean and largest, in nats a token.
        """
        row = {f"engine/{name}": count for name, count in self._counts.items()}
        if self._prompt_tokens:
            row[PREFIX_CACHE] = self._cached_tokens / self._prompt_tokens
        if self._tokens:
            row |= {"engine/logprob_gap": self._gaps / self._tokens, "engine/logprob_gap_max": self._largest}
        return row
