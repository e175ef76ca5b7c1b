"""A vision-language model's language weights in parts over processes: torch's FSDP2, as the trainer uses it.

The tower stays whole: only prompts with pictures go through it, and a pass that some processes make and others do not
would never end. It has 0.7 of 3 to 72 billion parameters, and mostly it is frozen.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from vlrl.policies.packing import Packed
from vlrl.policies.scorer import bare


def split(policy: Any, processes: int) -> Sequence[FSDPModule]:
    """Leaves this process a part of the weights; the modules that can gather and part with the rest, inner ones first.

    Layers are gathered one at a time, the embeddings and the head for a whole pass. Passes are made in `policy.dtype`,
    gradients summed in float32.
    """
    base, mesh = bare(policy.model), init_device_mesh(policy.device.type, (processes,))
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
