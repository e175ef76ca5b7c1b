"""Imitation: batches drawn from groups of examples at fixed shares, and the update that maximises their likelihood."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import torch

from vlrl.learning.examples import Batch, Example
from vlrl.policies.control import ControlPolicy

WARMUP = 20  # steps


def chances(sizes: Mapping[str, int], shares: Mapping[str, float]) -> np.ndarray:
    """The probability [sum of sizes] of each example, its group's share divided among the group.

    The share of a group that has no examples goes to the others in proportion (RLPD draws demonstrations at a fixed
    share: arXiv 2302.02948). All 0 where nothing that has a share has examples.
    """
    total = sum(shares[name] for name, size in sizes.items() if size) or 1.0
    return np.concatenate([np.full(size, shares[name] / total / max(1, size)) for name, size in sizes.items()])


def drawn(
    examples: Sequence[Example], chance: np.ndarray | None, *, steps: int, size: int, rng: np.random.Generator
) -> Iterator[Batch]:
    """`steps` batches, each example drawn with its `chance`; None: all alike."""
    for _ in range(steps):
        chosen = rng.choice(len(examples), size=min(size, len(examples)), p=chance)
        yield Batch(tuple(examples[i] for i in chosen))


def imitate(policy: ControlPolicy, batches: Iterable[Batch], *, steps: int, lr: float) -> dict[str, float]:
    """The update of `vlrl learn`: behaviour cloning of what was recorded, one optimizer step a batch.

    Another update, such as an off-policy one that values actions, has the same form: a policy that is changed in
    place, batches, sizes; what it returns goes into the metrics.

    Args:
        steps: how many batches there are, for the schedule: linear rise, then linear fall to 0.

    Returns:
        loss: nats for each number of a control, the mean of the last 20 steps.
    """
    optimizer = torch.optim.AdamW(policy.model.parameters(), lr=lr, weight_decay=1e-4)
    losses: list[float] = []
    for step, batch in enumerate(batches):
        for setting in optimizer.param_groups:
            setting["lr"] = lr * min(1.0, (step + 1) / WARMUP) * (1 - step / steps)
        mask = batch.mask(policy.shape).to(policy.device)
        logprobs = policy.evaluate(batch.decisions).logprobs
        loss = -(logprobs * mask).sum() / mask.sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    tail = losses[-20:]
    return {"loss": sum(tail) / max(1, len(tail))}
