"""A small flow policy for robots: from the state and noise to a chunk of controls. One noise is one chunk.

It imitates (`vlrl clone` with `policy.kind: flow`), is trained by RL with noise in each denoising step (`vlrl train`),
evaluated and served, and is what the agents `dsrl_sac` and `dsrl_na` of `vlrl offpolicy` steer by its noise
(arXiv 2506.15799). The agent `recap` makes one that is told how good a chunk is (arXiv 2511.14759).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from vlrl.decoders import load_json
from vlrl.policies import robot_common as common
from vlrl.policies.discrete import Level, to_level, weights_into
from vlrl.policies.generation import normals
from vlrl.policies.robot_common import FAR, Actor, ActorPolicy, ActorShape, ScoredPolicy, physical
from vlrl.types import Decision, Episode, Evaluation, Observation, Policy, Sample, Turn, UserError

# The network of `vlrl.policies.flow`: velocities that carry noise to chunks of controls, their loss and their use.
#
# Rectified flow (arXiv 2209.03003), which is conditional flow matching (arXiv 2210.02747) along straight lines. Chunks
# [B, D], D = K*A, have limits -1 and 1; time 0 is noise and time 1 a chunk, as in neither lerobot nor openpi.

WAVES = (1.0, 2.0, 4.0)  # half turns from time 0 to 1
Field = Callable[[Tensor, Tensor, Tensor], Tensor]  # state [B, S], place [B, D], time [B] -> velocity [B, D]


class Velocity(nn.Module):
    """Velocities float32 [B, D] at places [B, D] and times [B], for states [B, S] in physical units.

    Args:
        learns_noise: whether it also says how much noise a denoising step has (`DenoisingScorer`).
    """

    def __init__(self, shape: ActorShape, learns_noise: bool = False):
        super().__init__()
        self.shape = shape
        self.register_buffer("mean", torch.zeros(shape.state))
        self.register_buffer("spread", torch.ones(shape.state))
        self.register_buffer("waves", math.pi * torch.tensor(WAVES), persistent=False)
        size = shape.chunk * len(shape.low)
        widths = [shape.state + size + 2 * len(WAVES), *[shape.hidden] * shape.layers]
        layers = (layer for a, b in pairwise(widths) for layer in (nn.Linear(a, b), nn.LayerNorm(b), nn.SiLU()))
        self.body = nn.Sequential(*layers, nn.Linear(shape.hidden, size))
        self.noise = nn.Linear(shape.hidden, size) if learns_noise else None
        if self.noise:  # begins in the middle of its limits, everywhere alike
            nn.init.zeros_(self.noise.weight), nn.init.zeros_(self.noise.bias)

    def forward(self, state: Tensor, place: Tensor, time: Tensor) -> Tensor:
        return self.body[-1](self.features(state, place, time))

    def features(self, state: Tensor, place: Tensor, time: Tensor) -> Tensor:
        """float32 [B, hidden], what velocities and noise are read off."""
        normalized = ((state - self.mean) / self.spread).clamp(-FAR, FAR)
        angles = time[:, None] * self.waves
        return self.body[:-1](torch.cat([normalized, place, angles.sin(), angles.cos()], 1))


def errors(field: Field, state: Tensor, chunk: Tensor, noise: Tensor, time: Tensor) -> Tensor:
    """Squared errors [B, D] of a velocity half-way: between noise and chunk [B, D] it should be their difference."""
    place = noise + time[:, None] * (chunk - noise)
    return (field(state, place, time) - (chunk - noise)).square()


def integrate(field: Field, state: Tensor, noise: Tensor, steps: int) -> Tensor:
    """Noise [B, D] carried from time 0 to 1 in equal steps of Euler's method: no chance, so one noise is one chunk."""
    place = noise
    for step in range(steps):
        time = torch.full((len(place),), step / steps, device=place.device)
        place = place + field(state, place, time) / steps
    return place


# Denoising with noise in each step, so that a chunk has a probability: what is trained by RL.
#
# `sde` adds noise of standard deviation scale * sqrt(1 - t) to the flow and takes back by the drift what would change
# the distributions on the way (Flow-GRPO, arXiv 2505.05470, equation 9, with times turned round). Any such amount keeps
# them; Flow-GRPO's own, scale * sqrt((1 - t) / t), has no limit at t = 0. `learned` adds noise whose amount a head
# gives, between a quarter of `scale` and all of it (ReinFlow, arXiv 2505.22094, whose noise has a network of its own).

