"""Episodes made by hand, and what a checkpoint makes of a state."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

from vlrl.checkpoint import flatten, unflatten
from vlrl.contrib.encoders import Encoder
from vlrl.types import Decision, Episode, Observation, Sample, Score, Step, Turn


def played(
    way: Sequence[Sequence[float]] | None, won: bool, *, key: str = "a", images: Sequence[Any] = (), **tags: str
) -> Episode:
    """An episode of len(way) - 1 steps, or of len(images) - 1, that showed these states and pictures."""
    length = len(images) if way is None else len(way)
    states = [None] * length if way is None else [np.float32(state) for state in way]
    pictures = [(image,) for image in images] or [()] * length
    shown = [Observation((*p, "Do it."), s) for p, s in zip(pictures, states, strict=True)]
    decision = Decision(np.zeros((1, 1), np.float32), torch.zeros(1), torch.zeros(1), False)
    turns = [Turn(now, decision, Step(then)) for now, then in pairwise(shown)]
    score = Score({"success": float(won)}, float(won))
    return Episode(Sample(key, Observation(()), tags=tags), 0, turns, score, float(won))


class Plain(Encoder):
    """An encoder whose vectors are the states, and of an episode the last of them."""

    def encode(self, episodes: Sequence[Episode]) -> list[np.ndarray]:
        return [
            np.stack([*(t.observation.state for t in e.turns), e.turns[-1].step.observation.state]) for e in episodes
        ]

    def embed_episodes(self, episodes: Sequence[Episode]) -> np.ndarray:
        return np.stack([e.turns[-1].step.observation.state for e in episodes])


@pytest.fixture(name="played", scope="session")
def _played() -> Callable[..., Episode]:
    return played


@pytest.fixture
def plain(monkeypatch) -> str:
    """The name of an encoder that gives the states as they are, for distances that can be computed by hand."""
    import sys
    from types import ModuleType

    module = ModuleType("plain_encoder")
    module.Plain = Plain
    monkeypatch.setitem(sys.modules, "plain_encoder", module)
    return "plain_encoder:Plain"


@pytest.fixture(scope="session")
def saved() -> Callable[[Any], Any]:
    """A state as it comes back from a checkpoint: through JSON and tensors of their own."""

    def through(state: Any) -> Any:
        tensors: dict[str, torch.Tensor] = {}
        plain_ = json.loads(json.dumps(flatten(state, tensors)))
        return unflatten(plain_, {name: tensor.clone() for name, tensor in tensors.items()})

    return through
