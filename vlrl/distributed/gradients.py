"""Gradients of all processes as one: summed after a process's last micro-batch, however many it had.

The weights of all units of an optimizer step sum to 1 over all processes (vlrl/algorithms/loss_aggregation.py), so
the sum is what one
process would have found. Nothing else is exchanged while gradients are made: a process with fewer micro-batches, with
none, or without pictures keeps nobody waiting.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vlrl.distributed.world import World

BUCKET = 2**26  # numbers that are sent at a time


class Replicated:
    """The parameters that train, all of them in every process."""

    in_parts = False

    def __init__(self, world: World, parameters: Sequence[nn.Parameter]):
        self.world, self.parameters = world, list(parameters)

    def learning(self) -> AbstractContextManager[None]:
        """Held through an update."""
        return nullcontext()

    def share(self, owned: Sequence[list], most: int | None) -> list[list]:
        """What this process forwards, at most `most` groups at a time. owned: the groups of each process."""
        return chunks(owned[self.world.rank], most)

    def idle(self) -> None:
        """Nobody waits for a process's passes."""

    def sum_numbers(self, numbers: Sequence[float]) -> list[float]:
        """The sums of some numbers over all processes. What has a gradient anywhere gets one here, of zeros."""
        if self.world.size == 1:
            return list(numbers)
        has = [float(p.grad is not None) for p in self.parameters]
        sums = self.world.sum(torch.tensor([*numbers, *has], dtype=torch.float64)).tolist()
        for parameter, count in zip(self.parameters, sums[len(numbers) :], strict=True):
            if count and parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        return sums[: len(numbers)]

    def add(self) -> None:
        """Makes every gradient the sum of all processes'. After `sum_numbers`, so that all have the same ones."""
        if self.world.size == 1:
            return
        for bucket in _buckets([p.grad for p in self.parameters if p.grad is not None]):
            flat = self.world.sum(torch.cat([grad.flatten() for grad in bucket]))
            for grad, part in zip(bucket, flat.split([grad.numel() for grad in bucket]), strict=True):
                grad.copy_(part.view_as(grad))

    def clip(self, most: float) -> Tensor:
        """Scales the gradients down to a norm of `most`; the norm before."""
        return nn.utils.clip_grad_norm_(self.parameters, most)

    def load(self, policy: Any, folder: Path) -> None:
        """Puts a checkpoint's weights into the policy."""
        policy.load_weights(folder)

    def weights(self) -> None:
        """As `Sharded.weights`: the model has them itself."""

    def state(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """The optimizer's state."""
        return optimizer.state_dict()

    def restore(self, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
        """Takes what `state` gave. Whether a step is one kernel is the present optimizer's own affair."""
        ways = [{name: group[name] for name in ("fused",) if name in group} for group in optimizer.param_groups]
        optimizer.load_state_dict(state)
        for group, way in zip(optimizer.param_groups, ways, strict=True):
            group.update(way)


def chunks(groups: list, most: int | None) -> list[list]:
    """The groups in their order, at most so many together."""
    size = most or max(1, len(groups))
    return [groups[start : start + size] for start in range(0, len(groups), size)]


ALONE = Replicated(World(), ())  # of one process: nothing to add


def _buckets(gradients: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Gradients of one type, as many as are sent at a time."""
    bucket: list[Tensor] = []
    for grad in gradients:
        full = sum(each.numel() for each in bucket) + grad.numel() > BUCKET
        if bucket and (full or grad.dtype != bucket[0].dtype):
            yield bucket
            bucket = []
        bucket.append(grad)
    if bucket:
        yield bucket
