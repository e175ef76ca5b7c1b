"""Time-R1's reward for temporal grounding; its plain IoU is `temporal_r1.iou` with `notation: words`.

Source: github.com/xiaomi-research/time-r1, main.py; differences in docs/rewards.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from rewards import parse, times
from rewards.intervals import tiou
from rewards.total import total


@total()
def discounted(
    completion: str, truth: Sequence[float], duration: float, thinking: bool = True, notation: times.Notation = "any"
) -> float:
    """Temporal IoU x (1 - |start - true start| / duration) x the same of the ends, in [0, 1]. Never raises.

    An end that is off by the video's duration (seconds) or more is worth 0; so is a duration of 0 or less.
    """
    read = parse.answer(completion, thinking, partial(times.interval, notation=notation))
    overlap = 0.0 if read.reason else tiou(read.value, truth)
    if not overlap or not duration > 0:
        return 0.0
    near = [1.0 - abs(side - true) / duration for side, true in zip(read.value, truth, strict=True)]
    return overlap * near[0] * near[1] if min(near) > 0 else 0.0
