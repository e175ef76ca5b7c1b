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
    cameras: tuple[tuple[int, int], ...] = ()  # width and height of each image; of an `Actor` alone
    pictures: tuple[str, ...] = ()  # their names; (): not known
    features: int = 64  # that are made of each image

    def __post_init__(self):
        sizes = {len(self.controls), len(self.low), len(self.high), len(self.units or self.low)}
        if len(sizes) != 1 or (self.names and len(self.names) != self.state):
            raise ValueError("controls, limits, units or names are not as many as there are numbers")


# Images as off-policy agents keep them: the bytes of all cameras, one after the other, rows from the top, RGB.


def image_bytes(cameras: Sequence[tuple[int, int]]) -> int:
    """P: bytes of one image of each camera of these widths and heights."""
    return sum(3 * width * height for width, height in cameras)


def pixels(observations: Sequence[Observation], cameras: Sequence[tuple[int, int]], key: str) -> np.ndarray:
    """uint8 [B, P].

    Raises:
        UserError: the robot shows other images than `key` of the configuration says.
    """
    check_cameras(observations, cameras, key)
    rows = np.zeros((len(observations), image_bytes(cameras)), np.uint8)
    for row, observation in zip(rows, observations, strict=True):
        row[:] = np.concatenate([np.asarray(image.convert("RGB")).ravel() for image in observation.images])
    return rows


def check_cameras(observations: Sequence[Observation], cameras: Sequence[tuple[int, int]], key: str) -> None:
    """UserError where the robot shows images of other sizes than `key` of the configuration is for."""
    for observation in observations:
        sizes = [image.size for image in observation.images]
        if sizes != list(cameras):
            raise UserError(f"{key}: made for images of {_sizes(cameras)}, but the robot shows {_sizes(sizes)}")


def _sizes(cameras: Sequence[tuple[int, int]]) -> str:
    return ", ".join(f"{width}x{height}" for width, height in cameras) or "no camera"


class Eyes(nn.Module):
    """Features float32 [B, F * cameras] within [-1, 1] of images uint8 [B, P].

    Strided convolutions, then a bottleneck of a layer, its LayerNorm and tanh (DrQ, arXiv 2004.13649; as in SERL).
    """

    def __init__(self, cameras: Sequence[tuple[int, int]], features: int):
        super().__init__()
        self.cameras, self.size = tuple(cameras), features * len(cameras)
        self.towers = nn.ModuleList(
            nn.Sequential(*convolutions(camera, features), nn.LayerNorm(features), nn.Tanh()) for camera in self.cameras
        )

    def forward(self, images: Tensor) -> Tensor:
        return self.encode(self.split(images))

    def encode(self, views: Sequence[Tensor]) -> Tensor:
        """The same of what `split` gives."""
        pairs = zip(self.towers, views, strict=True)
        return torch.cat([tower(view.permute(0, 3, 1, 2) / 255 - 0.5) for tower, view in pairs], 1)

    def split(self, images: Tensor) -> list[Tensor]:
        """Bytes [B, P] as images uint8 [B, height, width, 3]."""
        parts = images.split([image_bytes([camera]) for camera in self.cameras], 1)
        return [part.view(-1, h, w, 3) for part, (w, h) in zip(parts, self.cameras, strict=True)]


