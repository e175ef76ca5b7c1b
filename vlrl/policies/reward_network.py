"""The network of `vlrl.reward_model`: pictures, and a state if wanted, in; the logit of success out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

LONGEST = 128  # pixels of a picture's longer side that the network sees; larger ones are shrunk by a whole factor


@dataclass(frozen=True)
class RewardShape:
    """What a reward model sees, and its size."""

    cameras: tuple[tuple[str, int, int], ...]  # name, width, height, as recorded
    names: tuple[str, ...] = ()  # of the numbers of the recorded state; '' where not known
    seen: tuple[int, ...] = ()  # which of them the network sees
    maps: int = 32  # feature maps, so keypoints, of a picture
    hidden: int = 64


def factor_of(width: int, height: int) -> int:
    """By how much a picture is shrunk before the network."""
    return -(-max(width, height) // LONGEST)


class RewardNetwork(nn.Module):
    """Logits [B] of pictures uint8 [B, 3, height, width] each, shrunk already, and states float32 [B, S]."""

    def __init__(self, shape: RewardShape):
        super().__init__()
        self.shape = shape
        self.register_buffer("mean", torch.zeros(len(shape.names)))
        self.register_buffer("spread", torch.ones(len(shape.names)))
        self.eyes = nn.ModuleList(_eye(shape.maps) for _ in shape.cameras)
        seen = 3 * shape.maps * len(shape.cameras) + len(shape.seen)
        self.head = nn.Sequential(nn.Linear(seen, shape.hidden), nn.SiLU(), nn.Linear(shape.hidden, 1))

    def forward(self, pixels: Sequence[Tensor], state: Tensor) -> Tensor:
        seen = [keypoints(eye(picture / 255 - 0.5)) for eye, picture in zip(self.eyes, pixels, strict=True)]
        told = ((state - self.mean) / self.spread)[:, list(self.shape.seen)]
        return self.head(torch.cat([*seen, told], 1))[:, 0]


def _eye(maps: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 5, stride=2, padding=2), nn.SiLU(),
        nn.Conv2d(16, maps, 3, stride=2, padding=1), nn.GroupNorm(4, maps), nn.SiLU(),
        nn.Conv2d(maps, maps, 3, padding=1),
    )  # fmt: skip


def keypoints(maps: Tensor) -> Tensor:
    """Where each feature map [B, C, H, W] is strongest, and how strong it is there -> [B, 3 * C].

    Spatial soft-argmax (Levine et al. 2016, arXiv 1504.00702): x and y in -1..1; strength is the mean under that law.
    """
    law = maps.flatten(2).softmax(-1).view_as(maps)
    y, x = (torch.linspace(-1, 1, side, device=maps.device) for side in maps.shape[2:])
    return torch.cat([(law.sum(2) * x).sum(-1), (law.sum(3) * y).sum(-1), (law * maps).sum((2, 3))], 1)
