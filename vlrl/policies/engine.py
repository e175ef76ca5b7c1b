"""What the policy and those who write for it say to each other: prompts and options -> tokens and log-probabilities."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

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


class Engine(Protocol):
    """Writes for a policy, elsewhere or otherwise than the policy itself."""

    rescore: bool  # the trainer scores what was written anew (docs/engines.md)
    metrics: Mapping[str, float]  # `engine/...`, since the newest weights were published

    def check(
        self, asked: GenerationRequest, options: Options
    ) -> list[Completion]: ...  # UserError where none can serve this policy
    def publish(self) -> None: ...  # the policy's present weights count from here on
    def follow(self, policy: Any) -> None: ...  # a copy of the policy whose weights are published; needed by
    # `train.max_staleness`, others may lack it
    def generate(self, asked: Sequence[GenerationRequest], options: Options) -> list[list[Completion]]: ...
    def record_gaps(
        self, gaps: Sequence[Tensor]
    ) -> None: ...  # trainer's less engine's log-probabilities, each completion's
    def close(self) -> None: ...


class EngineError(StoppedError):
    """No engine answers any more: the run ends, its newest checkpoint is good."""

    def __init__(self, message: str):
        super().__init__(message, exit_code=1)
