"""Weights of a policy: what is learned, shards, low-rank spectra."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from vlrl.policies.generation import bare
from vlrl.policies.prefix_sharing import Packed
from vlrl.policies.processor import CODECS
from vlrl.types import UserError

# The weights of a model that train: to remember them, and to put others in their place for a while.


def learned(model: nn.Module) -> dict[str, Tensor]:
    """Copies of the parameters that train, by name, where they lie."""
    return {name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad}


@torch.no_grad()
def put(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Writes values into the parameters of their names."""
    named = dict(model.named_parameters())
    for name, value in weights.items():
        named[name].copy_(value)


@contextmanager
def swapped(model: nn.Module, weights: Mapping[str, Tensor]) -> Iterator[None]:
    """The model with other values in the parameters that train, while inside."""
    own = learned(model)
    put(model, weights)
    try:
        yield
    finally:
        put(model, own)


def acts(adapted: nn.Module) -> bool:
    """Whether any low-rank adapter of a model changes what it computes: a new one's factor B is 0."""
    return any(bool(p.any()) for name, p in adapted.named_parameters() if "lora_B" in name)


# A vision-language model's language weights in parts over processes: torch's FSDP2, as the trainer uses it.
#
# The tower stays whole: only prompts with pictures go through it, and a pass that some processes make and others do not
# would never end. It has 0.7 of 3 to 72 billion parameters, and mostly it is frozen.


def split(policy: Any, processes: int) -> Sequence[FSDPModule]:
    """Leaves this process a part of the weights; the modules that can gather and part with the rest, inner ones first.

    Layers are gathered one at a time, the embeddings and the head for a whole pass. Passes are made in `policy.dtype`,
    gradients summed in float32.

    Raises:
        UserError: the model is of a family whose layers are not known here.
    """
    base: Any = bare(policy.model)
    if base.config.model_type not in CODECS:
        raise UserError(
            f"accelerate launch: FSDP parts models of {' and '.join(CODECS)}, not {base.config.model_type}: use "
            "--multi_gpu, with policy.lora where memory is short"
        )
    mesh = init_device_mesh(policy.device.type, (processes,))
    kinds = MixedPrecisionPolicy(policy.autocast, torch.float32, cast_forward_inputs=False)
    tower = set(base.model.visual.parameters())
    parts = (*base.model.language_model.layers, policy.scorer)
    for module in parts:
        fully_shard(module, mesh=mesh, mp_policy=kinds, ignored_params=tower)
    for module in parts:  # weights of all processes' units sum to 1: gradients are added, not averaged
        module.set_gradient_divide_factor(1.0)
        module.set_force_sum_reduction_for_comms(True)  # gloo knows no other sum
    # By itself FSDP2 gathers ahead what a forward pass came through before, of rollouts too, which are not alike here.
    for before, layer in zip((parts[0], *parts), parts[:-1], strict=False):
        layer.set_modules_to_backward_prefetch([before])
    policy.one_pass = True
    with torch.no_grad():
        nothing(policy)  # the first pass decides which module is the outermost
    return parts


def nothing(policy: Any) -> torch.Tensor:
    """A pass through all of the language model, of one token; its gradient is 0."""
    empty = torch.zeros(1, 1, dtype=torch.int64)
    place, target = torch.tensor([0]), torch.tensor([policy.codec.stop_ids[0]])
    packed = Packed(empty, empty.int(), empty.repeat(3, 1, 1), None, None, None, place, target)
    with policy.precision():
        logprobs, _ = policy.scorer(packed.to(policy.device))
    return 0 * logprobs.sum()


# Low-rank adapters by their singular values alone: what gradient-free training changes.


class Spectrum:
    """The singular values of every factor A and B of a model's adapters, which may be set; directions stay.

    `B = U_B S_B V_B^T`, `A = U_A S_A V_A^T`, each by itself (ESSA, arXiv 2507.04453). A factor of zeros, as B is in an
    adapter that has not been trained, gets directions at random: U_B has orthonormal columns, V_B is the identity.
    """

    def __init__(self, model: nn.Module, seed: int):
        self.factors = {n: p for n, p in model.named_parameters() if "lora_A." in n or "lora_B." in n}
        generator = torch.Generator().manual_seed(seed)
        decompositions = [decomposed(factor, generator) for factor in self.factors.values()]
        self.sides = {n: (u, v) for n, (u, _, v) in zip(self.factors, decompositions, strict=True)}
        self.start = (
            torch.cat([values for _, values, _ in decompositions]).double().numpy() if decompositions else np.zeros(0)
        )

    @torch.no_grad()
    def become(self, values: np.ndarray) -> None:
        """Sets all singular values, float64 [n], in the order of `start`; they may be negative."""
        sizes = [len(v) for _, v in self.sides.values()]
        parts = torch.from_numpy(values).float().split(sizes)
        for (name, (u, v)), part in zip(self.sides.items(), parts, strict=True):
            self.factors[name].copy_((u * part) @ v)

    def state_dict(self) -> dict[str, Any]:
        return {name: {"u": u, "v": v} for name, (u, v) in self.sides.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.sides = {name: (part["u"], part["v"]) for name, part in state.items()}


def decomposed(factor: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """U [m, r], singular values [r] and V^T [r, n] of a factor [m, n], float32 on the CPU; r is the smaller side."""
    matrix = factor.detach().float().cpu()
    if matrix.any():
        return torch.linalg.svd(matrix, full_matrices=False)
    m, n = matrix.shape
    directions = torch.linalg.qr(torch.randn(max(m, n), min(m, n), generator=generator))[0]
    identity = torch.eye(min(m, n))
    return (directions, torch.zeros(n), identity) if m >= n else (identity, torch.zeros(m), directions.T)
