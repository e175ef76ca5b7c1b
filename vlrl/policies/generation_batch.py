"""What a policy does around an engine that writes for it: asks, and scores what was written by its own weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vlrl.policies.engine import Engine, GenerationRequest, Options
from vlrl.policies.generation import Sampled, Sampling
from vlrl.policies.processor import Prompt
from vlrl.types import Decision, Observation, UserError

TRIED = 16  # tokens that an engine writes before a run begins
FAR = 0.5  # nats a token between engine and trainer, from which on something is wrong; bfloat16 makes about 0.01


@dataclass(frozen=True)
class GenerationBatch:
    """One entry per prompt."""

    shown: Sequence[Observation]
    prompts: Sequence[Prompt]
    begun: Sequence[Sequence[int]]
    counts: Sequence[int]


def ask(
    engine: Engine, wanted: GenerationBatch, sampling: Sampling, stop: Sequence[str], drawn: Tensor | None
) -> Sampled:
    """Completions, prompt by prompt, by the policy's present weights.

    Entropies are the tokens' surprisals, -log p: right on average. `scored` puts the exact ones in their place.

    Args:
        drawn: as `vlrl.policies.generation.decoding_write`.

    Raises:
        EngineError: no engine answers any more.
        UserError: the engine cannot write this.
    """
    parts = [None] * len(wanted.counts) if drawn is None else [p.numpy() for p in drawn.split(list(wanted.counts))]
    each = zip(wanted.shown, wanted.prompts, wanted.counts, wanted.begun, parts, strict=True)
    asked = [GenerationRequest(shown, prompt, count, tuple(begun), part) for shown, prompt, count, begun, part in each]
    engine.publish()
    groups = engine.generate(asked, Options(sampling.max_tokens, sampling.temperature, tuple(stop)))
    made = [completion for group in groups for completion in group]
    logprobs = [torch.tensor(completion.logprobs) for completion in made]
    return Sampled(
        [list(completion.tokens) for completion in made], logprobs, [-row for row in logprobs],
        [completion.cut for completion in made], 0,
    )  # fmt: skip


def scored(policy: Any, decisions: Sequence[Decision], greedy: bool) -> list[Decision]:
    """Sampled decisions with the engine's log-probabilities kept beside, and the policy's own where it rescores."""
    engine: Engine = policy.engine
    if greedy:
        return list(decisions)
    kept = [replace(d, inputs=replace(d.inputs, sampled=d.logprobs)) for d in decisions]
    if not engine.rescore:
        return kept
    made, gaps = [], []
    for decision, (logprobs, entropy) in zip(kept, policy.score(kept), strict=True):
        own = torch.ones_like(logprobs, dtype=torch.bool) if decision.forced_mask is None else ~decision.forced_mask
        gaps.append((logprobs - decision.logprobs)[own])
        made.append(replace(decision, logprobs=logprobs.where(own, 0.0), entropy=entropy.where(own, 0.0)))
    engine.record_gaps(gaps)
    return made


def check(policy: Any, shown: Observation, prompt: Prompt) -> None:
    """Asks the engine for a few tokens and scores them by the policy's own weights.

    Raises:
        UserError: the engine cannot write for this policy, or is far from it: it has another model, or its
            log-probabilities are not those of the sampling distribution.
    """
    room = min(TRIED, policy.max_tokens)
    asked = GenerationRequest(shown, prompt, 1, (), np.full((1, room), 0.5, np.float32))
    made = policy.engine.check(asked, Options(room, policy.temperature))
    rows = [policy.decision(prompt, each.tokens) for each in made]
    pairs = zip(made, policy.score(rows), strict=True)
    gap = max(float((logprobs - torch.tensor(each.logprobs)).abs().mean()) for each, (logprobs, _) in pairs)
    if gap > FAR:
        raise UserError(
            f"policy.engine: its log-probabilities lie {gap:.2g} nats a token from the trainer's: serve the same "
            "model, and give those of the sampling distribution (vLLM: --logprobs-mode processed_logprobs)"
        )
