"""A supervised start: the gold answers of a mixture of tasks, learned from scratch by a tiny model or by a loaded one."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from vlrl.policies.vlm import VLM
from vlrl.types import Decision, Frame, Sample


def questions(tasks: Sequence[Any], shares: Sequence[float], seed: int) -> Iterator[tuple[Any, Sample]]:
    """An endless mixture of the tasks' training samples, each task by its share."""
    rng = np.random.default_rng(seed)
    pools = [task.samples("train") for task in tasks]
    weights = np.asarray(shares, dtype=float) / sum(shares)
    while True:
        i = int(rng.choice(len(tasks), p=weights))
        yield tasks[i], pools[i][int(rng.integers(len(pools[i])))]


def gold_decision(policy: VLM, task: Any, sample: Sample) -> Decision:
    """The task's best answer as if the policy had given it."""
    frames: tuple[Frame, ...] = policy.prompt(sample.prompt, sample.id).frames
    return policy.decide(sample.prompt, task.gold(sample, frames), sample.id)


def optimizers(model: torch.nn.Module, lr: float) -> list[torch.optim.Optimizer]:
    """Muon for the matrices (a third of AdamW's steps on tiny models), AdamW for embeddings, norms and biases."""
    matrices, rest = [], []
    for name, parameter in model.named_parameters():
        hidden = parameter.ndim == 2 and "embed" not in name
        (matrices if hidden else rest).append(parameter)
    return [
        torch.optim.Muon(matrices, lr=lr, weight_decay=0.01, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(rest, lr=lr, betas=(0.9, 0.95), weight_decay=0.0),
    ]


def schedule(step: int, steps: int, warmup: int) -> float:
    """Linear rise, then a cosine to a tenth."""
    if step < warmup:
        return (step + 1) / warmup
    return 0.1 + 0.45 * (1 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup)))


def train(
    policy: VLM, tasks: Sequence[Any], shares: Sequence[float], *, steps: int, batch: int, lr: float, seed: int,
    warmup: int = 20, progress: bool = True,
) -> list[float]:  # fmt: skip
    """Minimises the token-mean negative log-likelihood of gold answers. Returns the loss of every step."""
    stream = questions(tasks, shares, seed)
    parts = optimizers(policy.model, lr)
    losses, start = [], time.time()
    for step in range(steps):
        decisions = [gold_decision(policy, *next(stream)) for _ in range(batch)]
        now = policy.evaluate(decisions)
        loss = -(now.logprobs * now.mask).sum() / now.mask.sum()
        for optimizer in parts:
            for setting in optimizer.param_groups:
                setting["lr"] = lr * schedule(step, steps, warmup)
            optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(policy.model.parameters(), 1.0)
        for optimizer in parts:
            optimizer.step()
        losses.append(loss.item())
        if progress and (step + 1) % 25 == 0:
            recent = sum(losses[-25:]) / 25
            print(f"\rstep {step + 1}/{steps}  loss {recent:.3f}  {time.time() - start:.0f} s", end="", file=sys.stderr)
    return losses
