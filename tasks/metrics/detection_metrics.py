"""What benchmarks of phrases, counts and classes report. An unreadable answer is None and counts against the model."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rewards.boxes import Box, iou
from rewards.matching import normal
from tasks.metrics.breakdown import by_category, mean

FOUND = 0.5  # IoU from which a phrase's box is found


def referring(predicted: Sequence[Box | None], truths: Sequence[Box]) -> dict[str, float]:
    """`acc50`: share of boxes with an IoU of at least 0.5; `miou`: mean IoU. In [0, 1], None has an IoU of 0.

    Sources: RefCOCO's Acc@0.5 as MDETR (2104.12763) counts it. VLM-R1's evaluation asks for more than 0.5.
    """
    overlaps = [iou(box, truth) if box else 0.0 for box, truth in zip(predicted, truths, strict=True)]
    return {"acc50": mean([float(overlap >= FOUND) for overlap in overlaps]), "miou": mean(overlaps)}


def counting(predicted: Sequence[float | None], truths: Sequence[int]) -> dict[str, float]:
    """`exact`: share of right counts; `mae`, `rmse`: mean absolute and root mean squared error, at least 0.

    None is never exact and else counts as the answer 0, so that saying nothing does not make the errors smaller.
    """
    errors = [(number or 0) - truth for number, truth in zip(predicted, truths, strict=True)]
    right = [float(number == truth) for number, truth in zip(predicted, truths, strict=True)]
    return {
        "exact": mean(right),
        "mae": mean([abs(error) for error in errors]),
        "rmse": math.sqrt(mean([error**2 for error in errors])),
    }


def classification(predicted: Sequence[str | None], truths: Sequence[str]) -> dict[str, float]:
    """Shares in [0, 1], names compared without case and outer spaces.

    `top1`: over samples; `class/NAME`: by true class, also where nothing is right; `macro`: their mean; `zero_hit`: the
    number of classes without a right answer.
    """
    right = [
        float(name is not None and normal(name) == normal(truth)) for name, truth in zip(predicted, truths, strict=True)
    ]
    classes = by_category(zip(truths, right, strict=True))
    return {
        "top1": mean(right),
        "macro": mean(list(classes.values())),
        **{f"class/{name}": value for name, value in classes.items()},
        "zero_hit": float(sum(value == 0 for value in classes.values())),
    }


def harmonic_mean(base: float, new: float) -> float:
    """CoOp's and CoCoOp's (2203.05557) number of base-to-new generalisation, from two accuracies; 0 if either is."""
    return 2 * base * new / (base + new) if base > 0 and new > 0 else 0.0
