"""Auto-regressive soft Q-learning over chunks (ARSQ, arXiv 2502.00288): values, advantages and how they learn.

With the soft value V and the distribution pi of a chunk's choices, Q(s, a) = V(s) + alpha log pi(a | s), so V is alpha
logsumexp(Q / alpha) whatever is learned; both parts fall out of one regression to r + gamma V(s').

From the paper, by its abstract and a summary of its body: the decomposition, the hard normalisation, that loss, the
margin of imitation and the smaller of two values in the targets. Reconstructed, as the body was not to be had: sizes,
temperature, the margin, the network of prefixes, one distribution for both
values (the paper has two, and acts by the smaller), and that only chunks that were given are imitated.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vlrl.methods import Agent
from vlrl.offpolicy.base import AgentSpec, Transitions, concat
from vlrl.offpolicy.networks import Critics, Scale, climb, follow, shape_of
from vlrl.policies.arsq import Advantages, ArsqPolicy, Grid, load_arsq
from vlrl.types import UserError


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
