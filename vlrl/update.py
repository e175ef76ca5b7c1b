"""One step's gradient updates, and the optimizers that take them.

Minibatches are cut at group borders, every unit has one weight, and what is not finite is skipped.

A group is never split, not even over micro-batches: some losses (`reg_grpo`) compare its members with each other.
"""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from vlrl import methods
from vlrl.batch import name_candidates
from vlrl.distributed.world import (
    ALONE,
    Replicated,
    World,
    get_world,
    in_parts,
    make_neighbours,
    optimizer_in_parts,
    sequence_size,
    stays_in_parts,
)
from vlrl.methods import BoundFunction, clip_fraction, log_ratio
from vlrl.performance.memory import UPDATE_REMEDIES, is_out_of_memory, make_room
from vlrl.performance.profiling import timed
from vlrl.types import Batch, Decision, Evaluation, Policy, Rollouts, UserError

if TYPE_CHECKING:
    from vlrl.config import Config, TrainSection

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
        self.spared = self.shared.joint  # whether memory has not sufficed once; there, others would wait for a pass

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
        stats = None
        while stats is None:
            stats = self._gradients(owned, weight, decisions, rollouts, advantage)
        with timed(self.policy, "optimizer"):
            stats = MicrobatchStats(*self.shared.sum_numbers(astuple(stats)))
        if stats.bad:
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
        totals.count(stats, float(norm), float(rollouts.mask[rows].sum()) if rows else None)

    def _gradients(
        self, owned: list[list[list[int]]], weight: dict[int, Tensor], decisions, rollouts, advantage
    ) -> MicrobatchStats | None:
        """Those of this process's groups; None: memory did not suffice, and there are fewer in a forward from now on.

        owned: each process's groups.

        Raises:
            UserError: there were fewer already, or there cannot be.
        """
        self.optimizer.zero_grad(set_to_none=True)
        passes, stats = self.shared.share(owned, self.micro), MicrobatchStats()
        try:
            for rank, part in passes:
                if rank != self.shared.world.rank:
                    self.shared.sequences.follow(rank)
                elif part and not stats.bad:
                    rows = [row for group in part for row in group]
                    self._forward(rows, weight, decisions, rollouts, advantage, stats)
                else:
                    self.shared.idle()
            return stats
        except Exception as error:
            if not is_out_of_memory(error):
                raise
        self.micro, self.spared = _halve_forward(max(len(part) for _, part in passes), self.spared, self.whole), True
        self.optimizer.zero_grad(set_to_none=True)
        make_room(self.policy)
        return None

    def _forward(self, part: list[int], weight, decisions, rollouts, advantage, found: MicrobatchStats) -> None:
        """Adds some rows' gradients, and to `found` what to say of them, or that the objective is not finite."""
        subset = [decisions[row] for row in part]
        if rollouts.candidates is not None:
            subset = name_candidates(subset, rollouts.candidates[part])
        now = self.policy.evaluate(subset)
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


def _halve_forward(size: int, again: bool, whole: bool) -> int:
    """Prompts in one forward of the update, where memory does not suffice for `size`.

    Args:
        again: there are fewer already. whole: the losses compare all of them.

    Raises:
        UserError: there cannot be fewer.
    """
    if again or whole or size < 2:
        why = "; its losses compare all of them" if whole and size > 1 else ""
        raise UserError(
            f"out of memory in the update with {size} prompts in one forward{why}: {UPDATE_REMEDIES}; "
            "`vlrl plan` says what each takes. The newest checkpoint is good"
        )
    print(
        f"\nvlrl: out of memory in the update with {size} prompts in one forward: on with {(size + 1) // 2}; "
        f"train.micro_batch_size={(size + 1) // 2} takes less from the start",
        file=sys.stderr,
    )
    return (size + 1) // 2


def _teaches(rollouts: Rollouts, advantage: Tensor) -> list[bool]:
    """Which decisions have anything to learn from: an advantage, or that they are shown."""
    teaches = ((advantage != 0) & rollouts.mask).any(1)
    return (
        teaches if rollouts.is_demonstration is None else teaches | rollouts.is_demonstration[rollouts.episode]
    ).tolist()


