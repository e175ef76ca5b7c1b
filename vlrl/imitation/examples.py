"""Examples of recorded episodes in batches, and one pass of imitation over them."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from vlrl.imitation.datasets import PERSON, POLICY, DatasetEpisode, DatasetInfo
from vlrl.optim import fit_supervised, linear_schedule
from vlrl.policies.discrete import ControlPolicy, DiscreteShape
from vlrl.policies.flow import FlowPolicy
from vlrl.types import Decision, UserError

DOUBT = 1.0  # seconds before a person takes over in which the policy is not imitated: they are why


@dataclass(frozen=True, eq=False)
class Example:
    """What was shown at a frame, and what was done from there by whoever drove."""

    decision: Decision
    ticks: int  # of the chunk's K, those that were recorded; the rest is padding and not learned from
    episode: DatasetEpisode | None = None  # None: not from a data set
    t: int = 0


@dataclass(frozen=True, eq=False)
class ExampleBatch:
    """What one step of an update sees. An update that values actions finds what came of them in the episodes."""

    examples: tuple[Example, ...]

    @property
    def decisions(self) -> list[Decision]:
        return [example.decision for example in self.examples]

    def mask(self, shape: DiscreteShape) -> Tensor:
        """bool [B, K * A]: the numbers that were recorded."""
        ticks = torch.tensor([example.ticks for example in self.examples])
        return (torch.arange(shape.chunk) < ticks[:, None]).repeat_interleave(len(shape.low), 1)


def examples(policy: ControlPolicy, episode: DatasetEpisode, frames: Sequence[int]) -> Iterator[Example]:
    """The chunks that begin at these frames. They end where the driver changes, and with the episode.

    Raises:
        UserError: the policy was made for another state, other pictures or controls.
    """
    chunk, ends = policy.shape.chunk, _ends(episode.driver)
    for t in frames:
        done = episode.action[t : min(t + chunk, ends[t])]
        padded = np.concatenate([done, np.repeat(done[-1:], chunk - len(done), 0)])
        yield Example(policy.decide(episode.observation_at(t), padded), len(done), episode, t)


def by_person(episode: DatasetEpisode) -> np.ndarray:
    """The frames that a person drove."""
    return np.flatnonzero(episode.driver == PERSON)


def by_policy(episode: DatasetEpisode, fps: float) -> np.ndarray:
    """The frames of a success that the policy drove, without those just before a person took over."""
    person = episode.driver == PERSON
    taken = np.flatnonzero(person & ~np.concatenate([[False], person[:-1]]))
    mine = (episode.driver == POLICY) & episode.won
    for t in taken:
        mine[max(0, t - round(DOUBT * fps)) : t] = False
    return np.flatnonzero(mine)


def check_fit(data: DatasetInfo, shape: DiscreteShape) -> None:
    """UserError, in one line, where a policy of this shape cannot learn from a data set."""
    named = data.action if all(data.action) else shape.controls
    sizes = tuple((width, height) for _, width, height in data.cameras)
    if len(data.action) != len(shape.low) or named != shape.controls:
        theirs = ", ".join(filter(None, data.action)) or f"{len(data.action)} numbers"
        raise UserError(f"{data.path}: its action is {theirs}; the policy gives {', '.join(shape.controls)}")
    if len(data.state) != shape.state:
        raise UserError(f"{data.path}: its state has {len(data.state)} numbers; the policy takes {shape.state}")
    if all(data.state) and shape.names and data.state != shape.names:
        raise UserError(f"{data.path}: its state is {', '.join(data.state)}; the policy takes {', '.join(shape.names)}")
    if shape.hz and data.fps != shape.hz:
        raise UserError(f"{data.path}: {data.fps:g} frames a second; the policy gives {shape.hz:g} controls a second")
    if sizes != shape.cameras:
        raise UserError(f"{data.path}: its pictures are {_listed(sizes)}; the policy takes {_listed(shape.cameras)}")


def _listed(sizes: Sequence[tuple[int, int]]) -> str:
    return ", ".join(f"{width}x{height}" for width, height in sizes) or "none"


def _ends(driver: np.ndarray) -> np.ndarray:
    """For each frame, the first one after it that somebody else drove, or the end."""
    changes = np.append(np.flatnonzero(np.diff(driver)) + 1, len(driver))
    return changes[np.searchsorted(changes, np.arange(len(driver)), side="right")]


# Imitation: batches drawn from groups of examples at fixed shares, and the update that maximises their likelihood.


def chances(sizes: Mapping[str, int], shares: Mapping[str, float]) -> np.ndarray:
    """The probability [sum of sizes] of each example, its group's share divided among the group.

    The share of a group that has no examples goes to the others in proportion (RLPD draws demonstrations at a fixed
    share: arXiv 2302.02948). All 0 where nothing that has a share has examples.
    """
    total = sum(shares[name] for name, size in sizes.items() if size) or 1.0
    return np.concatenate([np.full(size, shares[name] / total / max(1, size)) for name, size in sizes.items()])


def draw_batches(
    examples: Sequence[Example], chance: np.ndarray | None, *, steps: int, size: int, rng: np.random.Generator
) -> Iterator[ExampleBatch]:
    """`steps` batches, each example drawn with its `chance`; None: all alike."""
    return (draw(examples, chance, size=size, rng=rng) for _ in range(steps))


def draw(
    examples: Sequence[Example], chance: np.ndarray | None, *, size: int, rng: np.random.Generator
) -> ExampleBatch:
    """One batch of `size` examples, or as many as there are; an example may come twice."""
    chosen = rng.choice(len(examples), size=min(size, len(examples)), p=chance)
    return ExampleBatch(tuple(examples[i] for i in chosen))


def imitate(policy: ControlPolicy, batches: Iterable[ExampleBatch], *, steps: int, lr: float) -> dict[str, float]:
    """The update of `vlrl learn`: behaviour cloning of what was recorded, one optimizer step a batch.

    Another update, such as an off-policy one that values actions, has the same form: a policy that is changed in
    place, batches, sizes; what it returns goes into the metrics.

    Args:
        steps: how many batches there are, for the schedule: linear rise, then linear fall to 0.

    Returns:
        loss: nats for each number of a control, the mean of the last 20 steps.
    """
    losses = fit_supervised(
        imitation_optimizer(policy, lr), batches, functools.partial(imitation_loss, policy),
        lr=linear_schedule(lr, steps),
    )  # fmt: skip
    tail = losses[-20:]
    return {"loss": sum(tail) / max(1, len(tail))}


def imitation_optimizer(policy: ControlPolicy | FlowPolicy, lr: float) -> torch.optim.Optimizer:
    """For all of a small robot policy's weights."""
    return torch.optim.AdamW(policy.model.parameters(), lr=lr, weight_decay=1e-4)


def imitation_loss(policy: ControlPolicy | FlowPolicy, batch: ExampleBatch) -> Tensor:
    """The negative log-likelihood of what was done, nats for each number of a control."""
    mask = batch.mask(policy.shape).to(policy.device)
    logprobs = policy.evaluate(batch.decisions).logprobs
    return -(logprobs * mask).sum() / mask.sum()
