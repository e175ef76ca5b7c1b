"""Behaviour cloning: a small robot policy that imitates a task's script from states that noise led to.

Or whatever else a task's `demonstrations(episodes, noise, seed)` gives, or LeRobotDatasets that somebody recorded.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import Field

from vlrl import registry
from vlrl.config import DataSection
from vlrl.evaluate import evaluate
from vlrl.learning import cloning
from vlrl.learning.cloning import Recordings
from vlrl.learning.examples import Example
from vlrl.learning.imitate import drawn, imitate
from vlrl.locks import hold_folder
from vlrl.policies.actor_network import ActorShape
from vlrl.policies.control import ControlPolicy, Network, Shape
from vlrl.policies.flow import FlowPolicy, load_flow, made
from vlrl.progress import Progress
from vlrl.strict import Count, Plugin, Rate, Section, load_as
from vlrl.types import Observation, UserError

Pair = tuple[Observation, np.ndarray]  # what was shown, and the script's chunk float32 [K, A]


class NetworkSection(Section):
    """The policy to make (vlrl/policies/control.py, vlrl/policies/flow.py)."""

    kind: Literal["control", "flow"] = "control"
    hidden: Count = 128
    layers: Count = 2
    bins: Annotated[int, Field(ge=2)] = 21  # of kind control
    chunk: Count = 8  # ticks of a decision that is learned from data sets; a task's script has its own


class CloneConfig(Section):
    out: str
    task: Plugin | None = None  # to imitate its script, and to be evaluated on; none: `datasets` alone
    datasets: list[Recordings] = Field(default=[])  # to imitate instead of the script
    start: str | None = None  # a policy of this kind to go on from; none: a new one
    seed: int = 0
    episodes: Count = 50
    noise: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.3  # in halves of the limits' width
    steps: Count = 500
    batch: Count = 256
    lr: Rate = 1e-3
    threads: Count = 1  # of one process: tiny matrices gain nothing from more
    policy: NetworkSection = NetworkSection()
    data: DataSection = DataSection()


def clone(task: Any, config: CloneConfig) -> tuple[ControlPolicy | FlowPolicy, dict[str, float]]:
    """A policy that imitates the data sets, or without any the task's script, and how much it saw.

    Raises:
        UserError: the robot has no script, or a data set cannot be read or fits neither the others nor the policy.
    """
    torch.manual_seed(config.seed)
    policy, examples, chance, episodes = _recorded(task, config) if config.datasets else _scripted(task, config)
    rng, sizes = np.random.default_rng(config.seed), {"steps": config.steps, "size": config.batch}
    told = imitate(policy, drawn(examples, chance, rng=rng, **sizes), steps=config.steps, lr=config.lr)
    return policy, {"episodes": episodes, "decisions": len(examples), **told}


# policy, examples, their chances, episodes
Lesson = tuple[ControlPolicy | FlowPolicy, list[Example], np.ndarray | None, int]


def _scripted(task: Any, config: CloneConfig) -> Lesson:
    if task is None:
        raise UserError("task: is required where there are no datasets")
    if not hasattr(task, "demonstrations"):
        raise UserError(f"task: {config.task.name} has no script to imitate")
    pairs: list[Pair] = []
    with Progress(config.episodes) as progress:
        for number, episode in enumerate(task.demonstrations(config.episodes, config.noise, config.seed), start=1):
            pairs += episode
            progress.note(f"demonstration {number}/{config.episodes}")
    if config.start:
        policy = _started(config)
    else:
        shape = _shape(task, pairs[0], config.policy)
        states = torch.as_tensor(np.stack([shown.state for shown, _ in pairs]))
        if config.policy.kind == "flow":
            policy = _flow(shape, states, config.seed)
        else:
            policy = ControlPolicy(Network(shape), seed=config.seed)
            policy.model.mean.copy_(states.mean(0))
            policy.model.spread.copy_(states.std(0).clamp(min=1e-3))
    return policy, [Example(policy.decide(shown, c), len(c)) for shown, c in pairs], None, config.episodes


def _recorded(task: Any, config: CloneConfig) -> Lesson:
    sources = cloning.read([each.path for each in config.datasets])
    if config.start:
        policy = _started(config)
    else:
        sizes = config.policy.model_dump(exclude={"kind"})
        shape = cloning.shape_of(sources, getattr(task, "controls", None), **sizes)
        if config.policy.kind == "flow":
            states = np.concatenate([each.state for source in sources for each in source.episodes])
            policy = _flow(shape, torch.as_tensor(states), config.seed)
        else:
            policy = cloning.fresh(shape, sources, config.seed)
    examples, chance = cloning.imitated(policy, sources, [each.weight for each in config.datasets])
    return policy, examples, chance, sum(len(source.episodes) for source in sources)


def _started(config: CloneConfig) -> ControlPolicy | FlowPolicy:
    if config.policy.kind == "flow":
        return load_flow(Path(config.start), seed=config.seed, key="start")
    return cloning.started(config.start, config.seed)


def _flow(shape: Shape, states: torch.Tensor, seed: int) -> FlowPolicy:
    """A new flow policy, its state scaled by states [M, S]."""
    if shape.cameras:
        raise UserError("policy.kind: flow sees the state alone, and this robot shows pictures: take control")
    same = {field.name: getattr(shape, field.name) for field in fields(ActorShape)}
    return made(ActorShape(**same), states.mean(0), states.std(0).clamp(min=1e-3), seed)


def _shape(task: Any, pair: Pair, section: NetworkSection) -> Shape:
    shown, chunk = pair
    if shown.state is None:
        raise UserError("clone: the robot shows no state")
    controls = task.controls
    return Shape(
        len(shown.state), tuple(controls.names), tuple(controls.low.tolist()), tuple(controls.high.tolist()),
        chunk=len(chunk), bins=section.bins, cameras=tuple(image.size for image in shown.images),
        hidden=section.hidden, layers=section.layers, names=tuple(task.pool.about.names), units=tuple(controls.units),
        hz=task.pool.about.hz,
    )  # fmt: skip


def main(path: str, changes: Sequence[str]) -> int:
    """`vlrl clone CONFIG`: makes a policy that imitates, saves it, and prints its held-out success where it can."""
    config = load_as(CloneConfig, path, changes)
    torch.set_num_threads(config.threads)
    folder, start = Path(config.out), time.perf_counter()
    with hold_folder(folder):
        task = registry.make_task(config) if config.task else None
        policy, tally = clone(task, config)
        policy.save(folder, torch.float16)
    policy.load_weights(folder)
    told = f"{tally['episodes']} demonstrations, {tally['decisions']} decisions, loss {tally['loss']:.3f}; "
    if task:
        measured = evaluate(policy, task).accuracy
        told += f"held-out success {measured.value:.3f} [{measured.low:.3f}, {measured.high:.3f}] on {measured.n}, "
    print(f"{told}{time.perf_counter() - start:.0f} s; {folder}")
    return 0
