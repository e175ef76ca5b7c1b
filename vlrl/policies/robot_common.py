"""Networks of robot policies: actors, action chunks."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional

from vlrl.decoders import load_json
from vlrl.types import Decision, Episode, Evaluation, Observation, Policy, Sample, UserError


class ScoredPolicy(Policy):
    """A policy that trains by what its scorer says of its decisions. A subclass has `_evaluate(scorer, decisions)`."""

    _frozen: nn.Module | None = None  # the reference's scorer

    def evaluate(self, decisions: Sequence[Decision]) -> Evaluation:
        """Log-probabilities and entropies [B, T] under the present weights, with gradient."""
        self.model.train()
        return self._evaluate(self.scorer, decisions)

    @torch.no_grad()
    def reference(self, decisions: Sequence[Decision]) -> Tensor:
        """Log-probabilities [B, T] under the frozen start."""
        if self._frozen is None:
            raise RuntimeError("call freeze_reference() before the first update")
        return self._evaluate(self._frozen, decisions).logprobs

    def freeze_reference(self) -> None:
        """Remembers the present weights as the reference."""
        self._frozen = copy.deepcopy(self.scorer).requires_grad_(False).eval()

    def _evaluate(self, scorer: nn.Module, decisions: Sequence[Decision]) -> Evaluation:
        raise NotImplementedError


# The network of `vlrl.policies.robot_common`: a state in, the distribution of a chunk of controls out.

LOG_STD = (-5.0, 2.0)  # of the distribution before tanh
FAR = 10.0  # spreads from the mean beyond which a state looks the same: what never moved in the data may move later


@dataclass(frozen=True)
class ActorShape:
    """What an actor sees and gives, and its size."""

    state: int  # S numbers
    controls: tuple[str, ...]  # names of the A numbers of a control
    low: tuple[float, ...]  # [A], physical units
    high: tuple[float, ...]
    chunk: int = 8  # K ticks of one decision
    hidden: int = 256
    layers: int = 2
    names: tuple[str, ...] = ()  # of the S numbers of the state; (): not known
    units: tuple[str, ...] = ()  # of the A numbers of a control
    hz: float = 0.0  # controls a second; 0: not known

    cameras = pictures = ()  # as `control_network.Shape` has them: it sees the state alone

    def __post_init__(self):
        sizes = {len(self.controls), len(self.low), len(self.high), len(self.units or self.low)}
        if len(sizes) != 1 or (self.names and len(self.names) != self.state):
            raise ValueError("controls, limits, units or names are not as many as there are numbers")


class Actor(nn.Module):
    """Means and log standard deviations [B, K*A] before tanh, of states float32 [B, S] in physical units."""

    def __init__(self, shape: ActorShape):
        super().__init__()
        self.shape = shape
        self.register_buffer("mean", torch.zeros(shape.state))
        self.register_buffer("spread", torch.ones(shape.state))
        widths = [shape.state, *[shape.hidden] * shape.layers]
        layers = (layer for a, b in pairwise(widths) for layer in (nn.Linear(a, b), nn.LayerNorm(b), nn.ReLU()))
        self.trunk = nn.Sequential(*layers)
        self.head = nn.Linear(shape.hidden, 2 * shape.chunk * len(shape.low))
        nn.init.normal_(self.head.weight, std=0.01)  # begins in the middle of the limits, everywhere alike
        nn.init.zeros_(self.head.bias)

    def forward(self, state: Tensor) -> tuple[Tensor, Tensor]:
        normalized = ((state - self.mean) / self.spread).clamp(-FAR, FAR)
        mean, log_std = self.head(self.trunk(normalized)).chunk(2, -1)
        return mean, log_std.clamp(*LOG_STD)

    def draw(self, state: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Actions in (-1, 1) [B, K*A] and their log-densities [B], both with gradient."""
        mean, log_std = self(state)
        noise = torch.randn(mean.shape, generator=generator)
        return squashed(mean, log_std, noise)


