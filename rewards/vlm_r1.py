"""VLM-R1's rewards (2504.07615) for referring (`iou`, `format`) and detection; those for short answers: `answers`.

Those for detection take parsed objects; an answer that cannot be read is worth 0 to the caller. None of these raises on
any text or numbers. Source: github.com/om-ai-lab/VLM-R1, vlm_modules/*.py and grpo_jsonl.py; differences in
docs/rewards.md.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from functools import partial
from typing import Literal

from rewards import boxes, parse
from rewards.average_precision import average_precision
from rewards.boxes import Object
from rewards.format import tagged
from rewards.matching import ious
from rewards.total import total

# How the one box of a referring answer is written.
#   any: four numbers in a list, perhaps as `bbox_2d` of an object, which may be alone in a list, or in a ``` fence
#   brackets: also whole numbers from 0 on, without a space inside the brackets but after the commas
#   braces: also inside an object
Notation = Literal["any", "brackets", "braces"]
POSITION, COMPLETENESS = 0.7, 0.3  # weights in `weighted_sum`
FOUND = 0.5  # the IoU of a pair in `weighted_sum`
_BOX = re.compile(r"\[(\d+),\s*(\d+),\s*(\d+),\s*(\d+)\]")


@total(scale=2)
def iou(
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
    parsed = parse.answer(completion, thinking, partial(one_box, notation=notation))
    if parsed.reason or len(box) != 4:
        return 0.0
    return boxes.iou([side * scale[i % 2] for i, side in enumerate(parsed.value)], box, least)


@total()
def format(completion: str, thinking: bool = True, notation: Notation = "any") -> float:
    """0 or 1: the tags are right, and inside is one box."""
    return tagged(completion, thinking, partial(one_box, notation=notation))


def one_box(written: str, notation: Notation = "any") -> parse.Parsed:
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
    as_found = [tuple(map(float, sides)) for sides in _BOX.findall(written)] == [parsed.value]
    return parsed if as_found and (notation == "brackets" or isinstance(value, dict)) else _REFUSED


_REFUSED = parse.Parsed(reason="not_in_notation")


@total()
def od_length(predicted: Sequence[Object], truths: Sequence[Object]) -> float:
    """Average precision over IoUs from 0.5 to 0.95, x truths / predicted boxes where that is below 1; in [0, 1]."""
    return average_precision(predicted, truths) * _restraint(predicted, truths)


@total()
def od_ap(predicted: Sequence[Object], truths: Sequence[Object]) -> float:
    """The same as `od_length`: the paper's `od_ap` lets surplus boxes and unknown labels go free, here nothing does."""
    return od_length(predicted, truths)


@total()
def od_ap50(predicted: Sequence[Object], truths: Sequence[Object]) -> float:
    """Average precision at an IoU of 0.5, x truths / predicted boxes where that is below 1; in [0, 1]."""
    return average_precision(predicted, truths, (0.5,)) * _restraint(predicted, truths)


def _restraint(predicted: Sequence[Object], truths: Sequence[Object]) -> float:
    return min(1.0, len(truths) / len(predicted)) if predicted else 1.0


@total()
def weighted_sum(predicted: Sequence[Object], truths: Sequence[Object]) -> float:
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
def repetition(predicted: Sequence[Object]) -> float:
    """Minus the share of objects that are written again, box and label, in [-1, 0]."""
    return _repeated([(each.label, each.box) for each in predicted])


@total()
def phrases(completion: str, size: int = 6) -> float:
    """Minus the share of runs of `size` words that are written again, in [-1, 0]; case does not count."""
    words = completion.lower().split()
    return _repeated([tuple(words[i : i + size]) for i in range(len(words) - size + 1)])


def _repeated(items: Sequence[tuple]) -> float:
    return len(set(items)) / len(items) - 1.0 if items else 0.0


@total()
def cosine(length: int, correct: float, longest: int = 1024) -> float:
    """For a right answer 1 down to 0.5 at `longest` tokens and beyond, along a cosine; for a wrong one 0. In [0, 1].

    In the paper every answer counts as right, and past `longest` the reward rises again.
    """
    share = min(max(length / longest, 0.0), 1.0) if longest > 0 else 1.0
    return (0.75 + 0.25 * math.cos(math.pi * share)) if correct == 1 else 0.0