SCALE, QUIETEST = 0.3, 0.25  # of the noise, a control's limits being -1 and 1; of `scale`
LOG_2PI = math.log(2 * math.pi)


def sde_law(place: Tensor, velocity: Tensor, time: Tensor, steps: int, scale: float) -> tuple[Tensor, Tensor]:
    """Means and standard deviations [B, ...] of the place after a step of a flow's stochastic form.

    Args:
        place, velocity: [B, ...], the latter from noise to chunk.
        time: [B], below 1.
    """
    time = time.view(-1, *[1] * (place.dim() - 1))
    remaining = 1 - time
    # the score is -(place - t * velocity) / (1 - t); half the squared noise of it is the drift that is taken back
    drift = velocity - scale**2 / 2 * (place - time * velocity)
    return place + drift / steps, (scale * (remaining / steps).sqrt()).expand_as(place)


def denoising_law(
    model: Velocity, state: Tensor, place: Tensor, time: Tensor, steps: int, scale: float
) -> tuple[Tensor, Tensor]:
    """Means and standard deviations [B, D] of the place after a step, from places [B, D] at times [B] below 1.

    By the model's own noise where it learns some, else by the stochastic form of its flow.
    """
    hidden = model.features(state, place, time)
    velocity = model.body[-1](hidden)
    if model.noise is None:
        return sde_law(place, velocity, time, steps, scale)
    share = QUIETEST + (1 - QUIETEST) * model.noise(hidden).sigmoid()
    return place + velocity / steps, scale * share


def gaussian(place: Tensor, mean: Tensor, std: Tensor) -> tuple[Tensor, Tensor]:
    """Log-densities and entropies of each number, as `place`."""
    off, log_std = (place - mean) / std, std.log()
    return -0.5 * (off.square() + LOG_2PI) - log_std, 0.5 * (1 + LOG_2PI) + log_std


class DenoisingScorer(nn.Module):
    """Log-densities and entropies [B, N, D] of the N steps of denoising paths: what is trained and may be wrapped."""

    def __init__(self, model: Velocity, scale: float):
        super().__init__()
        self.model, self.scale = model, scale

    def forward(self, state: Tensor, path: Tensor) -> tuple[Tensor, Tensor]:
        """state: float32 [B, S]; path: places float32 [B, N + 1, D], from noise to the chunk."""
        batch, steps = len(path), path.shape[1] - 1
        time = torch.arange(steps, device=path.device).div(steps).repeat(batch)
        place = path[:, :-1].flatten(0, 1)
        mean, std = denoising_law(self.model, state.repeat_interleave(steps, 0), place, time, steps, self.scale)
        logprobs, entropy = gaussian(path[:, 1:].flatten(0, 1), mean, std)
        return logprobs.view(batch, steps, -1), entropy.view(batch, steps, -1)


def to_denoising_level(values: Tensor, level: Level) -> Tensor:
    """[B, N, K, A] -> [B, T]: each number's, each tick's in a step (`action`), or each step's (`chunk`)."""
    return values.sum((-1, -2)) if level == "chunk" else to_level(values.flatten(1, 2), level)


FAMILY = "vlrl_flow"
STEPS = 5


@dataclass(frozen=True, eq=False)
class FlowInputs:
    """A decision to imitate."""

    state: Tensor  # float32 [S]
    unit: Tensor  # float32 [K*A], a control's limits being -1 and 1


@dataclass(frozen=True, eq=False)
class DenoisingInputs:
    """A decision that was sampled."""

    state: Tensor  # float32 [S]
    path: Tensor  # float32 [N + 1, K*A], places from noise to the chunk


