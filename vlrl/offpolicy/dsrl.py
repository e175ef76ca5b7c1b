"""What steering by noise (DSRL, arXiv 2506.15799) needs: the frozen flow, its noise, and which noise made a chunk."""

from __future__ import annotations

import copy
import hashlib
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from vlrl.methods import Agent
from vlrl.offpolicy.base import AgentSpec, Transitions, concat
from vlrl.offpolicy.networks import Critics, Scale, check_start, climb, follow
from vlrl.offpolicy.sac import RlpdSettings as SacSettings
from vlrl.offpolicy.sac import Sac
from vlrl.policies.encoded import NOISE
from vlrl.policies.flow import FlowPolicy, SteeredPolicy, load_flow, noise_shape
from vlrl.policies.robot_common import Actor, ActorPolicy
from vlrl.types import UserError

DIGEST = 16  # bytes


def frozen(about: AgentSpec) -> FlowPolicy:
    """The flow policy that is built on.

    Raises:
        UserError: `start` holds none, or one for another robot.
    """
    base = load_flow(Path(about.start), seed=0, key="start")
    base.model.requires_grad_(False).eval()
    check_start(about, base.shape)
    return base


def of_noise(about: AgentSpec, bound: float, size: tuple[int, int]) -> AgentSpec:
    """The same, for an agent whose controls are the noise of `size`, ticks and numbers, within -bound and bound."""
    high = np.full(size[1], bound, np.float32)
    names = (NOISE,) * size[1]
    return replace(about, chunk=size[0], controls=names, low=-high, high=high, units=(), start=None, base=None)


def natural(shape: tuple[int, ...], bound: float, generator: torch.Generator) -> Tensor:
    """Noise as the flow has seen it, N(0, 1), given that it is within -bound and bound."""
    even = torch.rand(shape, generator=generator, dtype=torch.float64) * 2 - 1
    inside = math.erf(bound / math.sqrt(2))  # the share of N(0, 1)
    return (torch.erfinv(even * inside) * math.sqrt(2)).float().clamp(-bound, bound)