def convolutions(size: tuple[int, int], features: int) -> list[nn.Module]:
    """Four strided convolutions and a linear layer: images [B, 3, height, width] of `size` -> [B, features]."""
    sides = list(size)
    layers: list[nn.Module] = []
    for channels, wider in ((3, 16), (16, 32), (32, 32), (32, 32)):
        layers += [nn.Conv2d(channels, wider, 3, stride=2, padding=1), nn.SiLU()]
        sides = [(side + 1) // 2 for side in sides]
    return [*layers, nn.Flatten(), nn.Linear(32 * sides[0] * sides[1], features)]


class Actor(nn.Module):
    """Means and log standard deviations [B, K*A] before tanh, of states float32 [B, S] in physical units.

    One with cameras also takes what its `eyes` make of images, float32 [B, F].
    """

    def __init__(self, shape: ActorShape):
        super().__init__()
        self.shape = shape
        self.register_buffer("mean", torch.zeros(shape.state))
        self.register_buffer("spread", torch.ones(shape.state))
        self.eyes = Eyes(shape.cameras, shape.features) if shape.cameras else None
        widths = [shape.state + (self.eyes.size if self.eyes else 0), *[shape.hidden] * shape.layers]
        layers = (layer for a, b in pairwise(widths) for layer in (nn.Linear(a, b), nn.LayerNorm(b), nn.ReLU()))
        self.trunk = nn.Sequential(*layers)
        self.head = nn.Linear(shape.hidden, 2 * shape.chunk * len(shape.low))
        nn.init.normal_(self.head.weight, std=0.01)  # begins in the middle of the limits, everywhere alike
        nn.init.zeros_(self.head.bias)

    def forward(self, state: Tensor, *features: Tensor) -> tuple[Tensor, Tensor]:
        normalized = ((state - self.mean) / self.spread).clamp(-FAR, FAR)
        mean, log_std = self.head(self.trunk(torch.cat([normalized, *features], 1))).chunk(2, -1)
        return mean, log_std.clamp(*LOG_STD)

    def draw(self, state: Tensor, generator: torch.Generator, *features: Tensor) -> tuple[Tensor, Tensor]:
        """Actions in (-1, 1) [B, K*A] and their log-densities [B], both with gradient."""
        mean, log_std = self(state, *features)
        noise = torch.randn(mean.shape, generator=generator)
        return squashed(mean, log_std, noise)


def squashed(mean: Tensor, log_std: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """tanh(mean + std * noise) [B, D], and its log-density [B] (arXiv 1801.01290, appendix C)."""
    raw = mean + log_std.exp() * noise
    normal = -0.5 * noise.square() - log_std - 0.5 * math.log(2 * math.pi)
    slope = 2 * (math.log(2) - raw - functional.softplus(-2 * raw))  # log(1 - tanh(raw)^2), without cancellation
    return raw.tanh(), (normal - slope).sum(-1)


# A small robot policy that off-policy agents learn: a network from the state, and images where it has eyes for them, to
# a chunk of controls, continuous.
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
        images = pixels(observations, self.shape.cameras, "policy.model") if self.shape.cameras else None
        return decisions(self.chunks(states(observations, self.shape), greedy, images))

    @torch.no_grad()
    def chunks(self, state: np.ndarray, greedy: bool, images: np.ndarray | None = None) -> np.ndarray:
        """Chunks float32 [B, K, A] within the limits, for states float32 [B, S] and images uint8 [B, P]."""
        device, eyes = self.model.mean.device, self.model.eyes
        states = torch.as_tensor(state, device=device)
        features = [eyes(torch.as_tensor(images, device=device))] if eyes else []
        mean = self.model(states, *features)[0]
        unit = mean.tanh() if greedy else self.model.draw(states, self.generator, *features)[0]
        return physical(unit.cpu().numpy(), self._low, self._high)

    def draw(self, state: np.ndarray, generator: torch.Generator, *features: Tensor) -> tuple[Tensor, Tensor]:
        """Chunks in (-1, 1) [B, K*A] for states float32 [B, S] and features [B, F] of images, and their log-densities
        [B], all with gradient."""
        return self.model.draw(torch.as_tensor(state), generator, *features)

    def save(self, folder: Path) -> None:
        """config.json and model.safetensors."""
        save(folder, make_config(FAMILY, self.shape), self.model)


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
    model = Actor(chunks_read(folder, FAMILY, (), key, "actor")[0])
    try:
        model.load_state_dict(load_file(folder / "model.safetensors"))
    except (OSError, SafetensorError, RuntimeError) as error:
        raise UserError(f"{key}: {folder}: {str(error).strip().splitlines()[0]}") from None
    return ActorPolicy(model.to(device), seed=seed)


# What policies have in common that go from a robot's state to chunks of controls and only act.

LISTS = ("controls", "low", "high", "names", "units")
IMAGES = ("cameras", "pictures", "features")  # of a shape, where there are images


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
    known = asdict(shape)
    return {"model_type": family, **more, **{n: v for n, v in known.items() if shape.cameras or n not in IMAGES}}


def chunks_read(
    folder: Path, family: str, more: Sequence[str], key: str, noun: str = ""
) -> tuple[ActorShape, dict[str, Any]]:
    """The shape that a folder's config.json tells, and the values of `more`.

    Args:
        key: of the configuration that names the folder.
        noun: for the family in errors; "": its name.

    Raises:
        UserError: it tells of another family, or is no such description.
    """
    try:
        about = load_json(folder / "config.json", finite=False)
        if (model_type := about.pop("model_type")) != family:
            raise ValueError(f"it is of the family {model_type!r}")
        extra = {name: about.pop(name) for name in more}
        lists = {name: tuple(about.pop(name)) for name in LISTS}
        lists["cameras"] = tuple((width, height) for width, height in about.pop("cameras", ()))
        lists["pictures"] = tuple(about.pop("pictures", ()))
        return ActorShape(**lists, **about), extra
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise UserError(f"{key}: {folder / 'config.json'} describes no {noun or family}: {error}") from None
