"""Rewards of detection and classification papers: VLM-R1, Vision-R1, CLS-RL."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np

from rewards import boxes, parse
from rewards.boxes import assign, average_precision, gious, ious, normal
from rewards.parse import Object, total
from rewards.text import tagged

# CLS-RL's rewards (2503.16188) for naming what a picture shows, with thoughts and without.
#
# None of these raises on any completion. Source: github.com/minglllli/CLS-RL, grpo*.py; differences in docs/rewards.md.


@total()
def cls_rl_accuracy(completion: str, truth: str, thinking: bool = True) -> float:
    """0 or 1: the answer is the truth; neither case nor white space around counts. An empty truth is worth 0."""
    answer = parse.answer_text(completion, thinking)
    return float(not answer.reason and bool(truth.strip()) and _plain(answer.value) == _plain(truth))


@total()
def cls_rl_format(completion: str) -> float:
    """0 or 1: thoughts, then one answer that is not empty."""
    return tagged(completion, True, _not_empty)


@total()
def cls_rl_exact(completion: str, truth: str) -> float:
    """0 or 1: the completion is the truth, letter by letter: no thoughts, no tags. An empty truth is worth 0."""
    return float(completion == truth != "")


def _plain(text: str) -> str:
    return text.strip().lower()


def _not_empty(text: str) -> parse.Parsed:
    return parse.Parsed(text) if text.strip() else parse.Parsed(reason="empty_answer")


# Vision-R1's rewards (2503.18013) for a list of objects without tags; the paper adds the three up.
#
# Predicted and true boxes are matched box first: one to one, so that the sum of their L1 distances in pixels - 1 where
# the labels are the same - GIoU is least. As training goes on the bars rise (`SCHEDULE`). Unlike in the paper a pair
# with
# different labels is worth 0, and precision is shared among all predicted boxes, so that surplus ones cost.
# Nothing here raises on numbers. Source: github.com/jefferyZhan/Griffon, folder Vision-R1; differences in
# docs/rewards.md.

Band = tuple[float, float]


@dataclass(frozen=True)
class BarStage:
    """The bars in one part of a training: the GIoU that is a `hit`; bands, below which all is 0 and above which 1."""

    hit: float = 0.5
    recall_band: Band | None = None
    precision_band: Band | None = None


STATIC = BarStage()  # without a schedule, as the published script runs
SCHEDULE: Mapping[int, BarStage] = {
    0: BarStage(0.5, (0.5, 0.75), (0.5, 0.75)),
    1500: BarStage(0.75, (0.5, 0.75), (0.75, 0.9)),
}  # training step from which on -> its bars


def vision_r1_stage(step: int | None, schedule: Mapping[int, BarStage] = SCHEDULE) -> BarStage:
    """The bars at a training step; `STATIC` without one or before the first."""
    stages = [first for first in schedule if step is not None and first <= step]
    return schedule[max(stages)] if stages else STATIC


@total()
def vision_r1_dual_format(completion: str, instances: int) -> float:
    """0 or 1: the completion is a list of labelled boxes; where there are no `instances`, an empty list or None."""
    read = parse.objects(completion)
    return float(read.reason is None and (instances > 0 or not read.value))


@total()
def vision_r1_recall(
    predicted: Sequence[Object], truths: Sequence[Object], hit: float = 0.5, band: Sequence[float] | None = None
) -> float:
    """Share of the truths whose pair has a GIoU above `hit`, in [0, 1], then put through the band.

    A pair at exactly `hit` counts `hit`, not 1, as published. Two empty lists are worth 1, one is worth 0.
    """
    if not predicted or not truths:
        return float(not predicted and not truths)
    return _banded(sum(_banded(value, (hit, hit)) for value in vision_r1_pairs(predicted, truths)) / len(truths), band)


@total()
def vision_r1_precision(
    predicted: Sequence[Object], truths: Sequence[Object], band: Sequence[float] | None = None
) -> float:
    """Mean over the predicted boxes of their pairs' GIoUs, in [0, 1], each put through the band; 0 without a pair.

    Two empty lists are worth 1, one is worth 0.
    """
    if not predicted or not truths:
        return float(not predicted and not truths)
    return sum(_banded(value, band) for value in vision_r1_pairs(predicted, truths)) / len(predicted)


def vision_r1_pairs(predicted: Sequence[Object], truths: Sequence[Object]) -> list[float]:
    """GIoU in [-1, 1] of each matched pair, as many as the shorter list has; -1 where the labels differ.

    The order of the lists says nothing: of matchings that cost the same, one is chosen by the boxes themselves.
    """
    first, second = (sorted(objects, key=lambda o: (o.box, o.label)) for objects in (predicted, truths))
    a, b = (np.array([o.box for o in objects], dtype=float) for objects in (first, second))
    names = [normal(truth.label) for truth in second]
    same = np.array([[normal(each.label) == name for name in names] for each in first])
    overlap = gious(a, b)
    with np.errstate(all="ignore"):
        apart = np.nan_to_num(np.abs(a[:, None] - b[None]).sum(axis=-1), nan=np.inf)
    rows, columns = assign(same + overlap - np.minimum(apart, 1e300))
    return np.where(same, overlap, -1.0)[rows, columns].tolist()


def _banded(value: float, band: Sequence[float] | None) -> float:
    """0 below the band, 1 above it, itself within, cut off to [0, 1]."""
    if band is not None and value < band[0]:
        return 0.0
    return 1.0 if band is not None and value > band[1] else min(max(value, 0.0), 1.0)


# VLM-R1's rewards (2504.07615) for referring (`iou`, `format`) and detection; those for short answers: `answers`.
#
# Those for detection take parsed objects; an answer that cannot be read is worth 0 to the caller. None of these
# raises on
# any text or numbers. Source: github.com/om-ai-lab/VLM-R1, vlm_modules/*.py and grpo_jsonl.py; differences in
# docs/rewards.md.

# How the one box of a referring answer is written.
#   any: four numbers in a list, perhaps as `bbox_2d` of an object, which may be alone in a list, or in a ``` fence
#   brackets: also whole numbers from 0 on, without a space inside the brackets but after the commas
#   braces: also inside an object
Notation = Literal["any", "brackets", "braces"]
POSITION, COMPLETENESS = 0.7, 0.3  # weights in `weighted_sum`
FOUND = 0.5  # the IoU of a pair in `weighted_sum`
_BOX = re.compile(r"\[(\d+),\s*(\d+),\s*(\d+),\s*(\d+)\]")


@total(scale=2)
def vlm_r1_iou(
    completion: str,
    box: Sequence[float],
    scale: Sequence[float] = (1.0, 1.0),
    thinking: bool = True,
    notation: Notation = "any",
    least: float = 0.0,
) -> float:
    """IoU of the answer's one box with `box`, in [0, 1]. `scale` is the size of the original / shown image (x, y).

    0 where they overlap by `least` pixels or less, which are 1 in the paper's code.
    """
    parsed = parse.answer(completion, thinking, partial(vlm_r1_one_box, notation=notation))
    if parsed.reason or len(box) != 4:
        return 0.0
    return boxes.iou([side * scale[i % 2] for i, side in enumerate(parsed.value)], box, least)


@total()
def vlm_r1_format(completion: str, thinking: bool = True, notation: Notation = "any") -> float:
    """0 or 1: the tags are right, and inside is one box."""
    return tagged(completion, thinking, partial(vlm_r1_one_box, notation=notation))


def vlm_r1_one_box(written: str, notation: Notation = "any") -> parse.Parsed:
    """The text inside the answer tags -> its one box.

    Reasons: those of `parse.literal` and `parse.box`; not_in_notation.
    """
    read = parse.literal(written)
    if read.reason:
        return read
    value = read.value[0] if isinstance(read.value, list) and len(read.value) == 1 else read.value
    parsed = parse.box(value.get("bbox_2d") if isinstance(value, dict) else value)
    if parsed.reason or notation == "any":
        return parsed
    same_box = [tuple(map(float, sides)) for sides in _BOX.findall(written)] == [parsed.value]
    return parsed if same_box and (notation == "brackets" or isinstance(value, dict)) else _REFUSED


_REFUSED = parse.Parsed(reason="not_in_notation")


@total()
def vlm_r1_od_length(predicted: Sequence[Object], truths: Sequence[Object]) -> float:
    """Average precision over IoUs from 0.5 to 0.95, x truths / predicted boxes where that is below 1; in [0, 1]."""
    return average_precision(predicted, truths) * _restraint(predicted, truths)


@total()
def vlm_r1_od_ap(predicted: Sequence[Object], truths: Sequence[Object]) -> float:
    """The same as `od_length`: the paper's `od_ap` lets surplus boxes and unknown labels go free, here nothing does."""
    return vlm_r1_od_length(predicted, truths)