def squashed(mean: Tensor, log_std: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """tanh(mean + std * noise) [B, D], and its log-density [B] (arXiv 1801.01290, appendix C)."""
    raw = mean + log_std.exp() * noise
    normal = -0.5 * noise.square() - log_std - 0.5 * math.log(2 * math.pi)
    slope = 2 * (math.log(2) - raw - functional.softplus(-2 * raw))  # log(1 - tanh(raw)^2), without cancellation
    return raw.tanh(), (normal - slope).sum(-1)


# A small robot policy that off-policy agents learn: a network from the state to a chunk of controls, continuous.
#
# The law is a normal one squashed by tanh to the limits (SAC, arXiv 1801.01290). It acts, is evaluated and is served;
# `vlrl train` needs probabilities, which `vlrl.policies.discrete` has.

FAMILY = "vlrl_actor"


class ActorPolicy(Policy):
    """The policy (`vlrl.types.Policy`), which only acts."""

    def __init__(self, model: Actor, *, seed: int = 0):
        self.model, self.shape = model, model.shape
        self.generator = torch.Generator().manual_seed(seed)
        self._low = np.array(self.shape.low, np.float32)
        self._high = np.array(self.shape.high, np.float32)

    def check(self, sample: Sample) -> None:
        """UserError: who asks wants to train it with `vlrl train`."""
        raise UserError(
            "policy.model: an actor has no probabilities to train with: go on with `vlrl offpolicy` and start=FOLDER, "
            "or start from a policy that `vlrl clone` makes"
        )

    def act(
        self, episodes: Sequence[Episode], observations: Sequence[Observation], greedy: bool = False, keep: bool = False
    ) -> list[Decision]:
        """One chunk, float32 [K, A], for each observation; `greedy` takes the mean.

        Log-probabilities and entropies are unknown, so NaN [K].

        Raises:
            UserError: the robot shows a state of another size.
        """
        chunks = self.chunks(np.stack([self._state(observation) for observation in observations]), greedy)
        unknown = torch.full((self.shape.chunk,), math.nan)
        return [Decision(chunk, unknown, unknown, False) for chunk in chunks]

    @torch.no_grad()
    def chunks(self, state: np.ndarray, greedy: bool) -> np.ndarray:
        """Chunks float32 [B, K, A] within the limits, for states float32 [B, S]."""
        states = torch.as_tensor(state, device=self.model.mean.device)
        unit = self.model(states)[0].tanh() if greedy else self.model.draw(states, self.generator)[0]
        return physical(unit.cpu().numpy(), self._low, self._high)

    def draw(self, state: np.ndarray, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Chunks in (-1, 1) [B, K*A] for states float32 [B, S], and their log-densities [B], both with gradient."""
        return self.model.draw(torch.as_tensor(state), generator)

    def save(self, folder: Path) -> None:
        """config.json and model.safetensors."""
        folder.mkdir(parents=True, exist_ok=True)
        about = {"model_type": FAMILY, **asdict(self.shape)}
        (folder / "config.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
        weights = {name: value.detach().cpu().contiguous() for name, value in self.model.state_dict().items()}
        save_file(weights, folder / "model.safetensors")

    def _state(self, shown: Observation) -> np.ndarray:
        size = 0 if shown.state is None else len(shown.state)
        if size != self.shape.state:
            raise UserError(f"policy.model: made for a state of {self.shape.state} numbers, but the robot shows {size}")
        return np.asarray(shown.state, np.float32)


def physical(unit: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Numbers of [-1, 1] [B, K*A] -> chunks float32 [B, K, A] within the limits [A]."""
    chunks = unit.reshape(len(unit), -1, len(low))
    return (low + (chunks + 1) / 2 * (high - low)).clip(low, high).astype(np.float32)


def load_actor(folder: Path, *, seed: int, device: str = "cpu", key: str = "policy.model") -> ActorPolicy:
    """The policy that `save` wrote.

    Args:
        key: of the configuration that names the folder.

    Raises:
        UserError: the folder holds something else.
    """
    try:
        about = load_json(folder / "config.json", finite=False)
        if about.pop("model_type") != FAMILY:
            raise ValueError("it is of another family")
        lists = {name: tuple(about.pop(name)) for name in ("controls", "low", "high", "names", "units")}
        model = Actor(ActorShape(**lists, **about))
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise UserError(f"{key}: {folder / 'config.json'} describes no actor: {error}") from None
    try:
        model.load_state_dict(load_file(folder / "model.safetensors"))
    except (OSError, SafetensorError, RuntimeError) as error:
        raise UserError(f"{key}: {folder}: {str(error).strip().splitlines()[0]}") from None
    return ActorPolicy(model.to(device), seed=seed)


# What policies have in common that go from a robot's state to chunks of controls and only act.

LISTS = ("controls", "low", "high", "names", "units")


def states(observations: Sequence[Observation], shape: ActorShape) -> np.ndarray:
    """float32 [B, S]. UserError where the robot shows a state of another size."""
    for observation in observations:
        size = 0 if observation.state is None else len(observation.state)
        if size != shape.state:
            raise UserError(f"policy.model: made for a state of {shape.state} numbers, but the robot shows {size}")
    return np.stack([np.asarray(observation.state, np.float32) for observation in observations])


def decisions(chunks: np.ndarray) -> list[Decision]:
    """Chunks [B, K, A] as decisions; log-probabilities and entropies are unknown, so NaN [K]."""
    unknown = torch.full((chunks.shape[1],), math.nan)
    return [Decision(chunk, unknown, unknown, False) for chunk in chunks]


def save(folder: Path, about: Mapping[str, Any], model: nn.Module, dtype: torch.dtype = torch.float32) -> None:
    """config.json and model.safetensors, the parameters in `dtype`; buffers, such as scales, as they are."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
    weights = {name: value.detach().cpu().contiguous() for name, value in model.state_dict().items()}
    learned = {name: weights[name].to(dtype) for name, _ in model.named_parameters()}
    save_file(weights | learned, folder / "model.safetensors")


def make_config(family: str, shape: ActorShape, **more: float) -> dict[str, Any]:
    """A config.json."""
    return {"model_type": family, **more, **asdict(shape)}


def chunks_read(folder: Path, family: str, more: Sequence[str], key: str) -> tuple[ActorShape, dict[str, Any]]:
    """The shape that a folder's config.json tells, and the values of `more`.

    Args:
        key: of the configuration that names the folder.

    Raises:
        UserError: it tells of another family, or is no such description.
    """
    try:
        about = load_json(folder / "config.json", finite=False)
        if (model_type := about.pop("model_type")) != family:
            raise ValueError(f"it is of the family {model_type!r}")
        extra = {name: about.pop(name) for name in more}
        return ActorShape(**{name: tuple(about.pop(name)) for name in LISTS}, **about), extra
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise UserError(f"{key}: {folder / 'config.json'} describes no {family}: {error}") from None