class FlowPolicy(ScoredPolicy):
    """The policy (`vlrl.types.Policy`).

    Args:
        steps: N of Euler's method, to a chunk.
        scale: of the noise in each of them, where it is sampled (`denoising_law`).
        level: what log-probabilities are of: each number of each denoising step (`token`), a tick's control in one
            (`action`), or a denoising step (`chunk`; DPPO, arXiv 2409.00588). Ratios are clipped at this level.
    """

    def __init__(
        self, model: Velocity, *, steps: int = STEPS, scale: float = SCALE, level: Level = "token",
        seed: int = 0,
    ):  # fmt: skip
        self.model, self.shape, self.steps, self.level = model, model.shape, steps, level
        self.scorer = DenoisingScorer(model, scale)
        self.field: Field = model  # that a chunk without noise in its steps follows
        self.generator = torch.Generator().manual_seed(seed)
        self._low, self._high = (np.array(limit, np.float32) for limit in (self.shape.low, self.shape.high))

    @property
    def device(self) -> torch.device:
        return self.model.mean.device

    def act(
        self, episodes: Sequence[Episode], observations: Sequence[Observation], greedy: bool = False,
        keep: bool = False, noise: np.ndarray | None = None,
    ) -> list[Decision]:  # fmt: skip
        """One chunk, float32 [K, A], for each observation, sampled with noise in each denoising step.

        With `greedy` or `noise` the steps have none; log-probabilities and entropies are then unknown, so NaN [K].

        Args:
            greedy: noise is drawn by a generator that the state alone seeds, so that a state has one chunk, whenever it
                is asked for. Noise 0 would be no better guess: it makes the mean of what the chunks could be.
            noise: float32 [B, K, A], which then decides alone.

        Raises:
            UserError: the robot shows a state of another size.
            ValueError: noise of another shape.
        """
        state = common.states(observations, self.shape)
        if noise is None and not greedy:
            return self._sample(torch.from_numpy(state), episodes)
        if noise is None:
            noise = self.own_noise(state)
        return common.decisions(self.chunks(state, noise))

    @torch.no_grad()
    def _sample(self, state: Tensor, episodes: Sequence[Episode]) -> list[Decision]:
        """Decisions by the stochastic denoising of states [B, S]."""
        self.model.eval()
        noise = torch.from_numpy(normals(episodes, (self.steps + 1, math.prod(self.size)), self.generator))
        state, noise = state.to(self.device), noise.to(self.device)
        path = [noise[:, 0]]
        for step in range(self.steps):
            time = torch.full((len(state),), step / self.steps, device=self.device)
            mean, std = denoising_law(self.model, state, path[-1], time, self.steps, self.scorer.scale)
            path.append(mean + std * noise[:, step + 1])
        places = torch.stack(path, 1)
        logprobs, entropy = (self._levelled(part).cpu() for part in self.scorer(state, places))
        chunks = physical(path[-1].clamp(-1, 1).cpu().numpy(), self._low, self._high)
        return [
            Decision(chunk, logprobs[b], entropy[b], False, inputs=DenoisingInputs(state[b].cpu(), places[b].cpu()))
            for b, chunk in enumerate(chunks)
        ]

    def _levelled(self, values: Tensor) -> Tensor:
        """[B, N, K*A] -> [B, T], summed to the policy's level; T is N*K*A, N*K or N."""
        return to_denoising_level(values.unflatten(-1, self.size), self.level)

    @property
    def size(self) -> tuple[int, int]:
        """K and A."""
        return self.shape.chunk, len(self.shape.low)

    def noise(self, count: int) -> np.ndarray:
        """float32 [count, K, A], drawn from N(0, 1)."""
        return torch.randn((count, *self.size), generator=self.generator).numpy()

    def own_noise(self, state: np.ndarray) -> np.ndarray:
        """float32 [B, K, A] of states [B, S]: each one's own, see `act`."""
        return np.stack([own_noise(row, self.size) for row in state])

    def chunks(self, state: np.ndarray, noise: np.ndarray) -> np.ndarray:
        """Chunks float32 [B, K, A] within the limits, for states float32 [B, S] and noise float32 [B, K, A].

        Raises:
            ValueError: noise of another shape.
        """
        if noise.shape != (len(state), *self.size):
            raise ValueError(f"noise of shape {list(noise.shape)}; wanted is {[len(state), *self.size]}")
        unit = self.unit(torch.as_tensor(state), torch.as_tensor(noise, dtype=torch.float32).flatten(1))
        return physical(unit.cpu().numpy(), self._low, self._high)

    @torch.no_grad()
    def unit(self, state: Tensor, noise: Tensor) -> Tensor:
        """The same of tensors, noise [B, K*A] to chunks [B, K*A], a control's limits being -1 and 1."""
        self.model.eval()
        return integrate(self.field, state.to(self.device), noise.to(self.device), self.steps).clamp(-1, 1)

    # -- imitation ---------------------------------------------------------------------------------------------------

    def decide(
        self, observation: Observation, action: np.ndarray, key: str | None = None, before: Sequence[Turn] = ()
    ) -> Decision:
        """A given chunk [K, A] as a decision to imitate."""
        values = np.asarray(action, np.float32)
        if values.shape != self.size:
            shape = list(values.shape)
            raise UserError(f"{key or 'a decision'}: an action of shape {shape}; the policy gives {list(self.size)}")
        state = torch.from_numpy(common.states([observation], self.shape)[0])
        unit = (values.clip(self._low, self._high) - self._low) / (self._high - self._low) * 2 - 1
        nothing = torch.zeros(unit.size)
        return Decision(values, nothing, nothing, False, inputs=FlowInputs(state, torch.from_numpy(unit).flatten()))

    def evaluate(self, decisions: Sequence[Decision]) -> Evaluation:
        """Log-probabilities and entropies [B, T] of sampled decisions, with gradient; of given ones `imitation`."""
        if isinstance(decisions[0].inputs, FlowInputs):
            return self._imitation(decisions)
        return super().evaluate(decisions)

    @torch.no_grad()
    def features(self, decisions: Sequence[Decision]) -> Tensor:
        """What the network makes of each state at the middle of all noise, float32 [B, hidden]."""
        state = torch.stack([d.inputs.state for d in decisions]).to(self.device)
        place = state.new_zeros(len(state), math.prod(self.size))
        return self.model.features(state, place, place[:, 0])

    def _evaluate(self, scorer: nn.Module, decisions: Sequence[Decision]) -> Evaluation:
        state = torch.stack([decision.inputs.state for decision in decisions]).to(self.device)
        path = torch.stack([decision.inputs.path for decision in decisions]).to(self.device)
        logprobs, entropy = map(self._levelled, scorer(state, path))
        return Evaluation(logprobs, entropy, torch.ones_like(logprobs, dtype=torch.bool))

    def _imitation(self, decisions: Sequence[Decision]) -> Evaluation:
        """What imitation maximises, [B, K*A], with gradient: minus the flow's squared errors at noise and times drawn
        anew. They stand where log-probabilities would, of which they are a weighted bound (arXiv 2107.00630).
        """
        self.model.train()
        state, unit = map(torch.stack, zip(*((d.inputs.state, d.inputs.unit) for d in decisions), strict=True))
        noise = torch.randn(unit.shape, generator=self.generator)
        time = torch.rand(len(unit), generator=self.generator)
        off = errors(self.model, *(each.to(self.device) for each in (state, unit, noise, time)))
        return Evaluation(-off, torch.zeros_like(off), torch.ones_like(off, dtype=torch.bool))

    # -- what is kept ------------------------------------------------------------------------------------------------

    def save(self, folder: Path, dtype: torch.dtype = torch.float32) -> None:
        """config.json and model.safetensors, the parameters in `dtype`."""
        common.save(folder, common.make_config(FAMILY, self.shape, steps=self.steps), self.model, dtype)

    def load_weights(self, folder: Path) -> None:
        """Weights that `save` wrote into the present model; a head for noise may be on one side alone.

        Raises:
            UserError: the folder holds none, or another network's.
        """
        weights_into(self.model, folder, optional="noise.")