def _slice(rows: list[int], now: Evaluation, rollouts: Rollouts, advantage: Tensor) -> Batch:
    """The rows' columns, cut to the evaluation's length and put beside it."""
    length, device = now.mask.shape[1], now.mask.device
    reference, teacher, teacher_law = (
        None if beside is None else beside[rows, :length].to(device)
        for beside in (rollouts.reference, rollouts.teacher, rollouts.teacher_candidates)
    )
    episode = rollouts.episode[rows]
    return Batch(
        advantage[rows, :length].to(device), rollouts.logprobs[rows, :length].to(device),
        now.mask & rollouts.mask[rows, :length].to(device), reference,
        group=rollouts.group[episode].to(device), episode=episode.to(device), teacher=teacher,
        teacher_candidates=teacher_law,
        is_demonstration=None if rollouts.is_demonstration is None else rollouts.is_demonstration[episode].to(device),
        is_correct=rollouts.is_correct[episode].to(device),
    )  # fmt: skip


# Optimizers of a policy: AdamW, with its state in 8 bits or not, or Muon for the matrices with AdamW for the rest; of
# weights in bfloat16 (`policy.weights_dtype`) with rounding at random, or with float32 copies.

Kind = Literal["adamw", "muon", "adamw_8bit", "paged_adamw_8bit"]


