"""One step's gradient updates: minibatches cut at group borders, one weight per unit, non-finite ones skipped.

A group is never split, not even over micro-batches: some losses (`reg_grpo`) compare its members with each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, dataclass, field

import numpy as np
import torch
from torch import Tensor

from vlrl import methods
from vlrl.algorithms.common import clip_fraction, log_ratio
from vlrl.distributed.gradients import ALONE, Replicated
from vlrl.performance import oom
from vlrl.performance.profiling import timed
from vlrl.types import Batch, Decision, Evaluation, Policy, Rollouts

# What a step's updates add up to, and what of it is reported.


@dataclass
class MicrobatchStats:
    """What the micro-batches of an optimizer step add up to."""

    loss: float = 0.0
    clipped: float = 0.0  # units
    gap: float = 0.0  # sum of |log p now - log p sampled|
    k3: float = 0.0
    units: float = 0.0
    bad: float = 0.0  # objectives that are not finite

    def add(self, loss: float, now: Evaluation, batch: Batch, clip_range: tuple[float, float]) -> None:
        moved = log_ratio(now, batch).detach()[batch.mask]
        self.loss += loss
        self.clipped += clip_fraction(now, batch, *clip_range) * int(batch.mask.sum())
        self.gap += float(moved.abs().sum())
        self.k3 += float((moved.expm1() - moved).sum())
        self.units += len(moved)


@dataclass
class UpdateStats:
    """What a step's updates report."""

    loss: float = 0.0
    grad_norm: float = 0.0
    clip_fraction: float = 0.0  # of the units that were evaluated
    gap: float = 0.0  # mean |log p now - log p sampled| before the first update: how far engine and trainer differ
    kl: float = 0.0  # of the latest epoch: k3 from the behaviour policy, mean over units, each before its own update
    epochs: int = 0  # passes over the rollouts
    left_out: float = 0.0  # share of rows that had no gradient to give and were not evaluated
    updates: int = 0
    measured: int = 0  # updates that evaluated anything
    skipped: int = 0  # non-finite updates
    skipped_ids: list[str] = field(default_factory=list)
    drift: list[float] = field(default_factory=lambda: [0.0, 0.0])  # of the epoch under way: sum of k3, units

    def end_epoch(self) -> None:
        """Takes the epoch's KL."""
        self.kl, self.epochs, self.drift = self.drift[0] / max(1.0, self.drift[1]), self.epochs + 1, [0.0, 0.0]

    def count(self, found: MicrobatchStats, norm: float, units: float | None) -> None:
        """One more update into the means; units: that carry credit; None: nothing was evaluated."""
        first = self.updates + self.skipped == 0
        self.updates += 1
        self.loss += (found.loss - self.loss) / self.updates
        self.grad_norm += (norm - self.grad_norm) / self.updates
        if units is None:
            return
        self.measured += 1
        self.clip_fraction += (found.clipped / units - self.clip_fraction) / self.measured
        self.gap = found.gap / units if first else self.gap
        self.drift = [self.drift[0] + found.k3, self.drift[1] + found.units]


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
        backward: what takes a loss to gradients.
        clip: gradient clipping, returning the norm before it.
        shared: what adds up gradients over all processes.
        skip: leave out groups whose advantages are all 0, unless they are shown, where every term vanishes with them
            (`methods.Method`): they have no gradient. Weights and optimizer steps stay the same. A parameter that the
            others do not reach gets a gradient of 0, as those left out would have given it: right where every minibatch
            reaches every parameter.
        target_kl: ends the step after an epoch whose mean KL (`Totals.kl`) is above.
    """

    def __init__(
        self, policy: Policy, optimizer: torch.optim.Optimizer, terms: Sequence[Callable], weigh: Callable, *,
        backward: Callable[[Tensor], None], clip: Callable[[], Tensor], parts: int, epochs: int, micro: int | None,
        clip_range: tuple[float, float], skip: bool = False, target_kl: float | None = None,
        shared: Replicated = ALONE,
    ):  # fmt: skip
        self.policy, self.optimizer, self.terms, self.weigh = policy, optimizer, terms, weigh
        self.backward, self.clip, self.shared = backward, clip, shared
        self.parts, self.epochs, self.micro, self.clip_range = parts, epochs, micro, clip_range
        self.target_kl = target_kl
        self.skip = skip and all(methods.of(term).vanishes for term in terms)
        self.whole = any("one_forward" in methods.of(term).needs for term in terms)
        self.spared = self.shared.in_parts  # whether memory has not sufficed once; there, all make equally many passes

    def step(
        self, decisions: Sequence[Decision], rollouts: Rollouts, advantage: Tensor, key: Sequence[int]
    ) -> UpdateStats:
        """All epochs and minibatches of one step. Decisions are the rows of the columns."""
        with self.shared.learning():
            return self._step(decisions, rollouts, advantage, key)

    def _step(
        self, decisions: Sequence[Decision], rollouts: Rollouts, advantage: Tensor, key: Sequence[int]
    ) -> UpdateStats:
        totals = UpdateStats()
        group_of = rollouts.group[rollouts.episode].tolist()
        rows_of: dict[int, list[int]] = {}
        for row, group in enumerate(group_of):
            rows_of.setdefault(group, []).append(row)
        groups = list(rows_of.values())
        teaches = _teaches(rollouts, advantage)
        idle = {g for g, rows in enumerate(groups) if self.skip and not any(teaches[row] for row in rows)}
        totals.left_out = sum(len(groups[g]) for g in idle) / len(group_of)
        updates = min(self.parts, len(groups))  # of an epoch
        for number, chosen in enumerate(minibatches(len(groups), self.parts, self.epochs, key), start=1):
            rows = [row for g in chosen for row in groups[g]]
            weight = dict(zip(rows, self.weigh(rollouts.mask[rows]), strict=True))
            self._minibatch(
                [groups[g] for g in chosen if g not in idle], weight, decisions, rollouts, advantage, totals
            )
            if number % updates == 0:
                totals.end_epoch()
                if self.target_kl is not None and totals.kl > self.target_kl:
                    break
        return totals

    def _minibatch(
        self, groups: list[list[int]], weight: dict[int, Tensor], decisions, rollouts: Rollouts, advantage: Tensor,
        totals: UpdateStats,
    ):  # fmt: skip
        """One optimizer step, its groups forwarded `micro` at a time. `weight` is of all its rows, left out or not.

        Of several processes each forwards the groups that are its own.
        """
        rows = [row for group in groups for row in group]
        owned: list[list[list[int]]] = [[] for _ in range(self.shared.world.size)]
        for i, group in enumerate(groups):
            owned[self.shared.world.owner(decisions[group[0]], i)].append(group)
        found = None
        while found is None:
            found = self._gradients(owned, weight, decisions, rollouts, advantage)
        with timed(self.policy, "optimizer"):
            found = MicrobatchStats(*self.shared.sum_numbers(astuple(found)))
        if found.bad:
            return self._skip(rows, rollouts, totals)
        if len(rows) < len(weight):
            self._fill_gradients()
        with timed(self.policy, "optimizer"):
            self.shared.add()
            norm = self.clip()
        if not torch.isfinite(norm):
            return self._skip(rows, rollouts, totals)
        with timed(self.policy, "optimizer"):
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)  # a rollout, which follows, needs the memory
        totals.count(found, float(norm), float(rollouts.mask[rows].sum()) if rows else None)

    def _gradients(
        self, owned: list[list[list[int]]], weight: dict[int, Tensor], decisions, rollouts, advantage
    ) -> MicrobatchStats | None:
        """Those of this process's groups; None: memory did not suffice, and there are fewer in a forward from now on.

        owned: each process's groups.

        Raises:
            UserError: there were fewer already, or there cannot be.
        """
        self.optimizer.zero_grad(set_to_none=True)
        parts, found = self.shared.share(owned, self.micro), MicrobatchStats()
        try:
            for part in parts:
                if part and not found.bad:
                    rows = [row for group in part for row in group]
                    self._forward(rows, weight, decisions, rollouts, advantage, found)
                else:
                    self.shared.idle()
            return found
        except Exception as error:
            if not oom.is_it(error):
                raise
        self.micro, self.spared = oom.fewer(max(map(len, parts)), self.spared, self.whole), True
        self.optimizer.zero_grad(set_to_none=True)
        oom.make_room(self.policy)
        return None

    def _forward(self, part: list[int], weight, decisions, rollouts, advantage, found: MicrobatchStats) -> None:
        """Adds some rows' gradients, and to `found` what to say of them, or that the objective is not finite."""
        now = self.policy.evaluate([decisions[row] for row in part])
        batch = _slice(part, now, rollouts, advantage)
        weights = torch.stack([weight[row] for row in part])[:, : now.mask.shape[1]].to(now.mask.device)
        objective = (sum(term(now, batch) for term in self.terms) * weights).sum()
        with timed(self.policy, "backward"):
            self.backward(objective)  # whatever it is: other processes may wait for this pass
        if torch.isfinite(objective):
            found.add(objective.item(), now, batch, self.clip_range)
        else:
            found.bad += 1

    def _fill_gradients(self) -> None:
        """Zeros where there is none: momentum and weight decay move a parameter only if it has a gradient."""
        for settings in self.optimizer.param_groups:
            for parameter in settings["params"]:
                if parameter.grad is None and parameter.requires_grad:
                    parameter.grad = torch.zeros_like(parameter)

    def _skip(self, rows: list[int], rollouts: Rollouts, totals: UpdateStats) -> None:
        """A non-finite loss or gradient moves nothing; it is counted with the samples it came from."""
        self.optimizer.zero_grad(set_to_none=True)
        totals.skipped += 1
        totals.skipped_ids += sorted({rollouts.sample_ids[int(rollouts.episode[row])] for row in rows})


