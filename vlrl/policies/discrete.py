"""Policies with discrete controls."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from vlrl.decoders import load_json
from vlrl.policies.generation import draw, uniforms
from vlrl.policies.robot_common import ScoredPolicy, convolutions
from vlrl.types import Decision, Episode, Evaluation, Observation, Turn, UserError

# The network of `vlrl.policies.discrete`: a state and pictures in, logits of the bins of a chunk of controls out.


@dataclass(frozen=True)
class DiscreteShape:
    """What a policy of this kind sees and gives, and its size."""

    state: int  # numbers of the state
    controls: tuple[str, ...]  # names of the A numbers of a control
    low: tuple[float, ...]  # [A], physical units
    high: tuple[float, ...]
    chunk: int = 8  # K ticks of one decision
    bins: int = 21  # values of a number; odd: the middle of the limits is one of them
    cameras: tuple[tuple[int, int], ...] = ()  # width and height of each picture
    hidden: int = 128
    layers: int = 2
    # what a policy says of itself when it is served; () and 0: not known
    names: tuple[str, ...] = ()  # of the S numbers of the state
    units: tuple[str, ...] = ()  # of the A numbers of a control
    pictures: tuple[str, ...] = ()  # names, in the order of `cameras`
    hz: float = 0.0  # controls a second

    def __post_init__(self):
        for names, size in ((self.names, self.state), (self.units, len(self.low)), (self.pictures, len(self.cameras))):
            if names and len(names) != size:
                raise ValueError(f"{len(names)} names or units {names} for {size}")


class Network(nn.Module):
    """Logits [B, K, A, bins] of states [B, S] and pictures uint8 [B, 3, height, width] each."""

    def __init__(self, shape: DiscreteShape):
        super().__init__()
        self.shape = shape
        self.register_buffer("mean", torch.zeros(shape.state))
        self.register_buffer("spread", torch.ones(shape.state))
        self.eyes = nn.ModuleList(nn.Sequential(*convolutions(size, shape.hidden), nn.SiLU()) for size in shape.cameras)
        widths = [shape.state + shape.hidden * len(shape.cameras), *[shape.hidden] * shape.layers]
        pairs = pairwise(widths)
        self.trunk = nn.Sequential(
            *(layer for a, b in pairs for layer in (nn.Linear(a, b), nn.LayerNorm(b), nn.SiLU()))
        )
        self.head = nn.Linear(shape.hidden, shape.chunk * len(shape.low) * shape.bins)
        nn.init.normal_(self.head.weight, std=0.01)
        nn.init.zeros_(self.head.bias)

    def features(self, state: Tensor, pixels: Sequence[Tensor]) -> Tensor:
        """float32 [B, hidden]."""
        views = [eye(picture / 255 - 0.5) for eye, picture in zip(self.eyes, pixels, strict=True)]
        return self.trunk(torch.cat([(state - self.mean) / self.spread, *views], 1))

    def forward(self, state: Tensor, pixels: Sequence[Tensor]) -> Tensor:
        logits = self.head(self.features(state, pixels))
        return logits.view(len(state), self.shape.chunk, len(self.shape.low), self.shape.bins)


class DiscreteScorer(nn.Module):
    """Log-probabilities and entropies [B, K, A] of chosen bins: the forward that is trained and may be wrapped."""

    def __init__(self, model: Network, temperature: float):
        super().__init__()
        self.model, self.temperature = model, temperature

    def forward(self, state: Tensor, pixels: Sequence[Tensor], codes: Tensor) -> tuple[Tensor, Tensor]:
        law = (self.model(state, pixels) / self.temperature).log_softmax(-1)
        return law.gather(-1, codes[..., None])[..., 0], -(law.exp() * law).sum(-1)


# A small policy for robots: a network from the state, and pictures where there are any, to a chunk of controls.
#
# Each number of a control is one of `bins` values between its limits, drawn from a distribution of its own: one with
# probabilities below 1 and an entropy above 0, as a language model's, for which every method of the trainer is made
# (discretised actions in policy gradients: Tang and Agrawal, arXiv 1901.10500).

FAMILY = "vlrl_control"
Level = Literal["token", "action", "chunk"]


@dataclass(frozen=True, eq=False)
class DiscreteInputs:
    """What the policy keeps of its own decision."""

    state: Tensor  # float32 [S]
    pixels: tuple[Tensor, ...]  # uint8 [3, height, width] each
    codes: Tensor  # int64 [K, A], the bins


class ControlPolicy(ScoredPolicy):
    """The policy (`vlrl.types.Policy`).

    Args:
        level: what log-probabilities are of: each number of a control (`token`), a tick's control (`action`) or the
            whole decision (`chunk`). Ratios are clipped, and rewards weighed, at this level.
    """

    def __init__(self, model: Network, *, temperature: float = 1.0, level: Level = "token", seed: int = 0):
        self.model, self.shape, self.temperature, self.level = model, model.shape, temperature, level
        self.scorer = DiscreteScorer(model, temperature)
        self.generator = torch.Generator().manual_seed(seed)
        self._low = torch.tensor(self.shape.low, dtype=torch.float64)
        self._step = (torch.tensor(self.shape.high, dtype=torch.float64) - self._low) / (self.shape.bins - 1)

    @property
    def device(self) -> torch.device:
        return self.model.mean.device

    def act(
        self, episodes: Sequence[Episode], observations: Sequence[Observation], greedy: bool = False, keep: bool = False
    ) -> list[Decision]:
        """One chunk, float32 [K, A], for each observation; `greedy` takes the likeliest bins."""
        state, pixels = self._batch([self._network_inputs(observation) for observation in observations])
        self.model.eval()
        with torch.no_grad():
            law = (self.model(state, pixels) / self.temperature).log_softmax(-1)
        codes = law.argmax(-1) if greedy else _draw(law, uniforms(episodes, law[0, ..., 0].numel(), self.generator))
        logprobs = self._levelled(law.gather(-1, codes[..., None])[..., 0]).cpu()
        entropy = self._levelled(-(law.exp() * law).sum(-1)).cpu()
        return [
            Decision(self._action(chosen), logprobs[b], entropy[b], False,
                     inputs=DiscreteInputs(state[b].cpu(), tuple(p[b].cpu() for p in pixels), chosen))
            for b, chosen in enumerate(codes.cpu())
        ]  # fmt: skip

    def decide(
        self, observation: Observation, action: np.ndarray, key: str | None = None, before: Sequence[Turn] = ()
    ) -> Decision:
        """A given chunk [K, A] as a decision of this policy, each number by the nearest of its values."""
        state, pixels = self._network_inputs(observation)
        values = torch.as_tensor(np.asarray(action, np.float64))
        if values.shape != (self.shape.chunk, len(self.shape.low)):
            shape = f"[{self.shape.chunk}, {len(self.shape.low)}]"
            raise UserError(f"{key or 'a decision'}: an action of shape {list(values.shape)}; the policy gives {shape}")
        codes = ((values - self._low) / self._step).round().long().clamp(0, self.shape.bins - 1)
        nothing = self._levelled(torch.zeros(1, *codes.shape))[0]
        return Decision(self._action(codes), nothing, nothing, False, inputs=DiscreteInputs(state, pixels, codes))

    @torch.no_grad()
    def features(self, decisions: Sequence[Decision]) -> Tensor:
        """The trunk's output, float32 [B, hidden]: what a critic can read."""
        state, pixels = self._batch([(d.inputs.state, d.inputs.pixels) for d in decisions])
        return self.model.features(state, pixels)

    def save(self, folder: Path, dtype: torch.dtype = torch.float32) -> None:
        """config.json and model.safetensors, the parameters in `dtype`."""
        folder.mkdir(parents=True, exist_ok=True)
        about = {"model_type": FAMILY, **asdict(self.shape)}
        (folder / "config.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
        weights = {name: value.detach().cpu().contiguous() for name, value in self.model.state_dict().items()}
        learned = {name: weights[name].to(dtype) for name, _ in self.model.named_parameters()}
        save_file(weights | learned, folder / "model.safetensors")

    def load_weights(self, folder: Path) -> None:
        """Weights that `save` wrote into the present model.

        Raises:
            UserError: the folder holds none, or another network's.
        """
        weights_into(self.model, folder)

    def _evaluate(self, scorer: nn.Module, decisions: Sequence[Decision]) -> Evaluation:
        state, pixels = self._batch([(d.inputs.state, d.inputs.pixels) for d in decisions])
        codes = torch.stack([d.inputs.codes for d in decisions]).to(self.device)
        logprobs, entropy = map(self._levelled, scorer(state, pixels, codes))
        return Evaluation(logprobs, entropy, torch.ones_like(logprobs, dtype=torch.bool))

    def _network_inputs(self, shown: Observation) -> tuple[Tensor, tuple[Tensor, ...]]:
        """The state and the pictures as the network takes them; UserError where the robot shows something else."""
        size = 0 if shown.state is None else len(shown.state)
        cameras = tuple(image.size for image in shown.images)
        if size != self.shape.state or cameras != self.shape.cameras:
            raise UserError(
                f"policy.model: made for a state of {self.shape.state} numbers and pictures {self.shape.cameras}, but "
                f"the robot shows {size} and {cameras}"
            )
        pixels = [torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1) for image in shown.images]
        return torch.as_tensor(shown.state, dtype=torch.float32), tuple(pixels)

    def _batch(self, seen: Sequence[tuple[Tensor, Sequence[Tensor]]]) -> tuple[Tensor, list[Tensor]]:
        pixels = [torch.stack(camera).to(self.device) for camera in zip(*(p for _, p in seen), strict=True)]
        return torch.stack([state for state, _ in seen]).to(self.device), pixels

    def _levelled(self, values: Tensor) -> Tensor:
        return to_level(values, self.level)

    def _action(self, codes: Tensor) -> np.ndarray:
        return (self._low + self._step * codes).numpy().astype(np.float32)


