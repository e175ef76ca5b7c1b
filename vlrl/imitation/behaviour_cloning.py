"""Behaviour cloning from recorded episodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vlrl import registry
from vlrl.config import PolicySection, check_model
from vlrl.decoders import load_json
from vlrl.imitation.configs import CloneConfig, NetworkSection
from vlrl.imitation.datasets import (
    DatasetEpisode,
    DatasetInfo,
    Example,
    ExampleBatch,
    check_fit,
    draw,
    episodes,
    examples,
    imitation_loss,
    imitation_optimizer,
    read_info,
)
from vlrl.logging import Progress
from vlrl.policies.discrete import ControlPolicy, DiscreteShape, Network
from vlrl.policies.flow import FlowPolicy, load_flow, make_flow_policy
from vlrl.policies.lerobot import VLM_FOLDER
from vlrl.policies.loading import EMBEDDED, bundled, load
from vlrl.policies.robot_common import ActorShape
from vlrl.runner import EvalResult, SupervisedLearner, evaluate_export
from vlrl.types import Observation, Policy, RobotTask, UserError

# Recorded data sets as the source of a policy: what they must have in common, its shape, what it is to imitate.


@dataclass(frozen=True, eq=False)
class DemonstrationData:
    """A data set that was read."""

    about: DatasetInfo
    episodes: tuple[DatasetEpisode, ...]


def cloning_read(paths: Sequence[str]) -> list[DemonstrationData]:
    """
    Raises:
        UserError: one cannot be read or is empty, or their rates or sizes differ.
    """
    sources = [DemonstrationData(each, tuple(episodes(each))) for each in map(read_info, paths)]
    first = sources[0].about
    for source in sources:
        info = source.about
        if not source.episodes:
            raise UserError(f"{info.path}: has no episodes")
        if info.fps != first.fps:
            raise UserError(f"{info.path}: {info.fps:g} frames a second; {first.path} has {first.fps:g}")
        for name, mine, others in (("state", info.state, first.state), ("action", info.action, first.action)):
            if len(mine) != len(others):
                raise UserError(f"{info.path}: its {name} has {len(mine)} numbers; that of {first.path} {len(others)}")
    return sources


def shape_of(sources: Sequence[DemonstrationData], controls: Any, **sizes: int) -> DiscreteShape:
    """A policy for what the first data set shows and does.

    Its controls are `controls` (robot.types), else those that the data set tells (meta/vlrl.json), else as wide as
    its actions range. Names of cameras are kept but for camera1, ..., which only count.
    """
    info = sources[0].about
    names, units, low, high = _controls(sources) if controls is None else _control_parts(controls)
    pictures = tuple(name for name, _, _ in info.cameras)
    counted = all(name == f"camera{place}" for place, name in enumerate(pictures, 1))
    return DiscreteShape(
        len(info.state), names, low, high,
        cameras=tuple((width, height) for _, width, height in info.cameras),
        names=info.state if all(info.state) else (), units=units, pictures=() if counted else pictures, hz=info.fps,
        **sizes,
    )  # fmt: skip


def started(folder: str, seed: int) -> ControlPolicy:
    """A policy to go on from.

    Raises:
        UserError: there is none, or it is of another kind.
    """
    check_model(bundled(folder), "start")
    policy = load(PolicySection(model=folder), seed=seed)
    if not isinstance(policy, ControlPolicy):
        raise UserError(f"start: {folder} holds no small robot policy, as `vlrl clone` makes them")
    return policy


def imitated(
    policy: Policy, shape: DiscreteShape | ActorShape, sources: Sequence[DemonstrationData], weights: Sequence[float]
) -> tuple[list[Example], Any]:
    """Every frame of the data sets, and the chance float64 [N] of each.

    Raises:
        UserError: a data set does not fit the policy.
    """
    all_examples, chance = [], []
    for source, weight in zip(sources, weights, strict=True):
        check_fit(source.about, shape)
        for episode in source.episodes:
            all_examples += examples(policy, shape.chunk, episode, range(len(episode)))
            chance += [weight] * len(episode)
    return all_examples, np.array(chance) / sum(chance)


Parts = tuple[tuple[str, ...], tuple[str, ...], tuple[float, ...], tuple[float, ...]]  # names, units, low, high


def _control_parts(controls: Any) -> Parts:
    return tuple(controls.names), tuple(controls.units), tuple(controls.low.tolist()), tuple(controls.high.tolist())


def _controls(sources: Sequence[DemonstrationData]) -> Parts:
    controls, data = _read_controls(sources[0].about.path), sources[0].about
    names = tuple(name or f"action {place}" for place, name in enumerate(data.action))
    if tuple(each["name"] for each in controls) == names:
        units, low, high = (tuple(each[part] for each in controls) for part in ("unit", "low", "high"))
        return names, units, low, high
    actions = np.concatenate([each.action for source in sources for each in source.episodes])
    low, high = actions.min(0), actions.max(0)
    return names, (), tuple(low.tolist()), tuple(np.maximum(high, low + 1e-3).tolist())


def _read_controls(path: Path) -> list[dict[str, Any]]:
    """The controls in meta/vlrl.json, which `vlrl demos` writes; [] without it."""
    try:
        return list(load_json(path / "meta" / "vlrl.json")["controls"])
    except (OSError, ValueError, KeyError):
        return []


# Behaviour cloning: a small robot policy that imitates a task's script from states that noise led to.
#
# Or whatever else a task's `demonstrations(episodes, noise, seed)` gives, or LeRobotDatasets that somebody recorded.

Pair = tuple[Observation, np.ndarray]  # what was shown, and the script's chunk float32 [K, A]


class CloneLearner(SupervisedLearner):
    """A policy that imitates the data sets, or without any the task's script (`vlrl clone`)."""

    command = "clone"
    config: CloneConfig

    def setup(self, saved: Path | None = None) -> None:
        """
        Raises:
            UserError: the robot has no script, or a data set cannot be read or fits neither the others nor the policy.
        """
        super().setup(saved)
        config = self.config
        self.task = registry.make_task(config) if config.task else None
        lesson = _recorded(self.task, config) if config.datasets else _scripted(self.task, config)
        self.policy, self.examples, self.chance, self.episodes = lesson
        self.optimizer = imitation_optimizer(self.policy, config.lr)

    @property
    def name(self) -> str:
        return self.config.task.name if self.config.task else "datasets"

    def draw(self) -> ExampleBatch:
        return draw(self.examples, self.chance, size=self.config.batch_size, rng=self.rngs[0])

    def loss(self, batch: ExampleBatch) -> Tensor:
        return imitation_loss(self.policy, batch)

    def export(self, folder: Path) -> None:
        self.policy.save(folder, torch.float16)

    def evaluate(self, i: int, progress: Callable[[int, int], None]) -> EvalResult | None:
        return evaluate_export(self, [self.task], progress)[0] if self.task else None

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"policy": self.policy.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.policy.load_state_dict(state["policy"])

    def summary(self, results: dict[str, dict[str, float]]) -> dict[str, Any]:
        return super().summary(results) | {"episodes": self.episodes, "decisions": len(self.examples)}


