"""The policy's own fast decoder as an engine: what `vlrl serve-model` writes with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from vlrl.engines.base import Asked, Completion, Options

if TYPE_CHECKING:
    from torch import Tensor


class Local:
    """Completions of a `vlrl.policies.vlm.VLM`, in this process and with its weights."""

    rescore = False

    def __init__(self, policy: Any, source: str = ""):
        self.policy = policy
        self.metrics: Mapping[str, float] = {}

    def check(self, asked: Asked, options: Options) -> list[Completion]:
        return self.generate([asked], options)[0]

    def publish(self) -> None: ...

    def told(self, gaps: Sequence[Tensor]) -> None: ...

    def close(self) -> None: ...

    def generate(self, asked: Sequence[Asked], options: Options) -> list[list[Completion]]:
        import numpy as np
        import torch

        from vlrl.policies.codecs import going_on

        sampling = self.policy.sampling(options.max_tokens, options.temperature, options.stop)
        drawn = torch.from_numpy(np.concatenate([each.drawn for each in asked])) if options.temperature else None
        prompts = [going_on(each.prompt, each.begun) for each in asked]
        made = self.policy.write(prompts, [each.count for each in asked], sampling, drawn)
        rows = iter(zip(made.tokens, made.logprobs, made.cut, strict=True))
        return [[_completion(*next(rows)) for _ in range(each.count)] for each in asked]


def _completion(tokens: Sequence[int], logprobs: Tensor, cut: bool) -> Completion:
    return Completion(tuple(tokens), tuple(logprobs.tolist()), cut)
