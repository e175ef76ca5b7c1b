"""The small models and prompts of `gpu_check.py`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from gpu_model import ASKED, FILLER, noise
from torch import Tensor

from vlrl.policies.tiny import build, tokenizer_from
from vlrl.policies.vlm import VLM
from vlrl.types import Decision, Episode, Observation, Sample

SIZES = {"hidden": 64, "layers": 2, "vision_hidden": 64, "vision_layers": 2}
IMAGES = (4, 6, 4, 9, 6)  # visual tokens of the prompts: not all alike


class Small:
    """A small model in float32, and policies over it."""

    def __init__(self, family: str, device: torch.device):
        patch = {"qwen2_5_vl": 14, "qwen3_vl": 16}[family]
        model, self.processor = build(tokenizer_from([ASKED + FILLER]), family=family, patch=patch, **SIZES)
        self.model, self.side = model.to(device), 2 * patch

    def policy(self, shared: bool = True, tokens: int = 12, stop: bool = False, **options) -> VLM:
        policy = VLM(self.model, self.processor, max_tokens=tokens, shared_prefix=shared, **options)
        return prepared(policy, tuple(range(100, 140)) if stop else ())

    def episodes(self, group: int = 3) -> list[Episode]:
        return episodes_of(self.side, group)


def prepared(policy: VLM, stops: tuple[int, ...]) -> VLM:
    policy.codec.stop_ids, policy.codec.see = stops, lambda image: image
    return policy


def episodes_of(side: int, group: int) -> list[Episode]:
    """Prompts of unequal lengths. side: pixels of a visual token."""
    rng, episodes = np.random.default_rng(0), []
    for p, visual in enumerate(IMAGES):
        image = noise(visual, rng)
        image = image.resize((image.width * side // 28, image.height * side // 28))
        sample = Sample(str(p), Observation((image, ASKED + FILLER * p)))
        episodes += [Episode(sample, p) for _ in range(group)]
    return episodes


def rollout(policy: VLM, episodes: Sequence[Episode], keep: bool = False) -> list[Decision]:
    return policy.act(episodes, [episode.sample.prompt for episode in episodes], keep=keep)


def sampled(decisions: Sequence[Decision]) -> list[float]:
    return torch.cat([decision.logprobs for decision in decisions]).tolist()


def evaluated(policy: VLM, decisions: Sequence[Decision]) -> Tensor:
    """Log-probabilities of all tokens, one behind the other, on the CPU."""
    now = policy.evaluate(decisions)
    return now.logprobs[now.mask].detach().cpu()


def gap(left: Sequence[float] | Tensor, right: Sequence[float] | Tensor) -> float:
    return float((torch.as_tensor(left) - torch.as_tensor(right)).abs().max())
