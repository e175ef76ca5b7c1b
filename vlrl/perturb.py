"""What a rollout strategy changes in a prompt: noise on what is seen, frames in another order, a hint at its end."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from PIL import Image

from vlrl.types import Episode, Observation, UserError, Video


def generator(seed: int, step: int, sample_id: str) -> np.random.Generator:
    """The random numbers of one sample in one step: a resumed run draws the same."""
    return np.random.default_rng([seed, step, zlib.crc32(sample_id.encode())])


def noisy(observation: Observation, deviation: float, rng: np.random.Generator) -> Observation:
    """Gaussian noise on every image and every frame; its standard deviation in shares of full brightness. RGB."""

    def grained(pixels: np.ndarray) -> np.ndarray:
        grain = 255 * deviation * rng.standard_normal(pixels.shape, dtype=np.float32)
        return np.clip(np.rint(pixels + grain), 0, 255).astype(np.uint8)

    def seen(part: str | Image.Image | Video) -> str | Image.Image | Video:
        if isinstance(part, str):
            return part
        if isinstance(part, Video):
            return replace(part, frames=np.stack([grained(frame) for frame in part.frames]))
        return Image.fromarray(grained(np.asarray(part.convert("RGB"))))

    return replace(observation, content=tuple(map(seen, observation.content)))


def moves(observation: Observation) -> bool:
    """Whether there is an order of frames to change."""
    return any(len(video.frames) > 1 for video in observation.videos)


def shuffled(observation: Observation, rng: np.random.Generator) -> Observation:
    """Every video's frames in another order, under the times that stood there before."""

    def mixed(video: Video) -> Video:
        order = np.arange(len(video.frames))
        while len(order) > 1 and (order[1:] > order[:-1]).all():  # the order in which they came shows nothing new
            order = rng.permutation(len(order))
        return replace(video, frames=video.frames[order])

    content = tuple(mixed(part) if isinstance(part, Video) else part for part in observation.content)
    return replace(observation, content=content)


def hinted(observation: Observation, text: str) -> Observation:
    """The prompt with a further line of text at its end."""
    return replace(observation, content=(*observation.content, f"\n{text}"))


def check_shown(episodes: Sequence[Episode], strategy: str) -> None:
    """UserError where an environment shows something else than its sample's prompt, so that no change would arrive."""
    for episode in episodes:
        if episode.turns[0].observation.content != episode.sample.prompt.content:
            raise UserError(
                f"rollouts: {strategy} changes prompts, but the environment of {episode.sample.id} shows another one "
                "than its sample's: use another strategy for this task"
            )
