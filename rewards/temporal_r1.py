"""Temporal-R1's rewards for temporal grounding: one span of time, in seconds, inside the answer tags.

`iou` with `notation: words` is also VideoChat-R1's and Time-R1's. None of these raises on any completion.
Source: github.com/appletea233/Temporal-R1, verl/utils/reward_score/tvg.py; differences in docs/rewards.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from rewards import parse, times
from rewards.format import tagged
from rewards.intervals import tiou
from rewards.total import total

ACCURACY, FORMAT = 0.5, 0.5  # weights in `overall`


@total()
def iou(completion: str, truth: Sequence[float], thinking: bool = True, notation: times.Notation = "any") -> float:
    """Temporal IoU of the answer's one span with `truth` (start, end) in seconds, in [0, 1]."""
    read = parse.answer(completion, thinking, partial(times.interval, notation=notation))
    return 0.0 if read.reason else tiou(read.value, truth)


@total()
def format(completion: str, thinking: bool = True, notation: times.Notation = "any") -> float:
    """0 or 1: the tags are right, and inside is one span. The paper's own is `quoted`."""
    return tagged(completion, thinking, partial(times.interval, notation=notation))


@total()
def overall(completion: str, truth: Sequence[float], thinking: bool = True, notation: times.Notation = "any") -> float:
    """0.5 IoU + 0.5 format, in [0, 1]."""
    return ACCURACY * iou(completion, truth, thinking, notation) + FORMAT * format(completion, thinking, notation)
