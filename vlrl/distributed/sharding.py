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

from vlrl.distributed.world import Replicated, World, chunks, on_cpu
from vlrl.policies.generation import has_adapter
from vlrl.policies.weights import nothing, split

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


# Weights, gradients and optimizer in parts, one a process, while a policy learns (torch's FSDP2).
#
# Between updates the weights are whole in every process, so that all that acts and scores does so by itself, for as
# many episodes and passes as it has. In an update a layer's weights are gathered when it is passed through and its
# gradients summed when they are there: there, all processes make equally many passes.


class Sharded:
    """The parameters that train, of which each process holds a part: but for the tower's, which are whole."""

    in_parts = True

    def __init__(self, world: World, policy: Any, saved: Path | None):
        if saved:
            policy.load_weights(saved)  # which it can while they are whole
        self.world, self.policy = world, policy
        self._modules = split(policy, world.size)
        self.part()  # from here on an optimizer may ask for the parameters
        self._learns = [p for p in policy.model.parameters() if p.requires_grad]
        self._whole = Replicated(world, [p for p in self._learns if not isinstance(p, DTensor)])

    @contextmanager
    def learning(self) -> Iterator[None]:
        """In parts while inside. Not gathered after an error, which the others, who would take part, have not met."""
        self.part()
        yield
        self.gather()

    def part(self) -> None:
        for module in self._modules:
            module.set_reshard_after_forward(module is not self.policy.scorer, recurse=False)
            module.reshard()

    def gather(self) -> None:
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
        nothing(self.policy).backward()

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

    def weights(self) -> dict[str, Tensor] | None:
        """The model's weights as one process has them, on the CPU; None where this process does not write them."""
        self.part()
        held = self.policy.model.state_dict(keep_vars=True)
        if has_adapter(self.policy.model):
            held = {name: value for name, value in held.items() if "lora_" in name}
        whole = {value: gathered(value.detach(), self.world.is_rank_zero) for value in held.values()}  # tied ones once
        values = {name: whole[value] for name, value in held.items()}
        self.gather()
        return values if self.world.is_rank_zero else None

    def state(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """The optimizer's state as one process has it; not whole where this process does not write it."""
        return gathered(optimizer.state_dict(), self.world.is_rank_zero)

    def restore(self, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
        """Takes this process's part of what `state` gave, of any number of processes."""
        self._whole.restore(optimizer, state)
        for parameter, values in optimizer.state.items():
            if isinstance(parameter, DTensor):
                for name, value in values.items():
                    if value.shape == parameter.shape:
                        values[name] = distribute_tensor(
                            value, parameter.device_mesh, parameter.placements, src_data_rank=None
                        )


def local(value: Tensor) -> Tensor:
    """This process's part."""
    return value.to_local() if isinstance(value, DTensor) else value


def gathered(value: Any, keep: bool) -> Any:
    """A nested state with every part made whole, one after the other, on the CPU. keep: else it is let go of."""
    if isinstance(value, DTensor):
        whole = value.full_tensor()
        return whole.cpu() if keep else None
    if isinstance(value, dict):
        return {name: gathered(each, keep) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [gathered(each, keep) for each in value]
    return value
