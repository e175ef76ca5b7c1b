"""What off-policy agents are made of: scales, critics and their slow targets, a first policy, a pre-trained trunk."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional

from vlrl.checkpoint import open_model
from vlrl.offpolicy.base import AgentSpec
from vlrl.policies.robot_common import FAR, Actor, ActorShape, load_actor, physical
from vlrl.types import UserError


class Scale:
    """Between physical units and those of networks: states by mean and spread, controls from -1 to 1."""

    def __init__(self, about: AgentSpec):
        self.mean, self.spread = torch.as_tensor(about.mean), torch.as_tensor(about.spread)
        self.low, self.high = np.asarray(about.low, np.float32), np.asarray(about.high, np.float32)
        self._half = (self.high - self.low) / 2

    def state(self, state: np.ndarray) -> Tensor:
        """float32 [B, S], normalised, within FAR spreads of the mean."""
        return ((torch.from_numpy(state) - self.mean) / self.spread).clamp_(-FAR, FAR)

    def unit(self, action: np.ndarray) -> Tensor:
        """Chunks [B, K, A] in physical units -> float32 [B, K*A] within [-1, 1]."""
        unit = (action.clip(self.low, self.high) - self.low) / self._half - 1
        return torch.from_numpy(unit.reshape(len(unit), -1))

    def physical(self, unit: Tensor) -> np.ndarray:
        """The inverse of `unit`, within the limits."""
        return physical(unit.detach().numpy(), self.low, self.high)


class Critics(nn.Module):
    """`members` networks at once: values [E, B] of inputs [B, D]. LayerNorm keeps what was never seen from being good.

    Each layer of all members is one batched product, which on a processor costs little more than one of them.
    """

    def __init__(self, size: int, *, hidden: int = 256, layers: int = 2, members: int = 2):
        super().__init__()
        widths = [size, *[hidden] * layers]
        self.weights = nn.ParameterList(_linear(members, a, b) for a, b in pairwise(widths))
        self.biases = nn.ParameterList(nn.Parameter(torch.zeros(members, 1, b)) for b in widths[1:])
        self.gains = nn.ParameterList(nn.Parameter(torch.ones(members, 1, b)) for b in widths[1:])
        self.shifts = nn.ParameterList(nn.Parameter(torch.zeros(members, 1, b)) for b in widths[1:])
        self.head, self.offset = _linear(members, hidden, 1), nn.Parameter(torch.zeros(members, 1, 1))

    def forward(self, inputs: Tensor) -> Tensor:
        expanded = inputs.expand(self.offset.shape[0], *inputs.shape)
        for weight, bias, gain, shift in zip(self.weights, self.biases, self.gains, self.shifts, strict=True):
            expanded = torch.baddbmm(bias, expanded, weight)
            expanded = torch.addcmul(shift, functional.layer_norm(expanded, expanded.shape[-1:]), gain).relu_()
        return torch.baddbmm(self.offset, expanded, self.head)[..., 0]


def _linear(members: int, wide: int, out: int) -> nn.Parameter:
    """[E, wide, out], as torch.nn.Linear begins."""
    bound = wide**-0.5
    return nn.Parameter(torch.empty(members, wide, out).uniform_(-bound, bound))


@torch.no_grad()
def follow(target: nn.Module, source: nn.Module, tau: float) -> None:
    """target <- (1 - tau) * target + tau * source."""
    torch._foreach_lerp_(list(target.parameters()), list(source.parameters()), tau)


def climb(optimizer: torch.optim.Optimizer, loss: Tensor, learned: Iterable[nn.Parameter]) -> None:
    """One step down a loss; nothing but `learned` gets a gradient, so that no other is computed."""
    learned = list(learned)
    for parameter, gradient in zip(learned, torch.autograd.grad(loss, learned), strict=True):
        parameter.grad = gradient
    optimizer.step()


# What an agent begins with: a new policy for its robot, or the one that `start` names.


def check_start(about: AgentSpec, shape: Any, *, longer: bool = False) -> None:
    """UserError unless a policy's shape has the robot's state, controls and limits, and chunks of as many ticks.

    Args:
        longer: its chunks may be longer.
    """
    limits = (tuple(about.low.tolist()), tuple(about.high.tolist()))
    cameras = about.encoder.cameras if about.encoder else ()
    robot = (shape.state, shape.controls, shape.low, shape.high, shape.cameras, shape.chunk)
    expected = (about.state, about.controls, *limits, cameras, about.chunk)
    if robot[:-1] != expected[:-1] or (shape.chunk < about.chunk if longer else shape.chunk != about.chunk):
        raise UserError(f"start: {about.start} was made for {robot}; this robot and task.chunk are {expected}")


def make_actor(about: AgentSpec, sizes: Any) -> Actor:
    """A new actor of the `hidden` and `layers` of an agent's settings, or the one to start from.

    Raises:
        UserError: that is no actor, or one for another robot.
    """
    if about.start is not None:
        actor = load_actor(Path(about.start), seed=0, key="start").model
        check_start(about, actor.shape)
        return actor
    actor = Actor(shape_of(about, sizes))
    actor.mean.copy_(torch.as_tensor(about.mean))
    actor.spread.copy_(torch.as_tensor(about.spread))
    return actor


def shape_of(about: AgentSpec, sizes: Any) -> ActorShape:
    """Of a policy for this robot, with the `hidden` and `layers` of an agent's settings."""
    encoder = about.encoder
    shape = ActorShape(
        about.state, about.controls, tuple(about.low.tolist()), tuple(about.high.tolist()), chunk=about.chunk,
        hidden=sizes.hidden, layers=sizes.layers, names=about.names, units=about.units, hz=about.hz,
    )  # fmt: skip
    return replace(shape, cameras=encoder.cameras, features=encoder.features) if encoder else shape


