"""The network of `vlrl.policies.control`: a state and pictures in, logits of the bins of a chunk of controls out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Shape:
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
        for told, size in ((self.names, self.state), (self.units, len(self.low)), (self.pictures, len(self.cameras))):
            if told and len(told) != size:
                raise ValueError(f"{len(told)} names or units {told} for {size}")


class Network(nn.Module):
    """Logits [B, K, A, bins] of states [B, S] and pictures uint8 [B, 3, height, width] each."""

    def __init__(self, shape: Shape):
        super().__init__()
        self.shape = shape
        self.register_buffer("mean", torch.zeros(shape.state))
        self.register_buffer("spread", torch.ones(shape.state))
        self.eyes = nn.ModuleList(_eye(shape.hidden, size) for size in shape.cameras)
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
        seen = [eye(picture / 255 - 0.5) for eye, picture in zip(self.eyes, pixels, strict=True)]
        return self.trunk(torch.cat([(state - self.mean) / self.spread, *seen], 1))

    def forward(self, state: Tensor, pixels: Sequence[Tensor]) -> Tensor:
        logits = self.head(self.features(state, pixels))
        return logits.view(len(state), self.shape.chunk, len(self.shape.low), self.shape.bins)


def _eye(hidden: int, size: tuple[int, int]) -> nn.Module:
    """Four strided convolutions over one camera's picture."""
    sides = list(size)
    layers: list[nn.Module] = []
    for channels, wider in ((3, 16), (16, 32), (32, 32), (32, 32)):
        layers += [nn.Conv2d(channels, wider, 3, stride=2, padding=1), nn.SiLU()]
        sides = [(side + 1) // 2 for side in sides]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(32 * sides[0] * sides[1], hidden), nn.SiLU())


class Scorer(nn.Module):
    """Log-probabilities and entropies [B, K, A] of chosen bins: the forward that is trained and may be wrapped."""

    def __init__(self, model: Network, temperature: float):
        super().__init__()
        self.model, self.temperature = model, temperature

    def forward(self, state: Tensor, pixels: Sequence[Tensor], codes: Tensor) -> tuple[Tensor, Tensor]:
        law = (self.model(state, pixels) / self.temperature).log_softmax(-1)
        return law.gather(-1, codes[..., None])[..., 0], -(law.exp() * law).sum(-1)