class Together(torch.optim.Optimizer):
    """Several optimizers over disjoint parameters as one: one `step`, one state, one list of groups."""

    def __init__(self, parts: Sequence[torch.optim.Optimizer]):
        self.parts = list(parts)
        # The groups are the parts' own dictionaries, so that a changed learning rate reaches its optimizer.
        super().__init__([group for part in self.parts for group in part.param_groups], {})

    def step(self, closure: Callable | None = None) -> None:
        for part in self.parts:
            part.step()

    def state_dict(self) -> dict[str, Any]:
        return {"parts": [part.state_dict() for part in self.parts]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for part, saved in zip(self.parts, state["parts"], strict=True):
            part.load_state_dict(saved)
        self.param_groups = [group for part in self.parts for group in part.param_groups]


class Float32Muon(torch.optim.Muon):
    """torch's Muon, on CPUs: few of them multiply in bfloat16, and the others take ten times as long to emulate it."""

    @torch.no_grad()
    def step(self, closure: Callable | None = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._move(parameter, group)

    def _move(self, parameter: nn.Parameter, group: dict[str, Any]) -> None:
        gradient, state = parameter.grad, self.state[parameter]
        if not state:
            state["momentum_buffer"] = torch.zeros_like(gradient)
        momentum = state["momentum_buffer"].lerp_(gradient, 1 - group["momentum"])
        if group["nesterov"]:
            momentum = gradient.lerp(momentum, group["momentum"])
        wide = momentum if momentum.shape[0] <= momentum.shape[1] else momentum.T
        matrix = wide / wide.norm().clamp(min=group["eps"])
        a, b, c = group["ns_coefficients"]
        for _ in range(group["ns_steps"]):
            gram = matrix @ matrix.T
            matrix = torch.addmm(matrix, torch.addmm(gram, gram, gram, beta=b, alpha=c), matrix, beta=a)
        parameter.mul_(1 - group["lr"] * group["weight_decay"])
        rate = 0.2 * group["lr"] * max(matrix.shape) ** 0.5  # `match_rms_adamw`
        parameter.add_(matrix if wide is momentum else matrix.T, alpha=-rate)


class Restorable(torch.optim.Optimizer):
    """An optimizer of bitsandbytes that goes on from a checkpoint as it was."""

    def __init__(self, inner: Any):
        self.inner = inner
        super().__init__(inner.param_groups, {})

    def step(self, closure: Callable | None = None) -> None:
        self.inner.step()

    def state_dict(self) -> dict[str, Any]:
        return _clone_tables(self.inner.state_dict())

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.inner.load_state_dict(state)
        self.param_groups = self.inner.param_groups
        if self.inner.is_paged:
            for parameter, values in self.inner.state.items():
                for name in ("state1", "state2"):  # loaded into memory that cannot be paged out
                    buffer = self.inner.get_state_buffer(parameter, dtype=values[name].dtype)
                    values[name] = buffer.copy_(values[name])


def round_stochastic(x: Tensor, noise: Tensor) -> Tensor:
    """bfloat16 of float32 numbers, up or down with the probabilities that make the mean exact.

    noise: int32 like x, uniform on 0 to 65535. (Zamirai et al., arXiv 2010.06192; numbers that are not finite stay.)
    """
    bits = (x.view(torch.int32) + noise).bitwise_and_(-65536)  # the upper half is a bfloat16; towards 0 behind the sum
    return torch.where(x.isfinite(), bits.view(torch.float32), x).to(torch.bfloat16)


class StochasticAdamW(torch.optim.Optimizer):
    """AdamW of bfloat16 weights: computed in float32, one tensor at a time, and rounded at random.

    Rounded to the nearest, an update below half a spacing (1/256 of the weight) would never move it. Every process
    draws the same numbers, and a resumed run those that it would have drawn.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], *, lr: float, betas: tuple[float, float],
                 weight_decay: float, eps: float = 1e-8):  # fmt: skip
        super().__init__(parameters, {"lr": lr, "betas": betas, "weight_decay": weight_decay, "eps": eps})
        self.generator = torch.Generator(parameters[0].device).manual_seed(0)

    @torch.no_grad()
    def step(self, closure: Callable | None = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, group)

    def _update(self, parameter: nn.Parameter, group: dict[str, Any]) -> None:
        state, (beta1, beta2) = self.state[parameter], group["betas"]
        if not state:
            zeros = torch.zeros_like(parameter, dtype=torch.float32)
            state |= {"step": torch.tensor(0.0), "exp_avg": zeros, "exp_avg_sq": zeros.clone()}
        state["step"] += 1
        step, grad = int(state["step"]), parameter.grad.float()
        state["exp_avg"].lerp_(grad, 1 - beta1)
        state["exp_avg_sq"].mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
        scale = (state["exp_avg_sq"].sqrt() / (1 - beta2**step) ** 0.5).add_(group["eps"])
        new = parameter.float().mul_(1 - group["lr"] * group["weight_decay"])
        new.addcdiv_(state["exp_avg"], scale, value=-group["lr"] / (1 - beta1**step))
        noise = torch.randint(
            65536, new.shape, generator=self.generator, device=new.device, dtype=torch.int32
        )  # fmt: skip
        parameter.copy_(round_stochastic(new, noise) if parameter.dtype == torch.bfloat16 else new)

    def state_dict(self) -> dict[str, Any]:
        return {"optimizer": super().state_dict(), "generator": self.generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        kept = {i: each.copy() for i, each in state["optimizer"]["state"].items()}
        super().load_state_dict(state["optimizer"])
        for i, parameter in enumerate(p for group in self.param_groups for p in group["params"]):
            if i in kept:  # torch casts a state to its parameter's type
                self.state[parameter] = {n: v.to(parameter.device) if n != "step" else v for n, v in kept[i].items()}
        self.generator.set_state(state["generator"])


class MasterWeights(torch.optim.Optimizer):
    """Any optimizer on float32 copies of bfloat16 weights, which become the copies' nearest."""

    def __init__(self, named: Sequence[tuple[str, nn.Parameter]], build: Callable[..., torch.optim.Optimizer]):
        self.pairs = [(p, nn.Parameter(p.detach().float())) for _, p in named]
        self.inner = build([(name, copy) for (name, _), (_, copy) in zip(named, self.pairs, strict=True)])
        super().__init__(self.inner.param_groups, {})

    @torch.no_grad()
    def step(self, closure: Callable | None = None) -> None:
        for parameter, copy in self.pairs:
            copy.grad = None if parameter.grad is None else parameter.grad.float()
        self.inner.step()
        self.inner.zero_grad(set_to_none=True)
        for parameter, copy in self.pairs:
            parameter.copy_(copy)

    def zero_grad(self, set_to_none: bool = True) -> None:
        for parameter, _ in self.pairs:
            parameter.grad = None

    def state_dict(self) -> dict[str, Any]:
        return {"optimizer": self.inner.state_dict(), "weights": [copy.detach() for _, copy in self.pairs]}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.inner.load_state_dict(state["optimizer"])
        self.param_groups = self.inner.param_groups
        for (_, copy), saved in zip(self.pairs, state["weights"], strict=True):
            copy.copy_(saved)


def optimizers_build(
    model: nn.Module, kind: Kind, *, lr: float, betas: tuple[float, float] = (0.9, 0.999), weight_decay: float = 0.0,
    master_weights: bool = False,
) -> torch.optim.Optimizer:  # fmt: skip
    """An optimizer over the parameters that require gradients.

    Args:
        kind: `adamw`; `muon` (github.com/KellerJordan/Muon, torch.optim.Muon): orthogonalised momentum for hidden
            matrices at updates of AdamW's size, AdamW for embeddings, norms and biases: it needs about a third of
            AdamW's steps where a model is trained whole; LoRA's factors are such matrices, each orthogonalised by
            itself; `adamw_8bit` (arXiv 2110.02861, bitsandbytes): AdamW with 2
            bytes of state per parameter instead of 8, embeddings and tensors below 4096 numbers in full, as there;
            `paged_adamw_8bit`: the same in memory that a GPU which runs full moves to the host.
        master_weights: of bfloat16 weights float32 copies are kept and updated; else only AdamW takes them, and rounds
            at random.

    Raises:
        UserError: bitsandbytes is not installed; bfloat16 weights without copies and not AdamW.
    """
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    build = functools.partial(_build, kind=kind, lr=lr, betas=betas, weight_decay=weight_decay)
    if all(p.dtype != torch.bfloat16 for _, p in named):
        return build(named)
    if master_weights:
        return MasterWeights(named, build)
    if kind != "adamw":
        raise UserError(
            f"train.optimizer: {kind} does not round bfloat16 weights at random: adamw does, or keep float32 copies "
            "(train.master_weights=true)"
        )
    return StochasticAdamW([p for _, p in named], lr=lr, betas=betas, weight_decay=weight_decay)


def _build(
    named: Sequence[tuple[str, nn.Parameter]], *, kind: Kind, lr: float, betas: tuple[float, float], weight_decay: float
) -> torch.optim.Optimizer:
    """Of float32 parameters."""
    if kind == "adamw":
        return _adamw([p for _, p in named], lr=lr, betas=betas, weight_decay=weight_decay)
    if kind != "muon":
        return _eight_bit(named, kind, lr=lr, betas=betas, weight_decay=weight_decay)
    matrices = [p for name, p in named if p.ndim == 2 and "embed" not in name]
    rest = [p for name, p in named if p.ndim != 2 or "embed" in name]
    parts: list[torch.optim.Optimizer] = []
    if matrices:
        muon = Float32Muon if all(p.device.type == "cpu" for p in matrices) else torch.optim.Muon
        parts.append(muon(matrices, lr=lr, weight_decay=weight_decay, adjust_lr_fn="match_rms_adamw"))
    if rest:  # with LoRA all that is trained are matrices
        parts.append(_adamw(rest, lr=lr, betas=betas, weight_decay=0.0))
    return Together(parts)


def _adamw(parameters: Sequence[nn.Parameter], **options: Any) -> torch.optim.AdamW:
    """torch's own, in one pass over each tensor where the device has a kernel for that."""
    in_parts = any(hasattr(p, "placements") for p in parameters)  # of several processes: no one kernel knows them all
    fused = all(p.device.type in ("cpu", "cuda") for p in parameters) and not in_parts
    return torch.optim.AdamW(parameters, fused=fused, **options)


def _eight_bit(named: Sequence[tuple[str, nn.Parameter]], kind: Kind, **options: Any) -> Together:
    """AdamW of bitsandbytes, with states of 8 bits but for the embeddings."""
    # Its import warns of kernels for inference, which no optimizer needs.
    logging.getLogger("bitsandbytes.backends").setLevel(logging.ERROR)
    try:
        from bitsandbytes import optim
    except ImportError:
        raise UserError(f"train.optimizer: {kind} needs bitsandbytes: pip install 'vlrl[lowbit]'") from None
    low, full = (optim.AdamW8bit, optim.AdamW) if kind == "adamw_8bit" else (optim.PagedAdamW8bit, optim.PagedAdamW)
    parts = (low, [p for name, p in named if "embed" not in name]), (full, [p for name, p in named if "embed" in name])
    return Together([Restorable(kind_of(params, **options)) for kind_of, params in parts if params])


def _clone_tables(state: Any) -> Any:
    """The state with the tables of 8-bit numbers copied: all parameters share them, which no safetensors file can."""
    if not isinstance(state, dict):
        return state
    return {key: value.clone() if key in ("qmap1", "qmap2") else _clone_tables(value) for key, value in state.items()}


# Supervised fitting: every loop that is no policy update.

WARMUP_STEPS = 20


def linear_schedule(lr: float, steps: int, warmup_steps: int = WARMUP_STEPS) -> Callable[[int], float]:
    """Step from 0 -> its learning rate: linear rise to `lr`, times a linear fall to 0 behind the last step."""
    return lambda step: lr * min(1.0, (step + 1) / warmup_steps) * (1 - step / steps)


def fit_supervised[B](
    optimizer: torch.optim.Optimizer, batches: Iterable[B], loss: Callable[[B], Tensor], *,
    lr: Callable[[int], float] | None = None, first: int = 0, clip: Callable[[], object] | None = None,
) -> list[float]:  # fmt: skip
    """One optimizer step a batch -> the loss of each, before its step.

    Args:
        loss: of a batch, a scalar.
        lr: step -> learning rate; None: the optimizer's own.
        first: number of the first step.
        clip: of the gradients, before each step.
    """
    losses = []
    for step, batch in enumerate(batches, start=first):
        for group in optimizer.param_groups if lr else ():
            group["lr"] = lr(step)
        value = loss(batch)
        optimizer.zero_grad()
        value.backward()
        if clip:
            clip()
        optimizer.step()
        losses.append(value.item())
    return losses


# What a configuration makes of the update: optimizer, loss terms, learning rate.


def updater(config: Config, policy: Any, saved: Path | None = None) -> Updater:
    """The run's updater, with its optimizer. saved: the checkpoint that the run goes on from."""
    from vlrl import registry  # pydantic, which bench/speed.py gpu does without

    train = config.train
    shared, optimizer = _shared(train, policy, saved)
    terms = [registry.make("losses", c, f"losses.{i}") for i, c in enumerate(config.losses)]
    options = [term.options for term in terms if isinstance(term, BoundFunction)]
    clip_range = next(((o["low"], o["high"]) for o in options if "high" in o), (0.2, 0.2))
    return Updater(
        policy, optimizer, terms, registry.make("loss_aggregation", config.loss_aggregation, "loss_aggregation"),
        backward=torch.Tensor.backward, clip=functools.partial(shared.clip, train.max_grad_norm),
        parts=train.num_minibatches, epochs=train.update_epochs, micro=train.micro_size, clip_range=clip_range,
        skip=train.skip_zero_advantage, target_kl=train.target_kl, shared=shared,
    )  # fmt: skip


def passes_in_parts(policy: Any) -> Callable[..., Any] | None:
    """What makes the passes of a policy whose weights lie in parts between updates too; None: of any other."""
    if not in_parts() or not stays_in_parts(policy):
        return None
    from vlrl.distributed.sharding import make_passes

    return make_passes


def _shared(train: TrainSection, policy: Any, saved: Path | None) -> tuple[Any, torch.optim.Optimizer]:
    """What processes share of updates, and the optimizer that takes their sum."""
    world, size = get_world(), sequence_size()
    shared, optimizer = _share_weights(train, policy, saved, world)
    if size > 1:
        from vlrl.distributed.sharding import SlicedSequences

        shared.sequences = SlicedSequences(policy, make_neighbours(world, size))
    return shared, optimizer


def _share_weights(
    train: TrainSection, policy: Any, saved: Path | None, world: World
) -> tuple[Any, torch.optim.Optimizer]:
    """What adds up gradients over all processes, and the optimizer that takes them."""
    build = functools.partial(
        optimizers_build, policy.model, train.optimizer,
        lr=train.lr, betas=tuple(train.betas), weight_decay=train.weight_decay, master_weights=train.master_weights,
    )  # fmt: skip
    if (in_parts() or optimizer_in_parts()) and any(p.dtype == torch.bfloat16 for p in _trained(policy)):
        raise UserError("policy.weights_dtype: FSDP and ZeRO keep float32 weights that train: leave it out")
    if in_parts():
        from vlrl.distributed.sharding import Sharded

        shards = Sharded(world, policy, saved)
        with shards.saving():  # the optimizer asks for the parts
            return shards, build()
    if optimizer_in_parts():
        from vlrl.distributed.sharding import Zero

        zero = Zero(world, policy, build(), train.max_grad_norm, saved)
        return zero, zero.optimizer
    return Replicated(world, _trained(policy)), build()


def _trained(policy: Any) -> list[nn.Parameter]:
    return [p for p in policy.model.parameters() if p.requires_grad]


def rate(train: TrainSection, step: int) -> float:
    """The learning rate of a step, from 0: warm-up, then constant or linear to `lr_end`."""
    if step < train.warmup_steps:
        return train.lr * (step + 1) / train.warmup_steps
    if train.lr_end is None:
        return train.lr
    share = (step - train.warmup_steps) / max(1, train.steps - train.warmup_steps)
    return train.lr + (train.lr_end - train.lr) * share