def shift_randomly(images: Tensor, limit: int, generator: torch.Generator) -> Tensor:
    """Each image of [B, height, width, 3] moved by up to `limit` pixels each way, its edge repeated (DrQ)."""
    count, *sides, _ = images.shape
    rows, columns = (
        (torch.arange(side) + torch.randint(-limit, limit + 1, (count, 1), generator=generator)).clamp(0, side - 1)
        for side in sides
    )
    return images[torch.arange(count)[:, None, None], rows[:, :, None], columns[:, None]]


# Critics of decisions, their slow copy and how they learn from targets.


class CompositeState:
    """What keeps no state beside that of its parts."""

    def components(self) -> Mapping[str, Any]:
        """Networks, optimizers and the like, by their names in a checkpoint."""
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        return {name: part.state_dict() for name, part in self.components().items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, part in self.components().items():
            part.load_state_dict(state[name])


class Valued(CompositeState):
    """Two critics (clipped double Q, arXiv 1802.09477) and the target that follows them by `tau`.

    Args:
        seed: of the first weights.
    """

    def __init__(self, about: AgentSpec, seed: int, *, hidden: int, layers: int, lr: float, tau: float):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            size = about.state + about.chunk * len(about.low)
            self.critics = Critics(size, hidden=hidden, layers=layers, members=2)
        self.target = copy.deepcopy(self.critics).requires_grad_(False)
        self.optimizer = torch.optim.Adam(self.critics.parameters(), lr=lr, fused=True)
        self.tau = tau

    @torch.no_grad()
    def worth(self, state: Tensor, unit: Tensor, *, slow: bool) -> Tensor:
        """The smaller value [B] of states [B, S] and actions [B, K*A]; `slow`: as the target sees it."""
        return (self.target if slow else self.critics)(torch.cat([state, unit], 1)).amin(0)

    def step(self, state: Tensor, unit: Tensor, aim: Tensor) -> float:
        """One step of both towards targets [B], and one of the target; returns their mean loss."""
        loss = (self.critics(torch.cat([state, unit], 1)) - aim).square().mean(1).sum()
        climb(self.optimizer, loss, self.critics.parameters())
        follow(self.target, self.critics, self.tau)
        return loss.item() / 2

    def components(self) -> Mapping[str, Any]:
        return {"critics": self.critics, "target": self.target, "optimizer": self.optimizer}


# The trunk that `vlrl pretrain` leaves behind: it is kept in a folder, and agents' networks begin with it.

FAMILY = "vlrl_trunk"


def trunk(size: int, hidden: int, layers: int) -> nn.Sequential:
    """[B, size] -> [B, hidden], built as those of the off-policy agents."""
    widths = [size, *[hidden] * layers]
    return nn.Sequential(*(part for a, b in pairwise(widths) for part in (nn.Linear(a, b), nn.LayerNorm(b), nn.ReLU())))


@dataclass(frozen=True)
class TrunkShape:
    """What a trunk sees, and its size."""

    state: int  # S numbers
    names: tuple[str, ...] = ()  # of them; (): not known
    hidden: int = 256
    layers: int = 2


def save(folder: Path, shape: TrunkShape, network: nn.Sequential, mean: np.ndarray, spread: np.ndarray) -> None:
    """config.json and model.safetensors, with the scale [S] of the states that it saw."""
    folder.mkdir(parents=True, exist_ok=True)
    scale = {"mean": torch.from_numpy(mean), "spread": torch.from_numpy(spread)}
    save_file({name: value.contiguous() for name, value in network.state_dict().items()} | scale,
              folder / "model.safetensors")  # fmt: skip
    about = {"model_type": FAMILY, **asdict(shape)}
    (folder / "config.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")


def trunk_load(folder: str | Path, about: AgentSpec) -> nn.Sequential:
    """The trunk that `save` wrote, for states in the agent's scale instead of its own.

    Raises:
        UserError: the folder holds something else, or a trunk for another state.
    """
    folder = Path(folder)
    with open_model(folder, FAMILY, "trunk of `vlrl pretrain`", "agent.init") as (fields, tensors):
        shape = TrunkShape(names=tuple(fields.pop("names")), **fields)
        mean, spread = tensors.pop("mean"), tensors.pop("spread")
        network = trunk(shape.state, shape.hidden, shape.layers)
        network.load_state_dict(tensors)
    if shape.state != about.state or (shape.names and about.names and shape.names != about.names):
        raise UserError(f"agent.init: {folder} was made for other states than this robot's")
    with torch.no_grad():  # W ((x * own + offset - mean) / spread) + b, written as W' x + b'
        first, own, offset = network[0], torch.as_tensor(about.spread), torch.as_tensor(about.mean)
        first.bias += first.weight @ ((offset - mean) / spread)
        first.weight *= own / spread
    return network


@torch.no_grad()
def begin(folder: str | Path, about: AgentSpec, *networks: Actor | Critics) -> None:
    """Gives networks the trunk's layers; what they see beside the state, and their heads, stay as they are.

    Args:
        networks: actors, and critics whose inputs begin with the S numbers of the state in the agent's scale.

    Raises:
        UserError: as `load`; or their layers are others than the trunk's.
    """
    trunk = trunk_load(folder, about)
    layers = [trunk[place : place + 2] for place in range(0, len(trunk), 3)]
    for network in networks:
        actor = isinstance(network, Actor)
        widths = [part.out_features for part in network.trunk[::3]] if actor else [b.shape[2] for b in network.biases]
        if widths != [linear.out_features for linear, _ in layers]:
            raise UserError(
                f"agent.init: {folder} has {len(layers)} layers of {layers[0][0].out_features}, the agent "
                f"{len(widths)} of {widths[0]}: set hidden and layers alike"
            )
        if actor:
            network.trunk.load_state_dict(trunk.state_dict())
            continue
        for number, (linear, norm) in enumerate(layers):
            network.weights[number][:, : linear.in_features] = linear.weight.T
            network.biases[number][:] = linear.bias
            network.gains[number][:], network.shifts[number][:] = norm.weight, norm.bias