def _teaches(rollouts: Rollouts, advantage: Tensor) -> list[bool]:
    """Which decisions have anything to learn from: an advantage, or that they are shown."""
    teaches = ((advantage != 0) & rollouts.mask).any(1)
    return (
        teaches if rollouts.is_demonstration is None else teaches | rollouts.is_demonstration[rollouts.episode]
    ).tolist()


def _slice(rows: list[int], now: Evaluation, rollouts: Rollouts, advantage: Tensor) -> Batch:
    """The rows' columns, cut to the evaluation's length and put beside it."""
    length, device = now.mask.shape[1], now.mask.device
    reference, teacher = (
        None if beside is None else beside[rows, :length].to(device)
        for beside in (rollouts.reference, rollouts.teacher)
    )  # fmt: skip
    episode = rollouts.episode[rows]
    return Batch(
        advantage[rows, :length].to(device), rollouts.logprobs[rows, :length].to(device),
        now.mask & rollouts.mask[rows, :length].to(device), reference,
        group=rollouts.group[episode].to(device), episode=episode.to(device), teacher=teacher,
        is_demonstration=None if rollouts.is_demonstration is None else rollouts.is_demonstration[episode].to(device),
        is_correct=rollouts.is_correct[episode].to(device),
    )  # fmt: skip