Lesson = tuple[Policy, list[Example], np.ndarray | None, int]  # policy, examples, their chances, episodes


def _scripted(task: Any, config: CloneConfig) -> Lesson:
    if task is None:
        raise UserError("task: is required where there are no datasets")
    if not isinstance(task, RobotTask):
        raise UserError(f"task: {config.task.name} has no script to imitate")
    policy = _started(config) if config.start else None
    pairs: list[Pair] = []
    with Progress(config.episodes) as progress:
        for number, episode in enumerate(task.demonstrations(config.episodes, config.noise, config.seed), start=1):
            pairs += episode
            progress.note(f"demonstration {number}/{config.episodes}")
    if policy is None:
        shape = _shape(task, pairs[0], config.policy)
        states = np.stack([observation.state for observation, _ in pairs])
        policy = _make_policy(config, shape, states, np.concatenate([chunk for _, chunk in pairs]))
    return policy, [Example(policy.decide(observation, c), len(c)) for observation, c in pairs], None, config.episodes


def _recorded(task: Any, config: CloneConfig) -> Lesson:
    sources = cloning_read([each.path for each in config.datasets])
    policy = _started(config) if config.start else None
    shape = policy.shape if policy is not None else None
    if shape is None:
        sizes = config.policy.model_dump(exclude={"kind"})
        shape = shape_of(sources, task.controls if isinstance(task, RobotTask) else None, **sizes)
    if policy is None:
        whole = [each for source in sources for each in source.episodes]
        states = np.concatenate([each.state for each in whole])
        policy = _make_policy(config, shape, states, np.concatenate([each.action for each in whole]))
    examples, chance = imitated(policy, shape, sources, [each.weight for each in config.datasets])
    return policy, examples, chance, sum(len(source.episodes) for source in sources)


