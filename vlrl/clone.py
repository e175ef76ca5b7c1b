"""Behaviour cloning: a small robot policy that imitates a task's script from states that noise led to.

Or whatever else a task's `demonstrations(episodes, noise, seed)` gives.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import Field

from vlrl import registry
from vlrl.config import DataSection
from vlrl.evaluate import evaluate
from vlrl.policies.control import ControlPolicy, Network, Shape
from vlrl.progress import Progress
from vlrl.strict import Count, Plugin, Rate, Section, load_as
from vlrl.types import Decision, Observation, UserError

Pair = tuple[Observation, np.ndarray]  # what was shown, and the script's chunk float32 [K, A]


class NetworkSection(Section):
    """The policy to make (vlrl/policies/control.py)."""

    hidden: Count = 128
    layers: Count = 2
    bins: Annotated[int, Field(ge=2)] = 21


class CloneConfig(Section):
    out: str
    task: Plugin
    seed: int = 0
    episodes: Count = 50
    noise: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.3  # in halves of the limits' width
    steps: Count = 500
    batch: Count = 256
    lr: Rate = 1e-3
    threads: Count = 1  # of one process: tiny matrices gain nothing from more
    policy: NetworkSection = NetworkSection()
    data: DataSection = DataSection()


def learn(policy: ControlPolicy, decisions: Sequence[Decision], config: CloneConfig) -> list[float]:
    """Maximises the likelihood of the decisions. Returns the loss, nats for each number of a control, of every step."""
    rng = np.random.default_rng(config.seed)
    optimizer = torch.optim.AdamW(policy.model.parameters(), lr=config.lr, weight_decay=1e-4)
    losses = []
    for step in range(config.steps):
        for setting in optimizer.param_groups:
            setting["lr"] = config.lr * min(1.0, (step + 1) / 20) * (1 - step / config.steps)
        chosen = rng.integers(len(decisions), size=min(config.batch, len(decisions)))
        loss = -policy.evaluate([decisions[i] for i in chosen]).logprobs.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def clone(task: Any, config: CloneConfig) -> tuple[ControlPolicy, dict[str, float]]:
    """A policy that imitates the task's script, and how much it saw.

    Raises:
        UserError: the robot has no script.
    """
    torch.manual_seed(config.seed)
    if not hasattr(task, "demonstrations"):
        raise UserError(f"task: {config.task.name} has no script to imitate")
    pairs: list[Pair] = []
    with Progress(config.episodes) as progress:
        for number, episode in enumerate(task.demonstrations(config.episodes, config.noise, config.seed), start=1):
            pairs += episode
            progress.note(f"demonstration {number}/{config.episodes}")
    policy = ControlPolicy(Network(_shape(task, pairs[0], config.policy)), seed=config.seed)
    states = torch.as_tensor(np.stack([shown.state for shown, _ in pairs]))
    policy.model.mean.copy_(states.mean(0))
    policy.model.spread.copy_(states.std(0).clamp(min=1e-3))
    losses = learn(policy, [policy.decide(shown, chunk) for shown, chunk in pairs], config)
    tail = losses[-20:]
    return policy, {"episodes": config.episodes, "decisions": len(pairs), "loss": sum(tail) / len(tail)}


def _shape(task: Any, pair: Pair, section: NetworkSection) -> Shape:
    shown, chunk = pair
    if shown.state is None:
        raise UserError("clone: the robot shows no state")
    controls = task.controls
    return Shape(
        len(shown.state), tuple(controls.names), tuple(controls.low.tolist()), tuple(controls.high.tolist()),
        chunk=len(chunk), bins=section.bins, cameras=tuple(image.size for image in shown.images),
        hidden=section.hidden, layers=section.layers,
    )  # fmt: skip


def main(path: str, changes: Sequence[str]) -> int:
    """`vlrl clone CONFIG`: plays the script, makes a policy that imitates it, saves it, prints its held-out success."""
    config = load_as(CloneConfig, path, changes)
    torch.set_num_threads(config.threads)
    task, start = registry.make_task(config), time.perf_counter()
    policy, tally = clone(task, config)
    folder = Path(config.out)
    policy.save(folder, torch.float16)
    policy.load_weights(folder)
    measured = evaluate(policy, task).accuracy
    print(
        f"{tally['episodes']} demonstrations, {tally['decisions']} decisions, loss {tally['loss']:.3f}; "
        f"held-out success {measured.value:.3f} [{measured.low:.3f}, {measured.high:.3f}] on {measured.n}, "
        f"{time.perf_counter() - start:.0f} s; {folder}"
    )
    return 0