class Book:
    """The noise of the latest `capacity` chunks that were played, found again by state and chunk."""

    def __init__(self, capacity: int):
        self.capacity, self.added = capacity, 0
        self._keys: list[bytes] = []
        self._noise: list[np.ndarray] = []
        self._places: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._keys)

    def note(self, state: np.ndarray, chunk: np.ndarray, noise: np.ndarray) -> None:
        """States [B, S], chunks and noise [B, K, A]."""
        for key, row in zip(_keys(state, chunk), noise.astype(np.float32), strict=True):
            place = self.added % self.capacity
            if place == len(self._keys):
                self._keys.append(key)
                self._noise.append(row)
            else:
                if self._places.get(self._keys[place]) == place:
                    del self._places[self._keys[place]]
                self._keys[place], self._noise[place] = key, row
            self._places[key] = place
            self.added += 1

    def find(self, state: np.ndarray, chunk: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Whether it is known, bool [B], and the noise of those that are, float32 [M, K, A]."""
        places = [self._places.get(key) for key in _keys(state, chunk)]
        noises = [self._noise[place] for place in places if place is not None]
        return np.array([place is not None for place in places]), np.stack(noises) if noises else chunk[:0]

    def state_dict(self) -> dict[str, Any]:
        if not self._keys:
            return {"added": 0}
        keys = np.frombuffer(b"".join(self._keys), np.uint8).reshape(-1, DIGEST)
        return {
            "added": self.added, "keys": torch.from_numpy(keys.copy()), "noise": torch.from_numpy(np.stack(self._noise))
        }  # fmt: skip

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.added = state["added"]
        self._keys = [row.tobytes() for row in state["keys"].numpy()] if self.added else []
        self._noise = list(state["noise"].numpy()) if self.added else []
        first = self.added % self.capacity if len(self._keys) == self.capacity else 0
        order = [(first + i) % len(self._keys) for i in range(len(self._keys))]  # the latest of equals counts
        self._places = {self._keys[place]: place for place in order}


def _keys(state: np.ndarray, chunk: np.ndarray) -> list[bytes]:
    rows = zip(np.asarray(state, np.float32), np.asarray(chunk, np.float32), strict=True)
    return [hashlib.blake2b(s.tobytes() + c.tobytes(), digest_size=DIGEST).digest() for s, c in rows]


# Noise-aliased steering of a frozen flow (DSRL-NA, arXiv 2506.15799): values of chunks, and of noise behind them.


@dataclass(frozen=True)
class DsrlSettings:
    """See `vlrl.offpolicy.agents.dsrl_na`."""

    bound: float = 1.5
    noise_steps: int = 10
    hidden: int = 256
    layers: int = 2
    critics: int = 2
    lr: float = 3e-4
    tau: float = 0.005
    temperature: float = 0.01
    target_entropy: float = 0.0
    entropy_backup: bool = False


class NoiseAliased(Agent):
    """The agent (`vlrl.methods.Agent`). Its critics value chunks, so it learns from any transitions."""

    def __init__(self, about: AgentSpec, seed: int, settings: DsrlSettings):
        if about.base:
            raise UserError("agent (dsrl_na) asks its flow about each batch, which has no images: take dsrl_sac")
        base = frozen(about)
        self.settings, self.gamma, self.scale = settings, about.gamma, Scale(about)
        self.generator = torch.Generator().manual_seed(seed)
        sizes = {"hidden": settings.hidden, "layers": settings.layers}
        size = about.chunk * len(about.low)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            actor = Actor(noise_shape(base.shape, settings.bound, **sizes))
            # of a state and a chunk; of a state and noise, in units of the bound
            self.critics, self.noise_critics = (
                Critics(about.state + size, members=settings.critics, **sizes) for _ in range(2)
            )
        actor.mean.copy_(torch.as_tensor(about.mean))
        actor.spread.copy_(torch.as_tensor(about.spread))
        self.policy = SteeredPolicy(ActorPolicy(actor, seed=seed), base)
        self.target = copy.deepcopy(self.critics).requires_grad_(False)
        self.log_alpha = nn.Parameter(torch.tensor(math.log(settings.temperature)))
        self.target_entropy = settings.target_entropy * size
        self.learned = [self.critics, self.noise_critics, actor, nn.ParameterList([self.log_alpha])]
        self.optimizers = [torch.optim.Adam(part.parameters(), lr=settings.lr, fused=True) for part in self.learned]

    def warm(self, state: np.ndarray, *observations: Any) -> np.ndarray:
        """The flow's own chunks."""
        base = self.policy.base
        return base.chunks(state, natural((len(state), *base.size), self.settings.bound, self.generator).numpy())

    def act(self, state: np.ndarray, explore: bool) -> np.ndarray:
        return self.policy.chunks(state, greedy=not explore)

    def update(self, online: Transitions | None, offline: Transitions | None) -> dict[str, float]:
        batch = concat([part for part in (online, offline) if part is not None])
        state, raw = self.scale.state(batch.state), torch.from_numpy(batch.state)
        values = self.critics(torch.cat([state, self.scale.unit(batch.action)], 1))
        loss = (values - self.targets(batch)).square().mean(1).sum()
        climb(self.optimizers[0], loss, self.critics.parameters())
        follow(self.target, self.critics, self.settings.tau)
        fitted = [self._fit(state, raw) for _ in range(self.settings.noise_steps)]
        stats = {"critic_loss": loss.item() / len(values), "value": values.mean().item()}
        return stats | {"noise_critic_loss": sum(fitted) / len(fitted)} | self._improve(state, raw)

    @torch.no_grad()
    def targets(self, batch: Transitions) -> Tensor:
        """float32 [B]: the reward and the discounted value of the chunk that the actor's noise makes next."""
        following = torch.from_numpy(batch.next_state)
        noise, logp = self.policy.steering.model.draw(following, self.generator)
        chunk = self.policy.base.unit(following, self.settings.bound * noise)
        values = self.target(torch.cat([self.scale.state(batch.next_state), chunk], 1)).amin(0)
        if self.settings.entropy_backup:
            values = values - self.log_alpha.exp() * logp
        return torch.from_numpy(batch.reward) + torch.from_numpy(batch.discount(self.gamma)) * values

    def _fit(self, state: Tensor, raw: Tensor) -> float:
        """A step of the noise critics towards the critics' values of the chunks that noise of the flow's own makes."""
        size = self.policy.base.shape.chunk * len(self.policy.base.shape.low)
        noise = torch.randn(len(raw), size, generator=self.generator)
        with torch.no_grad():
            aim = self.critics(torch.cat([state, self.policy.base.unit(raw, noise)], 1))
        loss = (self.noise_critics(torch.cat([state, noise / self.settings.bound], 1)) - aim).square().mean(1).sum()
        climb(self.optimizers[1], loss, self.noise_critics.parameters())
        return loss.item() / len(aim)

    def _improve(self, state: Tensor, raw: Tensor) -> dict[str, float]:
        """A step of the actor, up the noise critics, and of the temperature."""
        noise, logp = self.policy.steering.model.draw(raw, self.generator)
        alpha = self.log_alpha.exp().detach()
        worth = self.noise_critics(torch.cat([state, noise], 1)).amin(0)
        loss = (alpha * logp - worth).mean()
        climb(self.optimizers[2], loss, self.policy.steering.model.parameters())
        entropy = -logp.detach().mean()
        climb(self.optimizers[3], self.log_alpha.exp() * (entropy - self.target_entropy), [self.log_alpha])
        return {"actor_loss": loss.item(), "entropy": entropy.item(), "temperature": alpha.item()}

    def state_dict(self) -> dict[str, Any]:
        return {
            "networks": [part.state_dict() for part in (*self.learned, self.target)],
            "optimizers": [each.state_dict() for each in self.optimizers],
            "generators": [self.generator.get_state(), self.policy.steering.generator.get_state()],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for part, saved in zip((*self.learned, self.target), state["networks"], strict=True):
            part.load_state_dict(saved)
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        for generator, saved in zip((self.generator, self.policy.steering.generator), state["generators"], strict=True):
            generator.set_state(saved)

    def save(self, folder: Path) -> None:
        self.policy.save(folder)


# Soft actor-critic whose actions are the noise of a frozen flow (DSRL-SAC, arXiv 2506.15799).


class NoiseSac(Agent):
    """The agent (`vlrl.methods.Agent`). Values are of a state and noise, so it learns from its own play alone.

    Transitions hold chunks; which noise made them the agent keeps itself.

    Args:
        held: whether one noise is that of all ticks.
    """

    def __init__(
        self, about: AgentSpec, seed: int, settings: SacSettings, bound: float, remembered: int, held: bool = False
    ):
        if held and not about.base:
            raise UserError("agent.held: a vlrl_flow has few ticks, each with noise of its own: leave it out")
        self.base, self.looks, self.bound = about.base, about.base is not None, bound
        flow = None if about.base else frozen(about)
        size = about.base.noise if about.base else flow.size
        if size is None:
            raise UserError(f"start: {about.start} plans without noise: take the agent residual")
        self.size = (1, size[1]) if held else size
        self.sac = Sac(of_noise(about, bound, self.size), seed, settings)
        self.policy = SteeredPolicy(self.sac.policy, flow) if flow else self.sac.policy
        self.book, self.generator = Book(remembered), torch.Generator().manual_seed(seed)

    def warm(self, state: np.ndarray, *observations: Any) -> np.ndarray:
        """The flow's own chunks."""
        noise = natural((len(state), *self.size), self.bound, self.generator).numpy()
        return self._played(state, noise, *observations)

    def act(self, state: np.ndarray, explore: bool, *observations: Any) -> np.ndarray:
        noise = self.sac.policy.chunks(state, greedy=not explore)
        return self._played(state, noise, *observations) if explore else self._chunks(state, noise, *observations)

    def update(self, online: Transitions | None, offline: Transitions | None) -> dict[str, float]:
        """One step on those transitions whose noise is known, if there are any.

        Left out are those that were given, a person's, and what chance played before there was an agent.

        Raises:
            UserError: nothing was played yet.
        """
        if online is None:
            raise UserError(
                "agent (dsrl_sac) learns from noise that it chose itself, which given transitions do not have: "
                "set offline=[] and updates=0, or take dsrl_na"
            )
        batch = concat([part for part in (online, offline) if part is not None])
        known, noise = self.book.find(batch.state, batch.action)
        if not known.any():
            return {"known": 0.0}
        kept = batch.take(known).columns() | {"action": noise}
        return self.sac.update(Transitions(**kept)) | {"known": float(known.mean())}

    def state_dict(self) -> dict[str, Any]:
        parts = {"sac": self.sac.state_dict(), "book": self.book.state_dict()}
        return parts | {"generator": self.generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.sac.load_state_dict(state["sac"])
        self.book.load_state_dict(state["book"])
        self.generator.set_state(state["generator"])

    def save(self, folder: Path) -> None:
        self.policy.save(folder)

    def _chunks(self, state: np.ndarray, noise: np.ndarray, *observations: Any) -> np.ndarray:
        return self.base.plan(observations[0], noise) if self.base else self.policy.base.chunks(state, noise)

    def _played(self, state: np.ndarray, noise: np.ndarray, *observations: Any) -> np.ndarray:
        chunk = self._chunks(state, noise, *observations)
        self.book.note(state, chunk, noise)
        return chunk