@total()
def vlm_r1_od_ap50(predicted: Sequence[Object], truths: Sequence[Object]) -> float:
    """Average precision at an IoU of 0.5, x truths / predicted boxes where that is below 1; in [0, 1]."""
    return average_precision(predicted, truths, (0.5,)) * _restraint(predicted, truths)


def _restraint(predicted: Sequence[Object], truths: Sequence[Object]) -> float:
    return min(1.0, len(truths) / len(predicted)) if predicted else 1.0


@total()
def vlm_r1_weighted_sum(predicted: Sequence[Object], truths: Sequence[Object]) -> float:
    """0.7 position + 0.3 completeness, in [0, 1]. Two empty lists are worth 1, one is worth 0.

    Pairs are made from the highest IoU down to 0.5, whatever their labels; one with different labels is no pair, which
    is paid 0.3 in the paper. Position is the sum of the IoUs over the number of truths, or of predicted boxes if there
    are more, of which the paper lets all but 0.15 go free. Completeness is 1 less the mean of the share of truths and
    the share of predicted boxes without a pair.
    """
    if not predicted or not truths:
        return float(not predicted and not truths)
    paired = _greedy(predicted, truths)
    left = 1 - len(paired) / len(truths), 1 - len(paired) / len(predicted)
    position = math.fsum(paired) / max(len(truths), len(predicted))
    return POSITION * position + COMPLETENESS * (1 - sum(left) / 2)


