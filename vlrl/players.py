"""Who plays a step's episodes: a policy, a task and a rollout strategy that nobody else uses meanwhile."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vlrl import registry
from vlrl.config import Config
from vlrl.engines.shared import Shared
from vlrl.parallel import World, here
from vlrl.policies import learned
from vlrl.policies.load import load as load_policy
from vlrl.strict import Component
from vlrl.types import Episode, Sample

if TYPE_CHECKING:
    from torch import Tensor, nn


class Pool(Sequence[Sample]):
    """The samples at some positions of a split, made when they are asked for."""

    def __init__(self, samples: Sequence[Sample], positions: Sequence[int]):
        self._samples, self.positions = samples, positions

    def __len__(self) -> int:
        return len(self.positions)

    def __getitem__(self, index):
        if isinstance(index, slice):
            return Pool(self._samples, self.positions[index])
        return self._samples[self.positions[index]]


@dataclass(frozen=True, eq=False)
class Player:
    """One that plays. `samples`: the training split, as its own task makes it; `world`: who plays with it."""

    policy: Any
    task: Any
    rollouts: Any
    samples: Sequence[Sample]
    world: World = field(default_factory=here)

    def tell(self, step: int) -> None:
        """Rewards that grow stricter hang on the step alone, so that a resumed run goes on with them."""
        if hasattr(self.task, "at_step"):  # tasks of users' own may lack it
            self.task.at_step(step)

    def play(self, positions: Sequence[int], group_size: int, step: int, keep: bool = False) -> list[Episode]:
        """The strategy's episodes of the samples at these positions. keep: as `vlrl.policies.vlm.VLM.act`."""
        chosen = [self.samples[i] for i in positions]
        return self.world.call(self.rollouts, self.policy, self.task, chosen, group_size, step, keep=keep)

    def end(self) -> None:
        """Breaks off what it plays in another thread, between two turns, and waits for no other process."""
        self.policy.halted = True
        self.world.cut()

    def put(self, weights: Mapping[str, Tensor], seed: int) -> None:
        """Weights to play by, and what random numbers are drawn from."""
        learned.put(self.policy.model, weights)
        if hasattr(self.policy, "generator"):
            self.policy.generator.manual_seed(seed)


def weights_of(policy: Any) -> dict[str, Tensor]:
    """The parameters that train, by name: views, not copies."""
    return {name: p.detach() for name, p in policy.model.named_parameters() if p.requires_grad}


def twin(config: Config, first: Player) -> Player:
    """Another player of the same run, for a thread of its own.

    What does not train is shared, as long as it is made for reading: weights that are frozen, data. Simulators, and
    what else may be open a few at a time, are its own, and so is its link to other processes, which make twins in the
    same order.
    """
    alone = config.policy.model_copy(update={"engine": Component(name="local")})
    policy = load_policy(alone, shared_prefix=config.train.shared_prefix, seed=config.seed)
    _share(first.policy.model, policy.model)
    if getattr(first.policy, "engine", None) is not None:
        policy.engine = Shared.beside(first.policy, policy)
    many = getattr(first.task, "at_once", None) is None
    task = copy.copy(first.task) if many else registry.make_task(config)
    rollouts = registry.make("rollouts", config.rollouts, "rollouts", policy, task, config.seed)
    samples = task.samples("train")
    if hasattr(rollouts, "pool"):
        rollouts.pool = Pool(samples, first.rollouts.pool.positions)
    return Player(policy, task, rollouts, samples, here().beside())


def _share(model: nn.Module, other: nn.Module) -> None:
    """One memory for what does not train."""
    named = dict(model.named_parameters())
    for name, parameter in other.named_parameters():
        if not parameter.requires_grad:
            parameter.data = named[name].data