def to_level(values: Tensor, level: Level) -> Tensor:
    """[B, K, A] -> [B, T], summed to what log-probabilities are of."""
    if level == "token":
        return values.flatten(1)
    return values.sum(-1) if level == "action" else values.sum((-1, -2))[:, None]


def _draw(law: Tensor, uniform: np.ndarray) -> Tensor:
    """Bins int64 [B, ...], drawn from log-probabilities [B, ..., bins] by numbers in [0, 1) [B, n]."""
    flat = law.exp().flatten(0, -2)
    return draw(flat, torch.from_numpy(uniform).to(flat.device).flatten()).view(law.shape[:-1])


def weights_into(model: nn.Module, folder: Path, optional: str = "\0") -> None:
    """The weights of a folder's model.safetensors into a model.

    Args:
        optional: how names of weights begin that may be on one side alone; the model then keeps its own.

    Raises:
        UserError: the folder holds none, or another network's.
    """
    try:
        saved, own = load_file(folder / "model.safetensors"), model.state_dict()
        kept = {name: value for name, value in own.items() if name.startswith(optional)}
        model.load_state_dict(kept | {n: v for n, v in saved.items() if n in own or not n.startswith(optional)})
    except (OSError, SafetensorError, RuntimeError) as error:
        raise UserError(f"policy.model: {folder}: {str(error).strip().splitlines()[0]}") from None


def load_control(folder: Path, *, temperature: float, level: Level, seed: int, device: str) -> ControlPolicy:
    """The policy that `save` wrote.

    Raises:
        UserError: the folder holds something else.
    """
    try:
        about = load_json(folder / "config.json", finite=False)
        about.pop("model_type")
        lists = {name: tuple(about.pop(name)) for name in ("controls", "low", "high")}
        lists |= {name: tuple(about.pop(name, ())) for name in ("names", "units", "pictures")}  # older ones have none
        cameras = tuple((width, height) for width, height in about.pop("cameras"))
        model = Network(DiscreteShape(cameras=cameras, **lists, **about))
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise UserError(f"policy.model: {folder / 'config.json'} describes no policy for robots: {error}") from None
    policy = ControlPolicy(model.to(device), temperature=temperature, level=level, seed=seed)
    policy.load_weights(folder)
    return policy
