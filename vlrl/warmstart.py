"""A supervised start: the gold answers of a mixture of tasks, learned from scratch by a tiny model or by a loaded one."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import Field

from vlrl import embedded, registry
from vlrl.config import Count, DataSection, Plugin, PolicySection, Rate, Section, load_as
from vlrl.evaluate import evaluate
from vlrl.policies.load import load as load_policy
from vlrl.policies.vlm import VLM
from vlrl.types import Decision, Sample


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
    frames = policy.prompt(sample.prompt, sample.id).frames
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


class ModelSection(Section):
    """The tiny model to build (vlrl/embedded.py)."""

    family: Literal["qwen3_vl", "qwen2_5_vl"] = "qwen3_vl"
    hidden: Count = 128
    layers: Count = 3
    vision_hidden: Count = 64
    vision_layers: Count = 2
    patch: Count = 8
    space: str | None = "grid10"


class Lesson(Section):
    task: Plugin
    share: Rate = 1.0  # of the questions, relative to the other lessons
    data: DataSection = DataSection()


class WarmstartConfig(Section):
    out: str
    seed: int = 0
    steps: Count = 1000
    batch: Count = 64
    lr: Rate = 3e-3
    warmup: Count = 20
    threads: Count = 1  # of one process: tiny matrices gain nothing from more, and the sums stay the same everywhere
    model: ModelSection = ModelSection()
    lessons: Annotated[list[Lesson], Field(min_length=1)]


def main(path: str, changes: Sequence[str]) -> int:
    """`vlrl warmstart CONFIG`: builds a tiny model, teaches it, saves it in float16 and prints its held-out accuracy."""
    config = load_as(WarmstartConfig, path, changes)
    torch.set_num_threads(config.threads)
    tasks = [
        registry.make("task", lesson.task, f"lessons.{i}.task", data=lesson.data.plain())
        for i, lesson in enumerate(config.lessons)
    ]
    tokenizer = embedded.tokenizer_from(_corpus(tasks))
    model, processor = embedded.build(tokenizer, **config.model.model_dump(), seed=config.seed)
    policy = VLM(model, processor, max_tokens=16, seed=config.seed)
    shares = [lesson.share for lesson in config.lessons]
    train(
        policy, tasks, shares, steps=config.steps, batch=config.batch, lr=config.lr, seed=config.seed,
        warmup=config.warmup,
    )  # fmt: skip
    folder = Path(config.out)
    folder.mkdir(parents=True, exist_ok=True)
    model.half().save_pretrained(folder)
    processor.save_pretrained(folder)
    policy = load_policy(PolicySection(model=str(folder), max_tokens=16))
    for lesson, task in zip(config.lessons, tasks, strict=True):
        measured = evaluate(policy, task).accuracy
        interval = f"[{measured.low:.3f}, {measured.high:.3f}]"
        print(f"{lesson.task.name}: held-out accuracy {measured.value:.3f} {interval} on {measured.n}")
    return 0


def _corpus(tasks: Sequence[Any], each: int = 100) -> Iterator[str]:
    """Texts to learn a vocabulary from: the tasks' prompts inside the chat frame."""
    for task in tasks:
        pool = task.samples("train")
        for i in range(min(each, len(pool))):
            yield f"user\n{pool[i].prompt.text}\nassistant\n"
