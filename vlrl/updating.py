"""What a configuration makes of the update: optimizer, loss terms, learning rate."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import torch

from vlrl import optimizers, registry
from vlrl.config import Config, TrainSection
from vlrl.parallel import here
from vlrl.parallel.gradients import Replicated
from vlrl.parallel.start import in_parts, optimizer_in_parts
from vlrl.update import Updater


def updater(config: Config, policy: Any, saved: Path | None = None) -> Updater:
    """The run's updater, with its optimizer. saved: the checkpoint that the run goes on from."""
    train = config.train
    shared, optimizer = _shared(train, policy, saved)
    terms = [registry.make("losses", c, f"losses.{i}") for i, c in enumerate(config.losses)]
    clip_range = next(((t.keywords["low"], t.keywords["high"]) for t in terms if "high" in t.keywords), (0.2, 0.2))
    return Updater(
        policy, optimizer, terms, registry.make("weighing", config.weighing, "weighing"),
        backward=torch.Tensor.backward, clip=functools.partial(shared.clip, train.max_grad_norm),
        parts=train.minibatches, epochs=train.epochs, micro=train.microbatch, clip_range=clip_range,
        skip=train.skip_zero, target_kl=train.target_kl, shared=shared,
    )  # fmt: skip


def _shared(train: TrainSection, policy: Any, saved: Path | None) -> tuple[Any, torch.optim.Optimizer]:
    """What adds up gradients over all processes, and the optimizer that takes them."""
    world = here()
    build = functools.partial(
        optimizers.build, policy.model, train.optimizer,
        lr=train.lr, betas=tuple(train.betas), weight_decay=train.weight_decay,
    )  # fmt: skip
    if in_parts():
        from vlrl.parallel.sharded import Sharded

        parted = Sharded(world, policy, saved)
        optimizer = build()
        parted.gather()
        return parted, optimizer
    if optimizer_in_parts():
        from vlrl.parallel.zero import Zero

        zero = Zero(world, policy, build(), train.max_grad_norm, saved)
        return zero, zero.optimizer
    return Replicated(world, [p for p in policy.model.parameters() if p.requires_grad]), build()


def rate(train: TrainSection, step: int) -> float:
    """The learning rate of a step, from 0: warm-up, then constant or linear to `lr_end`."""
    if step < train.warmup:
        return train.lr * (step + 1) / train.warmup
    if train.lr_end is None:
        return train.lr
    share = (step - train.warmup) / max(1, train.steps - train.warmup)
    return train.lr + (train.lr_end - train.lr) * share