def _greedy(predicted: Sequence[Object], truths: Sequence[Object]) -> list[float]:
    """IoUs of the pairs with the same label. Equal IoUs: the same label first, then by the boxes, not their order."""
    first, second = (sorted(objects, key=lambda o: (o.box, o.label)) for objects in (predicted, truths))
    overlaps = ious([o.box for o in first], [o.box for o in second])
    ranked = sorted(
        (-overlaps[i, j], first[i].label.lower() != second[j].label.lower(), i, j)
        for i, j in zip(*(overlaps >= FOUND).nonzero(), strict=True)
    )
    rows, columns, paired = set(), set(), []
    for negative, other, i, j in ranked:
        if i not in rows and j not in columns:
            rows.add(i)
            columns.add(j)
            paired += [] if other else [-float(negative)]
    return paired


@total()
def vlm_r1_repetition(predicted: Sequence[Object]) -> float:
    """Minus the share of objects that are written again, box and label, in [-1, 0]."""
    return _repeated([(each.label, tuple(each.box)) for each in predicted])


@total()
def vlm_r1_phrases(completion: str, size: int = 6) -> float:
    """Minus the share of runs of `size` words that are written again, in [-1, 0]; case does not count."""
    words = completion.lower().split()
    return _repeated([tuple(words[i : i + size]) for i in range(len(words) - size + 1)])


def _repeated(items: Sequence[tuple]) -> float:
    return len(set(items)) / len(items) - 1.0 if items else 0.0


@total()
def vlm_r1_cosine(length: int, correct: float, longest: int = 1024) -> float:
    """For a right answer 1 down to 0.5 at `longest` tokens and beyond, along a cosine; for a wrong one 0. In [0, 1].

    In the paper every answer counts as right, and past `longest` the reward rises again.
    """
    share = min(max(length / longest, 0.0), 1.0) if longest > 0 else 1.0
    return (0.75 + 0.25 * math.cos(math.pi * share)) if correct == 1 else 0.0
