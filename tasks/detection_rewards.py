"""What detection may pay for a list of objects: ours, the papers', or a user's own, under one signature.

Each takes the predicted and the true objects and `thresholds`, and returns a number in [0, 1].
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise

from rewards import matching, vision_r1, vlm_r1
from rewards.boxes import Object
from tasks.base import check
from vlrl.plugins import load_plugin

Objects = Sequence[Object]
Thresholds = tuple[float, ...]
Reward = Callable[[Objects, Objects, Thresholds], float]


def _vision_r1(predicted: Objects, truths: Objects, thresholds: Thresholds) -> float:
    """Mean of recall and precision as they are without a schedule."""
    static = vision_r1.STATIC
    recall = vision_r1.recall(predicted, truths, static.hit, static.recall_band)
    return (recall + vision_r1.precision(predicted, truths, static.precision_band)) / 2


def _progressive(predicted: Objects, truths: Objects, thresholds: Thresholds) -> float:
    """The same under Vision-R1's progressive rules: a hit from the lowest threshold on, pairs paid between the lowest
    and the highest. As published: 0.5 and 0.75 at first, 0.75 and 0.9 from step 1500 on.
    """
    low, high = thresholds[0], thresholds[-1]
    recall = vision_r1.recall(predicted, truths, low, vision_r1.SCHEDULE[0].recall_band)
    return (recall + vision_r1.precision(predicted, truths, (low, high))) / 2


REWARDS: Mapping[str, Reward] = {
    "f1": matching.f1,
    "od_ap": lambda predicted, truths, thresholds: vlm_r1.od_ap(predicted, truths),
    "od_ap50": lambda predicted, truths, thresholds: vlm_r1.od_ap50(predicted, truths),
    "od_length": lambda predicted, truths, thresholds: vlm_r1.od_length(predicted, truths),
    "weighted_sum": lambda predicted, truths, thresholds: vlm_r1.weighted_sum(predicted, truths),
    "vision_r1": _vision_r1,
    "vision_r1_progressive": _progressive,
}


def stages(thresholds: Thresholds, schedule: Mapping[int, Thresholds] | None) -> dict[int, Thresholds]:
    """Training step -> thresholds from it on; always with step 0. UserError where they do not rise within (0, 1]."""
    found = {0: tuple(thresholds)} | {step: tuple(values) for step, values in (schedule or {}).items()}
    for step, values in found.items():
        key = f"schedule.{step}" if schedule and step in schedule else "thresholds"
        rising = all(a < b for a, b in pairwise(values))
        check(bool(values) and rising and min(values) > 0 and max(values) <= 1, key, values, "rising IoUs in (0, 1]")
        check(step >= 0, "schedule", step, "steps from 0")
    return found


@lru_cache
def find(name: str) -> Reward:
    """One of REWARDS, or `my_module:function` from anywhere on the Python path. UserError: there is none."""
    module, colon, attribute = name.partition(":")
    known = name in REWARDS or (colon and module and attribute)
    check(bool(known), "reward", name, f"one of {', '.join(REWARDS)}, or my_module:function")
    if not colon:
        return REWARDS[name]
    return load_plugin("detection reward", name, "task.reward")