def _started(config: CloneConfig) -> Policy:
    if config.policy.kind in ("smolvla", "act", "diffusion"):
        from vlrl.policies.lerobot_flow import LerobotFlowPolicy

        check_model(config.start, "start")
        policy = load(PolicySection(model=config.start), seed=config.seed)
        if not isinstance(policy, LerobotFlowPolicy):
            raise UserError(f"start: {config.start} holds no policy of lerobot that is trained here")
        return policy
    if config.policy.kind == "flow":
        return load_flow(Path(config.start), seed=config.seed, key="start")
    return started(config.start, config.seed)


def _make_policy(config: CloneConfig, shape: DiscreteShape, states: np.ndarray, actions: np.ndarray) -> Policy:
    """A new policy, scaled by states [M, S] and, where it normalizes them, actions [M, A]."""
    if config.policy.kind == "smolvla":
        from vlrl.policies.lerobot_flow import make_smolvla

        vlm = Path(config.out).resolve() / VLM_FOLDER
        return make_smolvla(shape, states, actions, vlm, EMBEDDED, config.seed)
    if config.policy.kind in ("act", "diffusion"):
        from vlrl.policies.lerobot_flow import make_small

        return make_small(config.policy.kind, shape, states, actions, config.seed)
    if config.policy.kind == "flow":
        return _flow(shape, torch.as_tensor(states), config.seed)
    return make_control(shape, torch.as_tensor(states), config.seed)


def make_control(shape: DiscreteShape, states: Tensor, seed: int) -> ControlPolicy:
    """An untrained policy, its state scaled by states [M, S]."""
    policy = ControlPolicy(Network(shape), seed=seed)
    policy.model.mean.copy_(states.mean(0))
    policy.model.spread.copy_(states.std(0).clamp(min=1e-3))
    return policy


def _flow(shape: DiscreteShape, states: torch.Tensor, seed: int) -> FlowPolicy:
    """A new flow policy, its state scaled by states [M, S]."""
    if shape.cameras:
        raise UserError("policy.kind: flow sees the state alone, and this robot shows pictures: take control")
    known = asdict(shape)
    same = ActorShape(**{field.name: known[field.name] for field in fields(ActorShape) if field.name in known})
    return make_flow_policy(same, states.mean(0), states.std(0).clamp(min=1e-3), seed)


def _shape(task: Any, pair: Pair, section: NetworkSection) -> DiscreteShape:
    observation, chunk = pair
    if observation.state is None:
        raise UserError("clone: the robot shows no state")
    controls = task.controls
    return DiscreteShape(
        len(observation.state), tuple(controls.names), tuple(controls.low.tolist()), tuple(controls.high.tolist()),
        chunk=len(chunk), bins=section.bins, cameras=tuple(image.size for image in observation.images),
        hidden=section.hidden, layers=section.layers, names=tuple(task.pool.info.names), units=tuple(controls.units),
        hz=task.pool.info.hz,
    )  # fmt: skip


def summary_text(summary: Mapping[str, Any]) -> str:
    """What came of it, in a line."""
    text = f"{summary['episodes']} demonstrations, {summary['decisions']} decisions, loss {summary['loss']:.3f}; "
    if "after" in summary:
        after = summary["after"]
        text += f"held-out success {after['value']:.3f} [{after['low']:.3f}, {after['high']:.3f}] on {after['n']}, "
    return f"{text}{summary['wall_s']:.0f} s"
