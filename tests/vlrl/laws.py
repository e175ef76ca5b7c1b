"""Random steps and micro-batches that every plug-in can be asked about, and the options that some need."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from vlrl import methods, registry
from vlrl.config import Component
from vlrl.types import Batch, Evaluation, Rollouts

KINDS = ("advantages", "reward_shaping", "losses", "loss_aggregation")
LENGTH = 7
# what has no default, or one that does not fit these steps
OPTIONS = {
    "constant": {"length": LENGTH},
    "overlong": {"longest": LENGTH, "cache": 4},
    "laser": {"target": 3},
    "laser_d": {"ladder": [2, 4, 6], "every": 1},
    "laser_de": {"ladder": [2, 4, 6], "every": 1},
    "g_ra": {"high": "accuracy", "threshold": 0.5},
    "trust": {"thinking": "thinking"},
    "ngrpo": {"best": 1.25},
    "noise_backward": {"false_positive": 0.1, "false_negative": 0.2},
    "noise_forward": {"false_negative": 0.2},
    "shortest_bonus": {"longer_than": 2},
    "salt": {"by": "state", "action": "next"},
    "robust": {"judges": ["accuracy", "thinking"]},
    "exploration": {"most": 4},
    "prs": {"stages": [{"part": "accuracy"}, {"part": "thinking"}]},
}


def made(kind: str, name: str) -> Callable:
    """A plug-in as a run makes it, without a past."""
    return registry.make(kind, Component(name=name, **OPTIONS.get(name, {})), f"{kind}.0")


def needs(kind: str, name: str) -> tuple[str, ...]:
    return methods.of(registry.find(kind, name)).needs


def _drawn(seed: int) -> tuple[Callable[..., Tensor], Callable[..., Tensor], torch.Generator]:
    """Normal and uniform float64 draws of a seed."""
    generator = torch.Generator().manual_seed(seed)
    options = {"generator": generator, "dtype": torch.float64}
    return functools.partial(torch.randn, **options), functools.partial(torch.rand, **options), generator


def step(seed: int, *, groups: int = 3, size: int = 4, turns: int = 1) -> Rollouts:
    """A step of groups x size episodes with every column that an estimator may read, in float64 (features: float32).

    Completions of a group differ in length, so that no method has to choose among equals.
    """
    normal, uniform, generator = _drawn(seed)
    n, at = groups * size, _drawn(seed + 1)[1]  # draws of their own: other columns stay as they were
    rows = n * turns
    right = (uniform(n) > 0.5).double()
    lengths = 1 + torch.stack([torch.randperm(LENGTH, generator=generator)[:size] for _ in range(groups)]).flatten()
    mask = torch.arange(LENGTH) < lengths.repeat_interleave(turns)[:, None]
    logprobs = -normal(rows, LENGTH).abs() - 0.05
    names = tuple(f"sample/{i // size}" for i in range(n))
    return Rollouts(
        sample_ids=names, reward=right + 0.25 * uniform(n).round(), group=torch.arange(n) // size,
        episode=torch.arange(n).repeat_interleave(turns), mask=mask, logprobs=logprobs * mask,
        entropy=normal(rows, LENGTH).abs() * mask, reference=(logprobs + 0.2 * normal(rows, LENGTH)) * mask,
        weight=1 + uniform(n), features=normal(rows, 3).float(), correct=right, step=3,
        parts={"accuracy": right, "thinking": uniform(n)}, texts=tuple(f"text {i} " * 3 for i in range(n)),
        process_reward=at(rows) - 0.5, truncated=at(n) > 0.5, final=at(n, 3).float(), states=(2 * at(rows,
        2)).round().float(),
        observation_keys=tuple(f"page {i}" for i in (2 * at(rows)).round().tolist()),
        action_keys=tuple(f"click {i}" for i in (2 * at(rows)).round().tolist()),
        teacher=(logprobs + 0.3 * at(rows, LENGTH)) * mask,
    )  # fmt: skip


def chosen(rollouts: Rollouts, order: Tensor) -> tuple[Rollouts, Tensor]:
    """The episodes in another order, or some of them, and the rows that they had."""
    rows = torch.cat([(rollouts.episode == i).nonzero().flatten() for i in order.tolist()])
    place = torch.empty(len(rollouts.reward), dtype=torch.long)
    place[order] = torch.arange(len(order))
    columns = {
        name: getattr(rollouts, name)[order] for name in ("reward", "group", "weight", "correct", "truncated", "final")
    }
    of_rows = ("mask", "logprobs", "entropy", "reference", "features", "process_reward", "states", "teacher")
    columns |= {name: getattr(rollouts, name)[rows] for name in of_rows}
    columns |= {
        name: tuple(getattr(rollouts, name)[i] for i in rows.tolist()) for name in ("observation_keys", "action_keys")
    }
    parts = {name: values[order] for name, values in rollouts.parts.items()}
    return replace(
        rollouts, **columns, episode=place[rollouts.episode[rows]], parts=parts,
        sample_ids=tuple(rollouts.sample_ids[i] for i in order), texts=tuple(rollouts.texts[i] for i in order),
    ), rows  # fmt: skip


def soiled(rollouts: Rollouts, garbage: float) -> Rollouts:
    """The same step with something else where there are no tokens."""
    columns = ("logprobs", "entropy", "reference", "teacher")
    return replace(rollouts, **{name: getattr(rollouts, name).masked_fill(~rollouts.mask, garbage) for name in columns})


def rewarded(rollouts: Rollouts, reward: Tensor) -> Rollouts:
    """The same step with other rewards."""
    parts = {"accuracy": reward, "thinking": 0 * reward}
    return replace(rollouts, reward=reward, correct=reward, parts=parts)


def advantage_of(name: str, rollouts: Rollouts, given: Tensor | None = None) -> Tensor:
    """What an estimator alone makes of the rewards, or of given values [B], as [B, T]."""
    start = rollouts.reward[rollouts.episode] if given is None else given
    made_of = made("advantages", name)(rollouts, start)
    return made_of[:, None] * rollouts.mask if made_of.ndim == 1 else made_of * rollouts.mask


def micro(seed: int, *, groups: int = 3, size: int = 4, spread: float = 0.4) -> tuple[Evaluation, Batch]:
    """A minibatch of completions, one advantage each that sums to 0 over its group, as losses see it."""
    normal, _, _ = _drawn(seed)
    rollouts = step(seed, groups=groups, size=size)
    mask, rows = rollouts.mask, len(rollouts.mask)
    now = (rollouts.logprobs + spread * normal(rows, LENGTH) * mask).requires_grad_()
    full = rollouts.entropy.clone().requires_grad_()
    advantage = normal(groups, size)
    advantage = (advantage - advantage.mean(1, keepdim=True)).reshape(-1, 1) * mask
    batch = Batch(
        advantage, rollouts.logprobs, mask, rollouts.reference, rollouts.group, episode=rollouts.episode,
        teacher=rollouts.teacher, teacher_candidates=rollouts.teacher[..., None],
        is_correct=rollouts.is_correct[rollouts.episode],
    )  # fmt: skip
    return Evaluation(now, full, mask, now[..., None]), batch


def some(now: Evaluation, batch: Batch, rows: Tensor) -> tuple[Evaluation, Batch]:
    """Some rows of a minibatch, as a micro-batch or in another order."""
    columns = (
        "advantage", "old_logprobs", "mask", "reference", "group", "episode", "teacher", "teacher_candidates",
        "is_correct",
    )  # fmt: skip
    return (
        Evaluation(now.logprobs[rows], now.entropy[rows], now.mask[rows], now.candidates[rows]),
        replace(batch, **{name: getattr(batch, name)[rows] for name in columns}),
    )


def weights(name: str, mask: Tensor) -> Tensor:
    """Those that a loss is used with."""
    return made("loss_aggregation", "sequence_mean" if "sequence_mean" in needs("losses", name) else "token_mean")(mask)


def gradient(objective: Tensor, now: Evaluation) -> Tensor:
    """With respect to the log-probabilities; 0 where there is none."""
    if not objective.requires_grad:
        return torch.zeros_like(now.logprobs)
    (grad,) = torch.autograd.grad(objective, now.logprobs, allow_unused=True, retain_graph=True)
    return torch.zeros_like(now.logprobs) if grad is None else grad
