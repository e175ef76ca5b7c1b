"""One step's gradient updates: minibatches cut at group borders, one weight per unit, non-finite ones skipped.

A group is never split, not even over micro-batches: some losses (`reg_grpo`) compare its members with each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from vlrl.losses import clip_fraction, log_ratio
from vlrl.types import Batch, Decision, Evaluation, Policy, Rollouts


@dataclass
class Totals:
    """What a step's updates report."""

    loss: float = 0.0
    grad_norm: float = 0.0
    clip_fraction: float = 0.0
    gap: float = 0.0  # mean |log p now - log p sampled| before the first update: how far engine and trainer differ
    updates: int = 0
    skipped: int = 0  # non-finite updates
    skipped_ids: list[str] = field(default_factory=list)


def minibatches(groups: int, parts: int, epochs: int, key: Sequence[int]) -> Iterator[list[int]]:
    """Group positions of each optimizer step: a fresh permutation per epoch that depends on `key` alone."""
    for epoch in range(epochs):
        order = np.random.default_rng([*key, epoch]).permutation(groups) if parts > 1 else np.arange(groups)
        yield from (part.tolist() for part in np.array_split(order, min(parts, groups)))


class Updater:
    """Optimizer steps over the step's rollouts.

    Args:
        terms: loss terms `(now, batch) -> [b, T]`, coefficients inside.
        weigh: mask [B, T] -> weights [B, T] that sum to 1 over one optimizer step.
        backward: what takes a loss to gradients (accelerate's, so that every kind of parallelism works).
        clip: gradient clipping, returning the norm before it.
    """

    def __init__(
        self, policy: Policy, optimizer: torch.optim.Optimizer, terms: Sequence[Callable], weigh: Callable, *,
        backward: Callable[[Tensor], None], clip: Callable[[], Tensor], parts: int, epochs: int, micro: int | None,
        clip_range: tuple[float, float],
    ):  # fmt: skip
        self.policy, self.optimizer, self.terms, self.weigh = policy, optimizer, terms, weigh
        self.backward, self.clip = backward, clip
        self.parts, self.epochs, self.micro, self.clip_range = parts, epochs, micro, clip_range

    def step(self, decisions: Sequence[Decision], rollouts: Rollouts, advantage: Tensor, key: Sequence[int]) -> Totals:
        """All epochs and minibatches of one step. Decisions are the rows of the columns."""
        totals = Totals()
        group_of = rollouts.group[rollouts.episode].tolist()
        rows_of: dict[int, list[int]] = {}
        for row, group in enumerate(group_of):
            rows_of.setdefault(group, []).append(row)
        groups = list(rows_of.values())
        for chosen in minibatches(len(groups), self.parts, self.epochs, key):
            self._minibatch([groups[g] for g in chosen], decisions, rollouts, advantage, totals)
        return totals

    def _minibatch(self, groups: list[list[int]], decisions, rollouts: Rollouts, advantage: Tensor, totals: Totals):
        """One optimizer step, its groups forwarded `micro` at a time."""
        rows = [row for group in groups for row in group]
        mask = rollouts.mask[rows]
        weight = dict(zip(rows, self.weigh(mask), strict=True))
        self.optimizer.zero_grad(set_to_none=True)
        size, loss, first = self.micro or len(groups), 0.0, totals.updates + totals.skipped == 0
        clipped = gap = 0.0
        for start in range(0, len(groups), size):
            part = [row for group in groups[start : start + size] for row in group]
            now = self.policy.evaluate([decisions[row] for row in part])
            batch = _slice(part, now, rollouts, advantage)
            weights = torch.stack([weight[row] for row in part])[:, : now.mask.shape[1]].to(now.mask.device)
            objective = (sum(term(now, batch) for term in self.terms) * weights).sum()
            if not torch.isfinite(objective):
                return self._skip(rows, rollouts, totals)
            self.backward(objective)
            loss += objective.item()
            clipped += clip_fraction(now, batch, *self.clip_range) * int(batch.mask.sum())
            gap += float(log_ratio(now, batch).detach().abs()[batch.mask].sum())
        norm = self.clip()
        if not torch.isfinite(norm):
            return self._skip(rows, rollouts, totals)
        self.optimizer.step()
        tokens = float(mask.sum())
        totals.updates += 1
        totals.loss += (loss - totals.loss) / totals.updates
        totals.grad_norm += (float(norm) - totals.grad_norm) / totals.updates
        totals.clip_fraction += (clipped / tokens - totals.clip_fraction) / totals.updates
        totals.gap = gap / tokens if first else totals.gap

    def _skip(self, rows: list[int], rollouts: Rollouts, totals: Totals) -> None:
        """A non-finite loss or gradient moves nothing; it is counted with the samples it came from."""
        self.optimizer.zero_grad(set_to_none=True)
        totals.skipped += 1
        totals.skipped_ids += sorted({rollouts.sample_ids[int(rollouts.episode[row])] for row in rows})


def _slice(rows: list[int], now: Evaluation, rollouts: Rollouts, advantage: Tensor) -> Batch:
    """The rows' columns, cut to the evaluation's length and put beside it."""
    length, device = now.mask.shape[1], now.mask.device
    reference = None if rollouts.reference is None else rollouts.reference[rows, :length].to(device)
    episode = rollouts.episode[rows]
    return Batch(
        advantage[rows, :length].to(device), rollouts.logprobs[rows, :length].to(device),
        now.mask & rollouts.mask[rows, :length].to(device), reference,
        group=rollouts.group[episode].to(device), episode=episode.to(device),
    )  # fmt: skip
