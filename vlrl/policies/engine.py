"""What the policy and those who write for it say to each other: prompts and options -> tokens and log-probabilities."""

from __future__ import annotations

import threading
import zlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vlrl.logging import StoppedError

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from vlrl.policies.processor import Prompt
    from vlrl.types import Observation


@dataclass(frozen=True)
class Options:
    """How completions are sampled: from the full distribution (top_p 1), without the tokens that a codec bans."""

    max_tokens: int
    temperature: float  # 0 is greedy
    stop: tuple[str, ...] = ()  # texts that end a completion and belong to it


@dataclass(frozen=True, eq=False)
class GenerationRequest:
    """A prompt, and how many completions of it are wanted."""

    shown: Observation
    prompt: Prompt  # what the trainer makes of what is shown
    count: int
    begun: tuple[int, ...] = ()  # tokens that each completion begins with
    drawn: np.ndarray | None = None  # float32 [count, max_tokens] in [0, 1), what is sampled with; None: greedy

    @property
    def seed(self) -> int:
        """For engines that take a seed instead of the numbers: below 2**31."""
        return 0 if self.drawn is None else zlib.crc32(self.drawn.tobytes()) >> 1


@dataclass(frozen=True)
class Completion:
    """What was written, the stop token included and what was begun not."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]  # of the tokens, under the behaviour policy
    cut: bool  # stopped by the length limit


class Engine(ABC):
    """Writes for a policy, elsewhere or otherwise than the policy itself. Made with `(policy, source)` and options."""

    rescore: bool = False  # the trainer scores what was written anew (docs/engines.md)

    @property
    def metrics(self) -> Mapping[str, float]:
        """`engine/...`, since the newest weights were published."""
        return {}

    @staticmethod
    def agree(options: Mapping[str, Any]) -> None:
        """ValueError where options do not go together; a configuration is checked by it."""

    def check(self, asked: GenerationRequest, options: Options) -> list[Completion]:
        """What it writes for a first request. UserError where it can write none for this policy."""
        return self.generate([asked], options)[0]

    @abstractmethod
    def publish(self) -> None:
        """The policy's present weights count from here on."""

    def follow(self, policy: Any) -> None:
        """From here on another policy's weights are the present ones: a copy of the policy, for `max_staleness`."""
        raise NotImplementedError

    @classmethod
    def can_follow(cls) -> bool:
        return cls.follow is not Engine.follow

    @abstractmethod
    def generate(self, asked: Sequence[GenerationRequest], options: Options) -> list[list[Completion]]:
        """As many completions of each request as it asks for."""

    def record_gaps(self, gaps: Sequence[Tensor]) -> None:
        """Takes the trainer's less the engine's log-probabilities, each completion's."""

    def close(self) -> None:
        """Ends what it started."""


class Shared(Engine):
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


class EngineError(StoppedError):
    """No engine answers any more: the run ends, its newest checkpoint is good."""

    def __init__(self, message: str):
        super().__init__(message, exit_code=1)
