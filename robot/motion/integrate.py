"""Speeds as targets: where the policy says how fast, and the robot wants to be told where to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from robot.motion.body import Channel


def speeds(channels: Sequence[Channel]) -> tuple[Channel, ...]:
    """The channels as a policy of speeds says them: every position becomes a speed in its unit a second."""
    return tuple(
        replace(each, unit=f"{each.unit}/s", kind="speed") if each.kind == "position" else each for each in channels
    )


def integrated(last: np.ndarray, asked: np.ndarray, channels: Sequence[Channel], hz: float) -> np.ndarray:
    """The next target, float32 [A], after `last`: positions go on by asked / hz, speeds of the robot are as asked."""
    moves = np.array([channel.kind == "position" for channel in channels])
    return np.where(moves, last + asked / np.float32(hz), asked).astype(np.float32)
