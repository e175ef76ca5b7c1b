"""What processes share of a policy's training: the optimizer (DeepSpeed's ZeRO), the weights too (FSDP2), sequences."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.functional import pad

from vlrl.distributed.world import SEQUENCE, Replicated, WholeSequences, World, chunks, get_world, on_cpu, take_turns
from vlrl.policies.fused_modules import SequenceSlices
from vlrl.policies.generation import bare
from vlrl.policies.prefix_sharing import MediaFeatures, Packed, embedded, hidden_states, see, through
from vlrl.policies.processor import CODECS
from vlrl.policies.vlm import VLM
from vlrl.policies.weights import JointPasses, layers_of, local, nothing, read_parts, split, split_scorer
from vlrl.types import UserError

# Whole weights and gradients in every process, the optimizer in parts: DeepSpeed's ZeRO of stage 1 (arXiv 1910.02054).
#
# Gradients are made as without it. DeepSpeed sums them once an optimizer step, when each process has made its last;
# each process then moves its part of the weights, with the moments that it alone holds, and tells it to the others.

MOMENTS = ("exp_avg", "exp_avg_sq")


class Zero(Replicated):
    """The parameters that train, of whose optimizer each process has a part.

    Args:
        optimizer: AdamW over all of them.
        clip: the norm of gradients that an update has at most.
        saved: the checkpoint that the run goes on from.
    """

    def __init__(self, world: World, policy: Any, optimizer: torch.optim.Optimizer, clip: float, saved: Path | None):
        if saved:
            policy.load_weights(saved)  # DeepSpeed copies them
        super().__init__(world, [p for p in policy.model.parameters() if p.requires_grad])
        tower = {parameter for name, parameter in policy.model.named_parameters() if ".visual." in name}
        groups = [p for p in self.parameters if p not in tower], [p for p in self.parameters if p in tower]
        self._groups = [group for group in groups if group]
        options = {name: optimizer.defaults[name] for name in ("lr", "betas", "eps", "weight_decay")}
        inner = Resting([{"params": group, "rests": False} for group in self._groups], **options)
        self._engine = _engine(self.parameters, inner, clip)
        self._steps = self._engine.optimizer
        self.optimizer = InParts(optimizer, self._steps)
        self._taken: dict[Tensor, Tensor] = {}  # how many steps a parameter's group has taken, counted by AdamW
        for group, settings in zip(self._groups, inner.param_groups, strict=True):
            (part,) = settings["params"]  # this process's; otherwise its moments are made by a first step
            state = {"step": torch.zeros(())} | {name: torch.zeros_like(part) for name in MOMENTS}
            inner.state[part] = state
            self._taken |= dict.fromkeys(group, state["step"])
        self._steps._lazy_init_hp_params_optimizer_state()

    def add(self) -> None:
        """As `Replicated.add`; each process keeps its own part of the sums."""
        for group, settings in zip(self._groups, self._steps.param_groups, strict=True):
            settings["rests"] = all(parameter.grad is None for parameter in group)
        for parameter in self.parameters:
            if parameter.grad is not None:
                parameter.grad.mul_(self.world.size)  # DeepSpeed takes means
        self._engine.set_gradient_accumulation_boundary(True)
        self._engine.allreduce_gradients()

    def clip(self, most: float) -> Tensor:
        """The norm of all gradients; they are scaled down where they are applied."""
        norm = torch.as_tensor(self._steps.scaled_global_norm())
        if norm >= 0 and torch.isfinite(norm):
            return norm
        self._steps.step()  # moves nothing, and lets go of them
        return torch.tensor(float("nan"))

    def load(self, policy: Any, folder: Path) -> None:
        """Nothing: a checkpoint's weights were read before DeepSpeed copied them."""

    def state(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """The optimizer's state as one process has it."""
        from deepspeed.utils import safe_get_full_optimizer_state

        for parameter in self.parameters:
            if self._taken[parameter] > 0:
                whole = {name: safe_get_full_optimizer_state(parameter, name) for name in MOMENTS}
                if self.world.is_rank_zero:
                    moments = {name: value.cpu() for name, value in whole.items()}
                    optimizer.state[parameter] = {"step": self._taken[parameter].clone()} | moments
        values = optimizer.state_dict()
        optimizer.state.clear()
        return values

    def restore(self, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
        """Takes this process's part of what `state` gave, of any number of processes."""
        from deepspeed.utils import safe_set_full_optimizer_state

        super().restore(optimizer, state)
        for parameter, values in optimizer.state.items():
            self._taken[parameter].copy_(values["step"])
            for name in MOMENTS:
                safe_set_full_optimizer_state(parameter, values[name], name)
        optimizer.state.clear()


class InParts(torch.optim.Optimizer):
    """An optimizer over all parameters to look at, of which DeepSpeed steps this process's part."""

    def __init__(self, whole: torch.optim.Optimizer, steps: Any):
        self.steps = steps
        super().__init__(whole.param_groups, whole.defaults)

    def step(self, closure: Callable | None = None) -> Any:
        for settings in self.steps.param_groups:
            settings["lr"] = self.param_groups[0]["lr"]
        return self.steps.step()


class Resting(torch.optim.AdamW):
    """AdamW that leaves alone a group of which no process has a gradient, as it does a parameter without."""

    def step(self, closure: Callable | None = None) -> Any:
        rests = any(group["rests"] for group in self.param_groups)  # DeepSpeed shows it one at a time
        return None if rests else super().step()


def _engine(parameters: list[nn.Parameter], optimizer: torch.optim.Optimizer, clip: float) -> Any:
    """DeepSpeed's engine of some parameters, of which nothing but the optimizer is used."""
    import deepspeed

    deepspeed.utils.logger.setLevel(logging.ERROR)  # it warns of every optimizer that is not its own
    if on_cpu():  # else it compiles for minutes what makes sums of processes on one machine faster
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    offload = os.environ.get("ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE", "none")
    settings = {
        "train_micro_batch_size_per_gpu": 1, "gradient_clipping": clip, "steps_per_print": 10**9,
        "zero_allow_untested_optimizer": True, "zero_force_ds_cpu_optimizer": False,
        "zero_optimization": {
            "stage": 1, "contiguous_gradients": False, "overlap_comm": False,
            "offload_optimizer": {"device": offload, "pin_memory": offload == "cpu" and not on_cpu()},
        },
    }  # fmt: skip
    engine, *_ = deepspeed.initialize(
        model=nn.ParameterList(parameters), optimizer=optimizer, config=settings, dist_init_required=False
    )
    return engine


# Weights, gradients and optimizer in parts, one a process (torch's FSDP2).
#
# In an update a layer's weights are gathered when it is passed through, and its gradients summed by torch as soon as
# they are there: there, all processes make equally many passes. Between updates it depends on who writes. An engine
# elsewhere: the weights stay in parts, from the file on, and all processes pass together (`JointPasses`). The policy
# itself: they are whole in every process meanwhile, because a token at a time would gather all of them for each.


def make_passes(policy: Any, build: Callable[[], Any]) -> JointPasses:
    """Passes through weights that stay in parts. build: a scorer as the policy's, without values."""
    world, device = get_world(), "cpu" if on_cpu() else "cuda"

    def make() -> Any:
        scorer = build()
        split_scorer(scorer, policy.autocast, device, world.size)
        return scorer

    policy.one_pass = True
    split_scorer(policy.scorer, policy.autocast, device, world.size)
    return JointPasses(policy, world.sum, make, device)


class Sharded:
    """The parameters that train, of which each process holds a part: but for the tower's, which are whole."""

    in_parts = joint = True
    sequences = WholeSequences()

    def __init__(self, world: World, policy: Any, saved: Path | None):
        self.world, self.policy, self.stays = world, policy, policy.passes.in_parts
        if saved and not self.stays:
            policy.load_weights(saved)  # which it can while they are whole
        self._modules = layers_of(policy.scorer) if self.stays else split(policy, world.size)
        self.part()  # from here on an optimizer may ask for the parameters
        if saved and self.stays:
            read_parts(bare(policy.model), saved)
        self._learns = [p for p in policy.model.parameters() if p.requires_grad]
        self._whole = Replicated(world, [p for p in self._learns if not isinstance(p, DTensor)])
        self._settle()

    @contextmanager
    def learning(self) -> Iterator[None]:
        """In parts while inside. Not gathered after an error, which the others, who would take part, have not met."""
        self.part()
        yield
        self._settle()

    @contextmanager
    def saving(self) -> Iterator[None]:
        """In parts while inside."""
        self.part()
        yield
        if not self.stays:
            self._gather()

    def _settle(self) -> None:
        """After a change: whole, or known to the engine."""
        if not self.stays:
            return self._gather()
        self.policy.passes.settle()

    def part(self) -> None:
        for module in self._modules:
            module.set_reshard_after_forward(module is not self.policy.scorer, recurse=False)
            module.reshard()

    def _gather(self) -> None:
        for module in self._modules:
            module.set_reshard_after_forward(False, recurse=False)
            module.unshard()

    def share(self, owned: Sequence[list], most: int | None) -> list[tuple[int, list]]:
        """As `Replicated.share`, and an empty pass for each that other processes have more."""
        size, rank = self.sequences.near.size, self.world.rank
        counts = [len(chunks(groups, most)) for groups in owned]
        longest = max(sum(counts[first : first + size]) for first in range(0, len(counts), size))
        own = take_turns(owned, most, rank, self.sequences.near)
        return own + [(rank - rank % size, [])] * (longest - len(own))

    def idle(self) -> None:
        """A forward and backward pass that learns nothing, for those of the others to end."""
        _learn_nothing(self.policy)

    def sum_numbers(self, numbers: Sequence[float]) -> list[float]:
        """As `Replicated.sum_numbers`."""
        return self._whole.sum_numbers(numbers)

    def add(self) -> None:
        """As `Replicated.add`, of what is whole: the rest is summed as it is found."""
        self._whole.add()

    def clip(self, most: float) -> Tensor:
        """As `Replicated.clip`."""
        grads = [p.grad for p in self._learns if p.grad is not None]
        squares = torch.zeros(2, dtype=torch.float64)
        for grad in grads:
            squares[int(isinstance(grad, DTensor))] += local(grad).double().square().sum().cpu()
        norm = (squares[0] + self.world.sum(squares[1:])[0]).sqrt()
        for grad in grads:
            local(grad).mul_(min(1.0, most / (float(norm) + 1e-6)))
        return norm

    def load(self, policy: Any, folder: Path) -> None:
        """Nothing: a checkpoint's weights were read before they were parted."""

    def state(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """The optimizer's state, of which each process has its part."""
        return optimizer.state_dict()

    def restore(self, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
        """Takes this process's part of what any number of processes saved: rows of files are read that it keeps."""
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        own = {i: _rows_of(parameters[i], values) for i, values in state["state"].items()}
        self._whole.restore(optimizer, state | {"state": own})


def _learn_nothing(policy: Any) -> None:
    """A forward and backward pass of an update, in which others take part, without anything to learn."""
    policy.model.train()  # gradient checkpointing works in this mode only, and makes the same exchanges again
    nothing(policy, policy.scorer).backward()


def _rows_of(parameter: Tensor, values: dict[str, Any]) -> dict[str, Any]:
    """Of a parameter's whole moments this process's part."""
    if not isinstance(parameter, DTensor):
        return values
    place = parameter.device_mesh, parameter.placements
    return {
        name: distribute_tensor(value, *place, src_data_rank=None) if value.shape == parameter.shape else value
        for name, value in values.items()
    }


# A sequence over several processes, where it does not fit one (DeepSpeed-Ulysses, arXiv 2309.14509).
#
# Each process holds a slice of every row, and within attention some heads of all of it: what is kept for the backward
# pass is divided by their number. Neighbours make each other's passes of an update in turn. Whose rows they are packs
# and scores them; the others' loss is 0. So every gradient is a part of one sum, as between processes anywhere.


class SlicedSequences(WholeSequences):
    """Sequences in slices in several processes: of updates, and where weights stay in parts of all passes.

    Raises:
        UserError: the model is of a family whose layers are not known here, or cannot be divided by so many.
    """

    def __init__(self, policy: Any, near: World):
        self.policy, self.near = policy, near
        self._check()
        policy.one_pass, policy.scorer.hidden, policy.passes.make = True, self.find_states, self._make
        self._leader = near.rank  # among the neighbours: whose rows are passed
        self._joins = False  # in passes without gradient

    def _check(self) -> None:
        number = f"{SEQUENCE}={self.near.size}"
        if type(self.policy) is not VLM:
            raise UserError(f"{number}: sequences are shared by language models of {' and '.join(CODECS)} alone")
        base: Any = bare(self.policy.model)
        heads = base.config.get_text_config().num_attention_heads
        if heads % self.near.size:
            raise UserError(f"{number}: the model's {heads} attention heads cannot be shared out evenly: use a divisor")

    def find_states(self, base: Any, packed: Packed, features: MediaFeatures | None) -> Tensor:
        """As `hidden_states`, by all neighbours."""
        if not (torch.is_grad_enabled() or self._joins):
            return hidden_states(base, packed, features)
        none = packed.source[:0]
        sent = replace(packed, source=none, target=none)
        sent = sent if features is None else replace(sent, pixels=None, grid=None)  # which the tower has seen
        rows = self.near.broadcast((sent, features), self._leader)
        if self._leader != self.near.rank:
            packed, features = rows[0].to(base.device), rows[1] and rows[1].to(base.device)
        if features is None and packed.pixels is not None and packed.grid is not None:
            features = see(base, packed.pixels, packed.grid)
        embeds, where = embedded(base, packed, features)
        length, size = embeds.shape[1], -(-embeds.shape[1] // self.near.size)
        slices = SequenceSlices(self.near.link, length)
        missing, own = size * self.near.size - length, slice(size * self.near.rank, size * (self.near.rank + 1))
        row = where.flatten().cumsum(0).view_as(where) - 1  # of each place, among what the tower made
        positions, where, row = (pad(each, (0, missing))[..., own] for each in (packed.positions, where, row))
        deep = [each[row[where]] for each in features.deep] if features else ()
        hidden = through(base, pad(embeds, (0, 0, 0, missing))[:, own], positions, packed.mask, slices, where, deep)
        everybody = slices.exchange(hidden.expand(self.near.size, *hidden.shape))  # [N, R, l, H]
        return everybody.transpose(0, 1).flatten(1, 2)[:, :length]

    def _make[T](self, own: Callable[[], T], empty: Callable[[], None]) -> T:
        """Passes without gradient by all neighbours, each one's in turn; `empty` takes part in another's."""
        self._joins = True
        results: list[Any] = [
            self._pass(rank, own if rank == self.near.rank else empty) for rank in range(self.near.size)
        ]
        self._joins = False
        return results[self.near.rank]

    def _pass(self, leader: int, make: Callable[[], Any]) -> Any:
        """A pass of rows of one of the neighbours."""
        self._leader = leader
        result = make()
        self._leader = self.near.rank
        return result

    def follow(self, rank: int) -> None:
        self._pass(rank % self.near.size, self.idle)

    def idle(self) -> None:
        _learn_nothing(self.policy)
