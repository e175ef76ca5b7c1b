"""What processes share out of a policy's training: the optimizer (DeepSpeed's ZeRO), or the weights too (FSDP2)."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from vlrl.distributed.world import Replicated, World, chunks, get_world, on_cpu
from vlrl.policies.generation import bare
from vlrl.policies.weights import JointPasses, layers_of, local, nothing, read_parts, split, split_scorer

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

    in_parts = True

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

    def share(self, owned: Sequence[list], most: int | None) -> list[list]:
        """As `Replicated.share`, and an empty forward for each that another process has more."""
        counts = [len(chunks(groups, most)) for groups in owned]
        own = self._whole.share(owned, most)
        return own + [[]] * (max(counts) - len(own))

    def idle(self) -> None:
        """A forward and backward pass that learns nothing, for those of the others to end."""
        nothing(self.policy, self.policy.scorer).backward()

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


def _rows_of(parameter: Tensor, values: dict[str, Any]) -> dict[str, Any]:
    """Of a parameter's whole moments this process's part."""
    if not isinstance(parameter, DTensor):
        return values
    place = parameter.device_mesh, parameter.placements
    return {
        name: distribute_tensor(value, *place, src_data_rank=None) if value.shape == parameter.shape else value
        for name, value in values.items()
    }
