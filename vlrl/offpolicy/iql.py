"""Agents that imitate what is given and go on: weighted cloning, IQL, AWAC, RECAP, MOORL; ARSQ, which has no actor."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vlrl.algorithms.critics import HLGauss
from vlrl.methods import Agent
from vlrl.offpolicy import networks
from vlrl.offpolicy.base import AgentSpec, Transitions, concat
from vlrl.offpolicy.networks import CompositeState, Critics, Scale, Valued, climb, follow, make_actor, shape_of
from vlrl.offpolicy.sac import RlpdSettings, Sac
from vlrl.policies.arsq import Advantages, ArsqPolicy, Grid, load_arsq
from vlrl.policies.flow import (
    GUIDED_FAMILY,
    FlowPolicy,
    GuidedPolicy,
    errors,
    indicated,
    indicating,
    load_flow,
    load_guided,
)
from vlrl.policies.loading import described
from vlrl.policies.robot_common import ActorPolicy
from vlrl.types import UserError

# What behaviour cloning, IQL and AWAC share: an actor that imitates some actions more than others.


def expectile(apart: Tensor, tau: float) -> Tensor:
    """|tau - 1(u < 0)| * u^2 of each number u (arXiv 2110.06169, equation 5); tau 0.5: half the square."""
    return (tau - (apart < 0).to(apart.dtype)).abs() * apart.square()


def weights(advantage: Tensor, beta: float, most: float) -> Tensor:
    """exp(beta * A), at most `most`, so that one action is not all that is imitated (2110.06169, equation 7)."""
    return (beta * advantage).exp().clamp(max=most)


def likelihood(mean: Tensor, log_std: Tensor, unit: Tensor, carried: Tensor) -> Tensor:
    """Log-density [B] of actions [B, D] in [-1, 1] under a normal distribution around tanh(mean).

    It is not squashed: scripts and people often stay at a limit, where a squashed one has no density.

    Args:
        carried: bool [B, D], what was carried out; the rest pads a chunk and is not imitated.
    """
    apart = (unit - mean.tanh()) / log_std.exp()
    return ((-0.5 * apart.square() - log_std - 0.5 * math.log(2 * math.pi)) * carried).sum(-1)


def carried(batch: Transitions) -> Tensor:
    """bool [B, K*A]: the numbers of the ticks that were carried out."""
    ticks = np.arange(batch.action.shape[1]) < batch.ticks()[:, None]
    return torch.from_numpy(ticks.repeat(batch.action.shape[2], 1))


class Imitator:
    """The actor, its optimizer and its chance.

    Args:
        decay: updates in which the rate falls to 0 along a cosine; 0: it stays.
    """

    def __init__(self, about: AgentSpec, seed: int, *, hidden: int, layers: int, lr: float, decay: int):
        self.scale, self.generator = Scale(about), torch.Generator().manual_seed(seed)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.policy = ActorPolicy(make_actor(about, RlpdSettings(hidden=hidden, layers=layers)), seed=seed)
        self.optimizer = torch.optim.Adam(self.policy.model.parameters(), lr=lr, fused=True)
        self.updates, self._lr, self._decay = 0, lr, decay

    @torch.no_grad()
    def draw(self, state: np.ndarray, explore: bool = True) -> Tensor:
        """Actions in [-1, 1] [B, K*A] for states float32 [B, S]: sampled, or the mean."""
        mean, log_std = self.policy.model(torch.as_tensor(state))
        noise = torch.randn(mean.shape, generator=self.generator) if explore else 0.0
        return (mean.tanh() + log_std.exp() * noise).clamp_(-1, 1)

    def chunks(self, state: np.ndarray, explore: bool) -> np.ndarray:
        """As `vlrl.methods.Agent.act`."""
        return self.scale.physical(self.draw(state, explore))

    def step(self, batch: Transitions, weight: Tensor | float = 1.0) -> float:
        """One step towards the batch's actions, each with its weight [B]; returns the loss."""
        mean, log_std = self.policy.model(torch.from_numpy(batch.state))
        logprob = likelihood(mean, log_std, self.scale.unit(batch.action), carried(batch))
        loss = -(weight * logprob).mean()
        if self._decay:
            share = min(1.0, self.updates / self._decay)
            self.optimizer.param_groups[0]["lr"] = self._lr * 0.5 * (1 + math.cos(math.pi * share))
        climb(self.optimizer, loss, self.policy.model.parameters())
        self.updates += 1
        return loss.item()

    def state_dict(self) -> dict[str, Any]:
        return {
            "actor": self.policy.model.state_dict(), "optimizer": self.optimizer.state_dict(),
            "generator": self.generator.get_state(), "updates": self.updates,
        }  # fmt: skip

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.policy.model.load_state_dict(state["actor"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.generator.set_state(state["generator"])
        self.updates = state["updates"]


# Implicit Q-learning (arXiv 2110.06169) over chunks: values of what was done, never of what was not.


class ImplicitQ(CompositeState):
    """See `vlrl.offpolicy.agents.Iql`, whose options these are."""

    def __init__(
        self, about: AgentSpec, seed: int, *, expectile: float, beta: float, most: float, hidden: int, layers: int,
        lr: float, tau: float, decay: int, init: str | None = None,
    ):  # fmt: skip
        self.gamma, self.scale = about.gamma, Scale(about)
        self.expectile, self.beta, self.most = expectile, beta, most
        self.actor = Imitator(about, seed, hidden=hidden, layers=layers, lr=lr, decay=decay)
        self.critics = Valued(about, seed, hidden=hidden, layers=layers, lr=lr, tau=tau)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed + 1)
            self.value = Critics(about.state, hidden=hidden, layers=layers, members=1)
        if init:
            networks.begin(init, about, self.actor.policy.model, self.critics.critics, self.value)
            follow(self.critics.target, self.critics.critics, 1.0)
        self.optimizer = torch.optim.Adam(self.value.parameters(), lr=lr, fused=True)

    def update(self, batch: Transitions) -> dict[str, float]:
        """The value, the actor, the critics, in the order of the authors' code."""
        state, unit = self.scale.state(batch.state), self.scale.unit(batch.action)
        worth = self.critics.worth(state, unit, slow=True)
        value_loss = expectile(worth - self.value(state)[0], self.expectile).mean()
        climb(self.optimizer, value_loss, self.value.parameters())
        with torch.no_grad():
            value = self.value(state)[0]
        advantage = worth - value
        weight = weights(advantage, self.beta, self.most)
        actor_loss = self.actor.step(batch, weight)
        critic_loss = self.critics.step(state, unit, self.targets(batch))
        return {
            "critic_loss": critic_loss, "value_loss": value_loss.item(), "actor_loss": actor_loss,
            "value": value.mean().item(), "advantage_std": advantage.std().item(), "weight": weight.mean().item(),
            "weight_clipped": (weight >= self.most).float().mean().item(),
        }  # fmt: skip

    @torch.no_grad()
    def targets(self, batch: Transitions) -> Tensor:
        """float32 [B]: the reward and the discounted value of the state that follows, 0 where nothing does."""
        following = self.value(self.scale.state(batch.next_state))[0]
        return torch.from_numpy(batch.reward) + torch.from_numpy(batch.discount(self.gamma)) * following

    def components(self) -> Mapping[str, Any]:
        return {"actor": self.actor, "critics": self.critics, "value": self.value, "optimizer": self.optimizer}


# Advantage-weighted actor-critic (arXiv 2006.09359) over chunks.


class WeightedActorCritic(CompositeState):
    """See `vlrl.offpolicy.agents.Awac`, whose options these are."""

    def __init__(
        self, about: AgentSpec, seed: int, *, temperature: float, most: float, hidden: int, layers: int, lr: float,
        tau: float, decay: int,
    ):  # fmt: skip
        self.gamma, self.scale = about.gamma, Scale(about)
        self.temperature, self.most = temperature, most
        self.actor = Imitator(about, seed, hidden=hidden, layers=layers, lr=lr, decay=decay)
        self.critics = Valued(about, seed, hidden=hidden, layers=layers, lr=lr, tau=tau)

    def update(self, batch: Transitions) -> dict[str, float]:
        """The critics, then the actor."""
        state, unit = self.scale.state(batch.state), self.scale.unit(batch.action)
        critic_loss = self.critics.step(state, unit, self.targets(batch))
        own = self.critics.worth(state, self.actor.draw(batch.state), slow=False)
        advantage = self.critics.worth(state, unit, slow=False) - own
        weight = weights(advantage, 1 / self.temperature, self.most)
        actor_loss = self.actor.step(batch, weight)
        return {
            "critic_loss": critic_loss, "actor_loss": actor_loss, "value": own.mean().item(),
            "advantage_std": advantage.std().item(), "weight": weight.mean().item(),
            "weight_clipped": (weight >= self.most).float().mean().item(),
        }  # fmt: skip

    def targets(self, batch: Transitions) -> Tensor:
        """float32 [B]: the reward and the discounted value of the actor's own next action."""
        following = self.actor.draw(batch.next_state)
        worth = self.critics.worth(self.scale.state(batch.next_state), following, slow=True)
        return torch.from_numpy(batch.reward) + torch.from_numpy(batch.discount(self.gamma)) * worth

    def components(self) -> Mapping[str, Any]:
        return {"actor": self.actor, "critics": self.critics}


# Advantage-conditioned imitation by a flow (RECAP, arXiv 2511.14759).


def indicate(advantage: Tensor, person: Tensor, share: float) -> Tensor:
    """1 of the `share` of highest advantages [B] and of a person's [B], else -1."""
    return torch.where((advantage > advantage.quantile(1 - share)) | person, 1.0, -1.0)


class AdvantageConditioned(CompositeState):
    """See `vlrl.offpolicy.agents.Recap`, whose options these are."""

    def __init__(
        self, about: AgentSpec, seed: int, *, positive: float, dropout: float, guidance: float, bins: int, low: float,
        high: float, hidden: int, layers: int, lr: float,
    ):  # fmt: skip
        if about.base:
            raise UserError(f"start: agent (recap) trains a flow of `vlrl clone`, not lerobot's: {about.start}")
        self.gamma, self.scale, self.positive, self.dropout = about.gamma, Scale(about), positive, dropout
        self.generator, self.head = torch.Generator().manual_seed(seed), HLGauss(low, high, bins)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.policy = GuidedPolicy(_indicating(Path(str(about.start)), seed), guidance)
            self.value = networks.trunk(about.state, hidden, layers).append(torch.nn.Linear(hidden, bins))
        networks.check_start(about, self.policy.shape)
        self.flow = self.policy.inner.model
        learned = (self.value, self.flow)
        self.optimizers = [torch.optim.Adam(part.parameters(), lr=lr, fused=True) for part in learned]

    def act(self, state: np.ndarray, explore: bool) -> np.ndarray:
        return self.policy.chunks(state, greedy=not explore)

    def warm(self, state: np.ndarray, *observations: Any) -> np.ndarray:
        """As it plays: at first the flow that it starts from."""
        return self.act(state, True)

    def update(self, online: Transitions | None, offline: Transitions | None) -> dict[str, float]:
        """A step of the value towards returns, and one of the flow towards chunks and their indicators."""
        batch = concat([part for part in (online, offline) if part is not None])
        output = self.value(self.scale.state(batch.state))
        value_loss = self.head.loss(output, torch.from_numpy(batch.returns), output)
        climb(self.optimizers[0], value_loss, self.value.parameters())
        advantage = self.advantages(batch)
        indicator = indicate(advantage, torch.from_numpy(batch.person), self.positive)
        actor_loss = self.imitation(batch, indicator)
        climb(self.optimizers[1], actor_loss, self.flow.parameters())
        return {
            "value_loss": value_loss.item(), "actor_loss": actor_loss.item(),
            "value": self.head.values(output.detach()).mean().item(), "advantage_std": advantage.std().item(),
            "positive": (indicator > 0).float().mean().item(),
        }  # fmt: skip

    @torch.no_grad()
    def advantages(self, batch: Transitions) -> Tensor:
        """float32 [B]: r + gamma^ticks V(s') - V(s), where V of what ended the job is 0."""
        value, following = (
            self.head.values(self.value(self.scale.state(each))) for each in (batch.state, batch.next_state)
        )
        return torch.from_numpy(batch.reward) + torch.from_numpy(batch.discount(self.gamma)) * following - value

    def imitation(self, batch: Transitions, indicator: Tensor) -> Tensor:
        """The flow's mean squared error of what was carried out, told the indicators [B] but for some left out."""
        self.flow.train()
        count, unit = len(indicator), self.scale.unit(batch.action)
        condition = indicator * (torch.rand(count, generator=self.generator) >= self.dropout)
        noise, time = (torch.randn(unit.shape, generator=self.generator), torch.rand(count, generator=self.generator))
        off = errors(self.flow, indicated(torch.from_numpy(batch.state), condition), unit, noise, time)
        return (off * carried(batch)).sum() / carried(batch).sum()

    def save(self, folder: Path) -> None:
        self.policy.save(folder)

    def components(self) -> Mapping[str, Any]:
        value, flow = self.optimizers
        return {"value": self.value, "flow": self.flow, "value_optimizer": value, "flow_optimizer": flow}

    def state_dict(self) -> dict[str, Any]:
        generators = [each.get_state() for each in (self.generator, self.policy.inner.generator)]
        return super().state_dict() | {"generators": generators}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        for generator, saved in zip((self.generator, self.policy.inner.generator), state["generators"], strict=True):
            generator.set_state(saved)


def _indicating(folder: Path, seed: int) -> FlowPolicy:
    """The flow of an earlier run of this agent, or one that `vlrl clone` made, with an indicator."""
    if described(str(folder)).get("model_type") == GUIDED_FAMILY:
        return load_guided(folder, seed=seed, key="start").inner
    return indicating(load_flow(folder, seed=seed, key="start"), seed)


# One policy from two kinds of data, by meta-learning (MOORL, arXiv 2506.09574; Reptile, arXiv 1803.02999).


class ReptileSac(Agent):
    """An actor and critics, which move a little towards what an inner soft actor-critic makes of one kind of data.

    Args:
        inner: updates on one kind of data, from the actor and critics on.
        rate: how far these then move: phi <- phi + rate (inner phi - phi).
    """

    def __init__(self, about: AgentSpec, seed: int, settings: RlpdSettings, inner: int, rate: float):
        self.sac, self.inner, self.rate = Sac(about, seed, settings), inner, rate
        self.policy = ActorPolicy(copy.deepcopy(self.sac.policy.model), seed=seed)  # plays, and is saved
        self.critics = copy.deepcopy(self.sac.critics)
        self.left, self.given = 0, False  # updates until they move; on which data

    def act(self, state: np.ndarray, explore: bool) -> np.ndarray:
        return self.policy.chunks(state, greedy=not explore)

    def update(self, online: Transitions | None, offline: Transitions | None) -> dict[str, float]:
        """An inner update on the half of the batch whose turn it is, or on the one that there is."""
        if not self.left:
            self.left, self.given = self.inner, bool(torch.rand((), generator=self.sac.generator) < 0.5)
        there = online is None or (self.given and offline is not None)
        stats = self.sac.update(offline if there else online)
        self.left -= 1
        if not self.left:
            self._move()
        return stats | {"given_share": float(there)}

    def _move(self) -> None:
        """The actor and critics follow the inner ones, which begin again from there."""
        for own, inner in ((self.policy.model, self.sac.policy.model), (self.critics, self.sac.critics)):
            follow(own, inner, self.rate)
            inner.load_state_dict(own.state_dict())

    def save(self, folder: Path) -> None:
        self.policy.save(folder)

    def state_dict(self) -> dict[str, Any]:
        return {
            "sac": self.sac.state_dict(), "networks": [self.policy.model.state_dict(), self.critics.state_dict()],
            "generator": self.policy.generator.get_state(), "left": self.left, "given": self.given,
        }  # fmt: skip

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.sac.load_state_dict(state["sac"])
        for part, saved in zip((self.policy.model, self.critics), state["networks"], strict=True):
            part.load_state_dict(saved)
        self.policy.generator.set_state(state["generator"])
        self.left, self.given = state["left"], state["given"]


# Auto-regressive soft Q-learning over chunks (ARSQ, arXiv 2502.00288): values, advantages and how they learn.
#
# With the soft value V and the distribution pi of a chunk's choices, Q(s, a) = V(s) + alpha log pi(a | s), so V is
# alpha logsumexp(Q / alpha) whatever is learned; both parts fall out of one regression to r + gamma V(s').
#
# From the paper, by its abstract and a summary of its body: the decomposition, the hard normalisation, that loss, the
# margin of imitation and the smaller of two values in the targets. Reconstructed, as the body was not to be had: sizes,
# temperature, the margin, the network of prefixes, one distribution for both
# values (the paper has two, and acts by the smaller), and that only chunks that were given are imitated.


@dataclass(frozen=True)
class ArsqSettings:
    """See `vlrl.offpolicy.agents.arsq`."""

    levels: int = 2
    bins: int = 5
    hidden: int = 256
    layers: int = 2
    values: int = 2
    lr: float = 3e-4
    tau: float = 0.005
    temperature: float = 1e-3
    imitation: float = 1.0
    margin: float = 3e-3


class Arsq(Agent):
    """The agent (`vlrl.methods.Agent`)."""

    def __init__(self, about: AgentSpec, seed: int, settings: ArsqSettings):
        self.settings, self.gamma, self.scale = settings, about.gamma, Scale(about)
        sizes = {"hidden": settings.hidden, "layers": settings.layers}
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.policy = ArsqPolicy(_advantages(about, settings), seed=seed)
            self.values = Critics(about.state, members=settings.values, **sizes)
        self.target = copy.deepcopy(self.values).requires_grad_(False)
        self.learned = [*self.policy.model.parameters(), *self.values.parameters()]
        self.optimizer = torch.optim.Adam(self.learned, lr=settings.lr, fused=True)

    def act(self, state: np.ndarray, explore: bool) -> np.ndarray:
        return self.policy.chunks(state, greedy=not explore)

    def update(self, online: Transitions | None, offline: Transitions | None) -> dict[str, float]:
        batch = concat([part for part in (online, offline) if part is not None])
        codes = self.policy.model.grid.codes(self.scale.unit(batch.action))
        advantages = self.policy.model(torch.from_numpy(batch.state), codes)
        values = self.values(self.scale.state(batch.state))
        worth = values + chosen(advantages, codes).sum(1)
        loss = 0.5 * (worth - self.targets(batch)).square().mean()
        demonstrations = slice(len(batch) - (0 if offline is None else len(offline)), None)
        apart = imitation(advantages[demonstrations], codes[demonstrations], self.settings.margin)
        climb(self.optimizer, loss + self.settings.imitation * apart, self.learned)
        follow(self.target, self.values, self.settings.tau)
        entropy = -(advantages.detach() * (advantages.detach() / self.policy.model.alpha).exp()).sum(-1).sum(1).mean()
        stats = {"critic_loss": 2 * loss.item(), "value": values.mean().item()}
        return stats | {"imitation": apart.item(), "entropy": entropy.item() / self.policy.model.alpha}

    @torch.no_grad()
    def targets(self, batch: Transitions) -> Tensor:
        """float32 [B]: the reward and the discounted soft value of what follows, the smallest, 0 where nothing does."""
        following = self.target(self.scale.state(batch.next_state)).amin(0)
        return torch.from_numpy(batch.reward) + torch.from_numpy(batch.discount(self.gamma)) * following

    def state_dict(self) -> dict[str, Any]:
        return {
            "networks": [part.state_dict() for part in (self.policy.model, self.values, self.target)],
            "optimizer": self.optimizer.state_dict(), "generator": self.policy.generator.get_state(),
        }  # fmt: skip

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for part, saved in zip((self.policy.model, self.values, self.target), state["networks"], strict=True):
            part.load_state_dict(saved)
        self.optimizer.load_state_dict(state["optimizer"])
        self.policy.generator.set_state(state["generator"])

    def save(self, folder: Path) -> None:
        self.policy.save(folder)


def chosen(advantages: Tensor, codes: Tensor) -> Tensor:
    """Those [B, D] of the bins codes int64 [B, D], of all [B, D, bins]."""
    return advantages.gather(-1, codes[..., None])[..., 0]


def imitation(advantages: Tensor, codes: Tensor, margin: float) -> Tensor:
    """How far other bins come within `margin` of those shown: 0 where none does; the mean over chunks and choices."""
    if not len(codes):
        return advantages.sum()  # of nothing
    above = advantages - chosen(advantages, codes)[..., None]
    others = torch.ones_like(above).scatter_(-1, codes[..., None], 0)
    return ((above + margin).clamp(min=0) * others).sum(-1).mean()


def _advantages(about: AgentSpec, settings: ArsqSettings) -> Advantages:
    """A new network, or the one to start from.

    Raises:
        UserError: that is none, or of another form.
    """
    shape = shape_of(about, settings)
    model = Advantages(shape, Grid(shape.chunk * len(shape.low), settings.levels, settings.bins), settings.temperature)
    if about.start is None:
        model.mean.copy_(torch.as_tensor(about.mean))
        model.spread.copy_(torch.as_tensor(about.spread))
        return model
    base_model = load_arsq(Path(about.start), seed=0, key="start").model
    if (base_model.shape, base_model.grid, base_model.alpha) != (shape, model.grid, model.alpha):
        raise UserError(
            f"start: {about.start} was made for another robot, task.chunk, or agent.hidden, layers, levels, bins or "
            f"temperature: {base_model.shape}, {base_model.grid}, {base_model.alpha}"
        )
    return base_model
