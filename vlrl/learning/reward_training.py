"""How a reward model learns: batches half of successes, a quarter of other frames, a quarter of failures' ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from vlrl.learning.dataset import About, Recorded
from vlrl.learning.imitate import chances
from vlrl.learning.labels import NEGATIVE, POSITIVE, Spans, hard, labels
from vlrl.policies.reward_network import RewardNetwork
from vlrl.reward_model import pixels_of

SHARES = {"positive": 0.5, "negative": 0.25, "hard": 0.25}
SHIFT = 0.05  # of a side: the most by which a picture is shifted
TINT = 0.2  # the most by which contrast and each colour are changed


@dataclass(frozen=True, eq=False)
class Frames:
    """N frames of some episodes."""

    pixels: tuple[Tensor, ...]  # uint8 [N, 3, height, width] of each camera, shrunk
    state: Tensor  # float32 [N, S]
    label: Tensor  # int64 [N]
    hard: Tensor  # bool [N]
    episode: Tensor  # int64 [N], which of them


def frames_of(found: Sequence[tuple[About, Recorded]], spans: Spans) -> Frames:
    """Every frame, opened: 49 kB for a picture of 128 x 128."""
    cameras = range(len(found[0][0].cameras))
    pixels = tuple(
        torch.stack([pixels_of(picture) for _, episode in found for picture in episode.pictures[camera]])
        for camera in cameras
    )
    fps = [data.fps for data, _ in found]
    each = [episode for _, episode in found]
    return Frames(
        pixels,
        torch.from_numpy(np.concatenate([episode.state for episode in each])),
        torch.from_numpy(np.concatenate([labels(*pair, spans) for pair in zip(each, fps, strict=True)])),
        torch.from_numpy(np.concatenate([hard(*pair, spans) for pair in zip(each, fps, strict=True)])),
        torch.from_numpy(np.repeat(np.arange(len(each)), [len(episode) for episode in each])),
    )


def train(network: RewardNetwork, frames: Frames, *, steps: int, batch: int, lr: float, seed: int) -> list[float]:
    """Binary cross-entropy -> the loss of every step."""
    rng = np.random.default_rng(seed)
    groups = {
        "positive": np.flatnonzero(frames.label == POSITIVE),
        "negative": np.flatnonzero((frames.label == NEGATIVE) & ~frames.hard),
        "hard": np.flatnonzero((frames.label == NEGATIVE) & frames.hard),
    }
    places = np.concatenate(list(groups.values()))
    chance = chances({name: len(group) for name, group in groups.items()}, SHARES)
    optimizer = torch.optim.AdamW(network.parameters(), lr=lr, weight_decay=1e-3)
    losses = []
    network.train()
    for step in range(steps):
        for setting in optimizer.param_groups:
            setting["lr"] = lr * min(1.0, (step + 1) / 20) * (1 - step / steps)
        chosen = torch.from_numpy(places[rng.choice(len(places), size=batch, p=chance)])
        pixels = [changed(camera[chosen], rng) for camera in frames.pixels]
        wanted = (frames.label[chosen] == POSITIVE).float()
        loss = functional.binary_cross_entropy_with_logits(network(pixels, frames.state[chosen]), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    network.eval()
    return losses


def changed(pixels: Tensor, rng: np.random.Generator) -> Tensor:
    """Pictures uint8 [B, 3, H, W] -> float32, each shifted a little, its contrast and colours changed a little."""
    count, _, height, width = pixels.shape
    high, wide = round(SHIFT * height), round(SHIFT * width)
    padded = functional.pad(pixels.float(), (wide, wide, high, high), mode="replicate")
    tops, lefts = rng.integers(0, 2 * high + 1, count), rng.integers(0, 2 * wide + 1, count)
    shifted = torch.stack([
        picture[:, top : top + height, left : left + width]
        for picture, top, left in zip(padded, tops.tolist(), lefts.tolist(), strict=True)
    ])  # fmt: skip
    scale = torch.from_numpy(rng.uniform(1 - TINT, 1 + TINT, (count, 3, 1, 1)).astype(np.float32))
    light = torch.from_numpy(rng.uniform(-TINT, TINT, (count, 1, 1, 1)).astype(np.float32))
    return (shifted * scale + 128 * light).clamp(0, 255)