def own_noise(state: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """A state's own noise, float32 [K, A]."""
    return np.random.default_rng(np.frombuffer(state.tobytes(), np.uint32)).standard_normal(size, np.float32)


def make_flow_policy(shape: ActorShape, mean: Tensor, spread: Tensor, seed: int) -> FlowPolicy:
    """An untrained policy, its state scaled by mean and spread [S]. Weights are drawn from the global generator."""
    model = Velocity(shape)
    model.mean.copy_(mean)
    model.spread.copy_(spread)
    return FlowPolicy(model, seed=seed)


def load_flow(
    folder: Path, *, seed: int, device: str = "cpu", key: str = "policy.model", level: Level = "token",
    noise: Literal["sde", "learned"] = "sde", scale: float = SCALE,
) -> FlowPolicy:  # fmt: skip
    """The policy that `save` wrote.

    Args:
        key: of the configuration that names the folder.
        noise, scale: of the denoising steps, where it is sampled.

    Raises:
        UserError: the folder holds something else.
    """
    return _load(folder, FAMILY, (), key, noise == "learned", device, scale=scale, level=level, seed=seed)[0]


def _load(
    folder: Path, family: str, more: Sequence[str], key: str, learns_noise: bool, device: str, **options: Any
) -> tuple[FlowPolicy, dict[str, Any]]:
    """A flow of that family, and the values of `more` in its config.json."""
    shape, values = common.chunks_read(folder, family, ("steps", *more), key)
    if not isinstance(values["steps"], int) or values["steps"] < 1:
        raise UserError(f"{key}: {folder / 'config.json'}: steps must be a whole number of at least 1")
    model = Velocity(shape, learns_noise=learns_noise).to(device)
    policy = FlowPolicy(model, steps=values["steps"], **options)
    policy.load_weights(folder)
    return policy, values


# A frozen flow policy whose noise a small network chooses: what the agents `dsrl_sac` and `dsrl_na` learn.
#
# A folder of one holds the network, and the flow's own folder as `base`.

STEERED_FAMILY = "vlrl_steered"
BASE = "base"


def noise_shape(shape: ActorShape, bound: float, hidden: int, layers: int) -> ActorShape:
    """Of the network whose "controls" are a flow's noise, each within -bound and bound."""
    limits = (bound,) * len(shape.low)
    return replace(shape, low=tuple(-limit for limit in limits), high=limits, units=(), hidden=hidden, layers=layers)


class SteeredPolicy(Policy):
    """The policy (`vlrl.types.Policy`), which only acts.

    Args:
        steering: gives noise [B, K, A] for states (`noise_shape`).
    """

    def __init__(self, steering: ActorPolicy, base: FlowPolicy):
        self.steering, self.base, self.shape = steering, base, base.shape
        base.model.requires_grad_(False)

    def check(self, sample: Sample) -> None:
        """UserError: who asks wants to train it with `vlrl train`."""
        raise UserError(
            "policy.model: a steered flow has no probabilities to train with: go on with `vlrl offpolicy`, or train "
            "the flow itself, its folder's `base`"
        )

    def act(
        self, episodes: Sequence[Episode], observations: Sequence[Observation], greedy: bool = False, keep: bool = False
    ) -> list[Decision]:
        """One chunk, float32 [K, A], for each observation; `greedy` takes the middle of the noise.

        Raises:
            UserError: the robot shows a state of another size.
        """
        return common.decisions(self.chunks(common.states(observations, self.shape), greedy))

    def chunks(self, state: np.ndarray, greedy: bool) -> np.ndarray:
        """Chunks float32 [B, K, A] within the limits, for states float32 [B, S]."""
        return self.base.chunks(state, self.steering.chunks(state, greedy))

    def save(self, folder: Path) -> None:
        """config.json, model.safetensors and the flow's folder."""
        shape = self.steering.shape
        about = {"model_type": STEERED_FAMILY, "bound": shape.high[0], "hidden": shape.hidden, "layers": shape.layers}
        common.save(folder, about, self.steering.model)
        self.base.save(folder / BASE)


def load_steered(folder: Path, *, seed: int, device: str = "cpu") -> SteeredPolicy:
    """The policy that `save` wrote.

    Raises:
        UserError: the folder holds something else.
    """
    base = load_flow(folder / BASE, seed=seed, device=device)
    try:
        about = load_json(folder / "config.json", finite=False)
        bound, hidden, layers = float(about["bound"]), int(about["hidden"]), int(about["layers"])
        if not (0 < bound < math.inf and hidden > 0 and layers > 0):
            raise ValueError(f"bound {bound}, hidden {hidden}, layers {layers}: each must be above 0")
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise UserError(f"policy.model: {folder / 'config.json'} describes no {STEERED_FAMILY}: {error}") from None
    steering = Actor(noise_shape(base.shape, bound, hidden, layers))
    weights_into(steering, folder)
    return SteeredPolicy(ActorPolicy(steering.to(device), seed=seed), base)


# A flow whose state has one number more: was the chunk better than usual (1), not (-1), or is that not told (0)? It is
# what the agent `recap` learns, and acts as if told 1 (advantage conditioning, arXiv 2511.14759).

GUIDED_FAMILY = "vlrl_guided"
ADVANTAGE = "advantage"  # the name of that number


def indicated(state: Tensor, indicator: Tensor | float) -> Tensor:
    """States [B, S] with the indicator [B], or one for all, as their last number: [B, S + 1]."""
    return torch.cat([state, state.new_zeros(len(state), 1) + torch.as_tensor(indicator).view(-1, 1)], 1)


def guided(field: Field, guidance: float) -> Field:
    """v(none) + guidance (v(positive) - v(none)) of states [B, S]: classifier-free guidance (arXiv 2207.12598).

    Args:
        field: of states [B, S + 1] with an indicator.
        guidance: 0: as if nothing were told; 1: positive; above 1 beyond it, away from what is done by default.
    """

    def velocity(state: Tensor, place: Tensor, time: Tensor) -> Tensor:
        both = torch.cat([indicated(state, 0.0), indicated(state, 1.0)])
        plain, positive = field(both, place.repeat(2, 1), time.repeat(2)).chunk(2)
        return plain + guidance * (positive - plain)

    return velocity


def indicating(flow: FlowPolicy, seed: int) -> FlowPolicy:
    """The same flow with an indicator, which does not yet matter."""
    shape, weights = flow.shape, flow.model.state_dict()
    wider = Velocity(replace(shape, state=shape.state + 1, names=(*shape.names, ADVANTAGE) if shape.names else ()))
    first, zero = weights["body.0.weight"], torch.zeros(shape.hidden, 1)
    weights["body.0.weight"] = torch.cat([first[:, : shape.state], zero, first[:, shape.state :]], 1)
    weights |= {name: torch.cat([weights[name], torch.tensor([v])]) for name, v in (("mean", 0.0), ("spread", 1.0))}
    wider.load_state_dict(weights)
    return FlowPolicy(wider, steps=flow.steps, seed=seed)


class GuidedPolicy(Policy):
    """The policy (`vlrl.types.Policy`), which only acts, as if told that its chunk will be better than usual.

    Args:
        inner: the flow with an indicator (`indicating`).
        guidance: see `guided`.
    """

    def __init__(self, inner: FlowPolicy, guidance: float):
        self.inner, self.guidance, inner.field = inner, guidance, guided(inner.model, guidance)
        self.shape = replace(inner.shape, state=inner.shape.state - 1, names=inner.shape.names[:-1])

    def check(self, sample: Sample) -> None:
        """UserError: who asks wants to train it with `vlrl train`."""
        raise UserError(
            "policy.model: a flow that is told its advantage is trained by `vlrl offpolicy`, agent recap: set "
            "start=FOLDER there"
        )

    def act(
        self, episodes: Sequence[Episode], observations: Sequence[Observation], greedy: bool = False, keep: bool = False
    ) -> list[Decision]:
        """One chunk, float32 [K, A], for each observation; `greedy`: of the state's own noise, as `FlowPolicy`.

        Raises:
            UserError: the robot shows a state of another size.
        """
        return common.decisions(self.chunks(common.states(observations, self.shape), greedy))

    def chunks(self, state: np.ndarray, greedy: bool) -> np.ndarray:
        """Chunks float32 [B, K, A] within the limits, for states float32 [B, S]."""
        return self.inner.chunks(state, self.inner.own_noise(state) if greedy else self.inner.noise(len(state)))

    def save(self, folder: Path) -> None:
        """config.json and model.safetensors."""
        more = {"steps": self.inner.steps, "guidance": self.guidance}
        common.save(folder, common.make_config(GUIDED_FAMILY, self.inner.shape, **more), self.inner.model)


def load_guided(folder: Path, *, seed: int, device: str = "cpu", key: str = "policy.model") -> GuidedPolicy:
    """The policy that `save` wrote.

    Raises:
        UserError: the folder holds something else.
    """
    inner, values = _load(folder, GUIDED_FAMILY, ("guidance",), key, False, device, seed=seed)
    if not isinstance(values["guidance"], int | float) or not 0 <= values["guidance"] < math.inf:
        raise UserError(f"{key}: {folder / 'config.json'}: guidance must be a number of at least 0")
    return GuidedPolicy(inner, values["guidance"])
