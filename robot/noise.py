"""Noise on a script's controls, so that its demonstrations show how to come back (DART, arXiv 1703.09327)."""

from __future__ import annotations

import numpy as np

from robot.controls import Controls


def noisy(rng: np.random.Generator, controls: Controls, control: np.ndarray, noise: float) -> np.ndarray:
    """The control float32 [A] within the limits, with normal noise of `noise` times half the limits' width."""
    half = (controls.high - controls.low) / 2
    return controls.checked(control.clip(controls.low, controls.high) + rng.normal(0, noise, len(half)) * half)
