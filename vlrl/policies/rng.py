"""Random numbers that belong to an episode: equal wherever, and beside whatever, it is played.

A counter-based generator (Philox, Salmon et al., SC 2011) keyed by the episode's stream and turn gives each decision
its own sequence: a number hangs on the key and its place in the sequence alone. So one process draws what many do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from vlrl.types import Episode, Policy

if TYPE_CHECKING:
    import torch

TRIES = 2**16  # turns of one try of an episode, at most


def key(policy: Policy) -> int:
    """A new key for the episodes of one collection, below 2**62, drawn from the policy's generator; 0: it has none."""
    return 0 if policy.generator is None else draw_seed(policy.generator)


def draw_seed(generator: torch.Generator) -> int:
    import torch

    return int(torch.randint(2**62, (), generator=generator, device=generator.device))


def uniforms(episodes: Sequence[Episode], count: int, generator: torch.Generator) -> np.ndarray:
    """Numbers in [0, 1) for each episode's next decision, float32 [B, count].

    Args:
        generator: gives the key of episodes that have no stream; it is left alone where all have one.
    """
    made = np.empty((len(episodes), count), np.float32)
    for row, own in zip(made, _each(episodes, generator), strict=True):
        own.random(dtype=np.float32, out=row)
    return made


def normals(episodes: Sequence[Episode], shape: Sequence[int], generator: torch.Generator) -> np.ndarray:
    """As `uniforms`, from N(0, 1): float32 [B, *shape]."""
    made = np.empty((len(episodes), *shape), np.float32)
    for row, own in zip(made, _each(episodes, generator), strict=True):
        own.standard_normal(dtype=np.float32, out=row)
    return made


def _each(episodes: Sequence[Episode], generator: torch.Generator) -> Iterator[np.random.Generator]:
    """The generator of each episode's next decision: one object, set anew, as making one costs more than its use."""
    bits = np.random.Philox(key=0)
    own, state = np.random.Generator(bits), bits.state
    spare = None
    for place, episode in enumerate(episodes):
        if episode.stream is None and spare is None:
            spare = draw_seed(generator)
        name, number = episode.stream or (spare, place)
        turn = len(episode.faults) * TRIES + len(episode.turns)  # what is played anew draws anew
        state["state"]["key"] = np.array([name, number << 32 | turn], np.uint64)
        bits.state = state  # the counter is at its beginning
        yield own
