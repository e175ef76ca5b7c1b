"""A Gymnasium environment of one step: which handwritten digit is this? It pays 1 for the right one.

    vlrl warmstart configs/models/embedded_digits.yaml
    PYTHONPATH=examples/environments vlrl train examples/environments/digits_gym.yaml

Seeds from 2**30 on, those of held-out episodes, are 602 pictures of their own, all others 1,195.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete

from tasks.gym import TEST_SEEDS
from tasks.rendering.figures import LABELS, digits_of, single

SIZE = 64  # pixels


class Digits(gymnasium.Env):
    """The observation is uint8 [64, 64, 3], the action 0 to 9."""

    observation_space = Box(0, 255, (SIZE, SIZE, 3), np.uint8)
    action_space = Discrete(len(LABELS))

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        positions, labels = digits_of("test" if (seed or 0) >= TEST_SEEDS else "train")
        place = (seed or 0) % len(positions)
        self._image, self._label = np.asarray(single(int(positions[place]), (SIZE, SIZE))), int(labels[place])
        return self._image, {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        return self._image, float(action == self._label), True, False, {}


gymnasium.register("Digits-v0", Digits)
