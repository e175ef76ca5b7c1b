"""Soft actor-critic over chunks (arXiv 1801.01290, 1812.05905), with the choices of RLPD (arXiv 2302.02948)."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from vlrl.methods import Agent
from vlrl.offpolicy import networks
from vlrl.offpolicy.base import AgentSpec, Transitions, concat
from vlrl.offpolicy.networks import Critics, Scale, check_start, climb, follow, make_actor, shape_of
from vlrl.policies.loading import load_base
from vlrl.policies.residual import CorrectedPolicy, PlannedState
from vlrl.policies.robot_common import ActorPolicy
from vlrl.types import UserError


@dataclass(frozen=True)
class RlpdSettings:
    """See `vlrl.offpolicy.agents.Rlpd`."""

    hidden: int = 256
    layers: int = 2
    critics: int = 2
    subset: int = 2
    cta_ratio: int = 2
    lr: float = 3e-4
    tau: float = 0.005
    temperature: float = 0.01
    target_entropy: float = -0.5
    entropy_backup: bool = False
    imitation: float = 0.0
    climbs: str = "mean"
    init: str | None = None


class Law(Protocol):
    """A policy that can be learned: an actor, or one that builds on something frozen (`vlrl.policies.residual`)."""

    model: Any  # all that is learned of it: a `vlrl.policies.robot_common.Actor`
    generator: torch.Generator  # of what it plays

    def draw(self, state: np.ndarray, generator: torch.Generator, *features: Tensor) -> tuple[Tensor, Tensor]:
        """Chunks in [-1, 1] [B, K*A] for states float32 [B, S], and log-densities [B], both with gradient.

        Args:
            features: [B, F] of images, where its actor has eyes.
        """
        ...


class Sac:
    """The networks and how they learn; `policy` is what acts and is saved.

    Images are encoded by the actor's eyes, which the critics' loss trains, of images shifted at random, and nothing
    else (DrQ, arXiv 2004.13649; SERL, 2401.16013). Targets encode with the eyes as they are (DrQ-v2, 2107.09645).

    Args:
        policy: whose draws are valued and climb the values. None: an actor of `settings`.
    """

    def __init__(self, about: AgentSpec, seed: int, settings: RlpdSettings, policy: Law | None = None):
        self.settings, self.gamma, self.scale = settings, about.gamma, Scale(about)
        self.generator = torch.Generator().manual_seed(seed)
        size, self.encoder = about.chunk * len(about.low), about.encoder
        if settings.init and about.encoder:
            raise UserError("agent.init: a trunk of `vlrl pretrain` sees the state alone: leave out init, or encoder")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.policy = policy or ActorPolicy(make_actor(about, settings), seed=seed)
            eyes = self.policy.model.eyes
            self.critics = Critics(
                about.state + (eyes.size if eyes else 0) + size,
                hidden=settings.hidden,
                layers=settings.layers,
                members=settings.critics,
            )
        if settings.init:
            networks.begin(settings.init, about, self.policy.model, self.critics)
        self.target = copy.deepcopy(self.critics).requires_grad_(False)
        self.log_alpha = nn.Parameter(torch.tensor(math.log(settings.temperature)))
        shape = self.policy.model.shape
        self.target_entropy = settings.target_entropy * shape.chunk * len(shape.low)
        self.learned = [self.critics, self.policy.model, nn.ParameterList([self.log_alpha])]
        sight = list(eyes.parameters()) if eyes else []
        model = [each for name, each in self.policy.model.named_parameters() if not name.startswith("eyes.")]
        self.groups = [[*self.critics.parameters(), *sight], model, [self.log_alpha]]
        self.optimizers = [torch.optim.Adam(group, lr=settings.lr, fused=True) for group in self.groups]
        self.updates = 0

    def features(self, images: np.ndarray) -> list[Tensor]:
        """What the eyes make of images uint8 [B, P] shifted at random, one float32 [B, F]; [] without eyes."""
        if not self.encoder:
            return []
        eyes = self.policy.model.eyes
        views = [
            networks.shift_randomly(view, self.encoder.shift, self.generator)
            for view in eyes.split(torch.from_numpy(images))
        ]
        return [eyes.encode(views)]

    def update(self, batch: Transitions, given: int = 0) -> dict[str, float]:
        """A step of the critics, and every `cta_ratio`-th time one of the actor and the temperature.

        Args:
            given: how many rows, at the end, were given and may be imitated.
        """
        state, action = self.scale.state(batch.state), self.scale.unit(batch.action)
        aim, features = self.targets(batch), self.features(batch.images)
        values = self.critics(torch.cat([state, *features, action], 1))
        loss = (values - aim).square().mean(1).sum()
        climb(self.optimizers[0], loss, self.groups[0])
        follow(self.target, self.critics, self.settings.tau)
        self.updates += 1
        stats = {"critic_loss": loss.item() / len(values), "value": values.mean().item()}
        if self.updates % self.settings.cta_ratio:
            return stats
        demonstrations = slice(len(batch) - given, None)
        return stats | self._improve(
            batch, [state, *(each.detach() for each in features)], demonstrations, action[demonstrations],
            values.detach().mean(0)[demonstrations],
        )  # fmt: skip

    @torch.no_grad()
    def targets(self, batch: Transitions) -> Tensor:
        """float32 [B]: the reward and the discounted value of what follows, 0 where nothing does."""
        features = self.features(batch.next_images)
        following, logp = self.policy.draw(batch.next_state, self.generator, *features)
        chosen = torch.randperm(self.settings.critics, generator=self.generator)[: self.settings.subset]
        inputs = torch.cat([self.scale.state(batch.next_state), *features, following], 1)
        values = self.target(inputs)[chosen].amin(0)
        if self.settings.entropy_backup:
            values = values - self.log_alpha.exp() * logp
        return torch.from_numpy(batch.reward) + torch.from_numpy(batch.discount(self.gamma)) * values

    def _improve(
        self, batch: Transitions, inputs: list[Tensor], shown: slice, demonstrated: Tensor, their_worth: Tensor
    ) -> dict[str, float]:
        """A step of the actor and the temperature; the `shown` rows are also imitated where they are worth more.

        Args:
            inputs: what critics see beside an action: scaled states, and features of images.
        """
        action, logp = self.policy.draw(batch.state, self.generator, *inputs[1:])
        alpha = self.log_alpha.exp().detach()
        worth = self.critics(torch.cat([*inputs, action], 1))
        worth = worth.mean(0) if self.settings.climbs == "mean" else worth.amin(0)
        loss = (alpha * logp - worth).mean()
        if self.settings.imitation and len(demonstrated):
            apart = (action[shown] - demonstrated).square().mean(1)
            loss = loss + self.settings.imitation * (apart * (their_worth > worth[shown])).mean()
        climb(self.optimizers[1], loss, self.groups[1])
        entropy = -logp.detach().mean()
        climb(self.optimizers[2], self.log_alpha.exp() * (entropy - self.target_entropy), self.groups[2])
        return {"actor_loss": loss.item(), "entropy": entropy.item(), "temperature": alpha.item()}

    def state_dict(self) -> dict[str, Any]:
        return {
            "networks": [part.state_dict() for part in (*self.learned, self.target)],
            "optimizers": [each.state_dict() for each in self.optimizers],
            "generators": [self.generator.get_state(), self.policy.generator.get_state()],
            "updates": self.updates,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for part, saved in zip((*self.learned, self.target), state["networks"], strict=True):
            part.load_state_dict(saved)
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        for generator, saved in zip((self.generator, self.policy.generator), state["generators"], strict=True):
            generator.set_state(saved)
        self.updates = state["updates"]


# Soft actor-critic whose actor corrects a frozen policy (Policy Decorator, arXiv 2412.13630).


class ResidualSac(Agent):
    """The agent (`vlrl.methods.Agent`).

    The critics value chunks as they are carried out, so that whatever was done, by whomever, teaches them. What is
    shown may be out of the corrections' reach: it is then imitated as far as they reach.

    Args:
        scale: of a correction of 1, in halves of the limits' width.
        hold: ticks of a correction.
        ramp: ticks until all decisions are corrected; their share grows evenly from 0.
    """

    def __init__(self, about: AgentSpec, seed: int, settings: RlpdSettings, scale: float, hold: int, ramp: int):
        self.policy = make_residual_policy(about, seed, settings, scale, hold)
        self.sac, self.ramp, self.ticks = Sac(about, seed, settings, self.policy), ramp, 0
        self.generator = torch.Generator().manual_seed(seed)

    def warm(self, state: np.ndarray, *observations: Any) -> np.ndarray:
        """The base's own chunks: values begin with what it is worth."""
        return self.policy.physical(self.policy.planned(state))

    def act(self, state: np.ndarray, explore: bool) -> np.ndarray:
        chunks = self.policy.chunks(state, greedy=not explore)
        if not explore:
            return chunks
        bare = torch.rand(len(state), generator=self.generator).numpy() >= self.share
        if bare.any():
            chunks[bare] = self.warm(state[bare])
        self.ticks += chunks.shape[0] * chunks.shape[1]
        return chunks

    @property
    def share(self) -> float:
        """Of the decisions that are corrected while it explores."""
        return min(1.0, self.ticks / self.ramp) if self.ramp else 1.0

    def update(self, online: Transitions | None, offline: Transitions | None) -> dict[str, float]:
        batch = concat([part for part in (online, offline) if part is not None])
        stats = self.sac.update(batch, given=0 if offline is None else len(offline))
        return stats | {"share": self.share}

    def state_dict(self) -> dict[str, Any]:
        return {"sac": self.sac.state_dict(), "generator": self.generator.get_state(), "ticks": self.ticks}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.sac.load_state_dict(state["sac"])
        self.generator.set_state(state["generator"])
        self.ticks = state["ticks"]

    def save(self, folder: Path) -> None:
        self.policy.save(folder)


def make_residual_policy(
    about: AgentSpec, seed: int, settings: RlpdSettings, scale: float, hold: int
) -> CorrectedPolicy:
    """What `start` names, with corrections whose means are 0.

    Raises:
        UserError: `start` holds no such policy, one for another robot, or with shorter chunks; or `hold` does not fit.
    """
    if about.chunk % hold:
        raise UserError(f"agent.hold: chunks of task.chunk = {about.chunk} ticks are no multiple of {hold}")
    base = PlannedState(shape_of(about, settings)) if about.base else load_base(about.start, "cpu", "start")
    check_start(about, base.shape, longer=True)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed + 1)
        policy = CorrectedPolicy(shape_of(about, settings), base, scale, hold, seed=seed)
    actor = policy.model
    nn.init.zeros_(actor.head.weight[: len(actor.head.weight) // 2])  # the means
    actor.mean[: about.state] = torch.as_tensor(about.mean)
    actor.spread[: about.state] = torch.as_tensor(about.spread)
    return policy
