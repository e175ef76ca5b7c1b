"""What benchmarks of temporal grounding and grounded question answering report, and what answers without looking would.

Spans are (start, end) in seconds. An unreadable or missing prediction is None and counts as wrong: no denominator
shrinks. All numbers are shares in [0, 1].
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from rewards.intervals import Interval, iop, tiou
from tasks.metrics.breakdown import mean

RECALLS = (0.3, 0.5, 0.7)  # IoU from which on a span is found
GROUNDED = (0.3, 0.5)  # the same of NExT-GQA, for IoU and IoP
GRID = 20  # the constant spans that are tried start and end on multiples of 1 / GRID of the video


def grounding(predicted: Sequence[Interval | None], truths: Sequence[Interval]) -> dict[str, float]:
    """`miou`: mean temporal IoU; `r1@0.3`, `r1@0.5`, `r1@0.7`: share of spans with at least that IoU.

    Source: Charades-STA (1705.02101), which asks for more than the threshold in words and at least it in code.
    """
    overlaps = [tiou(span, truth) if span else 0.0 for span, truth in zip(predicted, truths, strict=True)]
    return {"miou": mean(overlaps)} | _found("r1", overlaps, RECALLS)


def grounded_qa(
    predicted: Sequence[Interval | None], truths: Sequence[Sequence[Interval]], right: Sequence[bool]
) -> dict[str, float]:
    """NExT-GQA's numbers (2309.01327): each prediction against the best of its question's true spans.

    Args:
        predicted: one span for each question.
        truths: the true spans of each question.
        right: whether the question was answered rightly.

    `miop`, `miou`, `iop@0.3`, `iou@0.3`, ... as above, IoP and IoU each with its own best span; `acc`: share of right
    answers; `acc@gqa`: right and an IoP of at least 0.5. A point has an IoP of 0 here and of 1 in the official code.
    """
    pairs = list(zip(predicted, truths, strict=True))
    within = [max((iop(span, each) for each in spans), default=0.0) if span else 0.0 for span, spans in pairs]
    overlaps = [max((tiou(span, each) for each in spans), default=0.0) if span else 0.0 for span, spans in pairs]
    both = [float(good and share >= 0.5) for good, share in zip(right, within, strict=True)]
    return {
        "miop": mean(within),
        **_found("iop", within, GROUNDED),
        "miou": mean(overlaps),
        **_found("iou", overlaps, GROUNDED),
        "acc": mean([float(each) for each in right]),
        "acc@gqa": mean(both),
    }


def _found(name: str, values: Sequence[float], bars: Sequence[float]) -> dict[str, float]:
    return {f"{name}@{bar}": mean([float(value >= bar) for value in values]) for bar in bars}


def whole_video(truths: Sequence[Interval], durations: Sequence[float]) -> dict[str, float]:
    """`grounding` of the answer that every event takes the whole video; durations in seconds."""
    return grounding([(0.0, duration) for duration in durations], truths)


def best_constant_interval(truths: Sequence[Interval], durations: Sequence[float]) -> tuple[dict[str, float], Interval]:
    """`grounding` of the one span, in shares of the video and the same for all, with the best mean IoU; and that span.

    Args:
        truths: the true span of each video.
        durations: of each video, in seconds, above 0.
    """
    if not truths:
        return grounding([], []), (0.0, 1.0)
    scaled = np.asarray(truths, dtype=np.float64) / np.asarray(durations, dtype=np.float64)[:, None]
    marks = np.arange(GRID + 1) / GRID
    spans = [(start, end) for start in marks for end in marks if start < end]
    means = [float(_overlaps(scaled, start, end).mean()) for start, end in spans]
    start, end = map(float, spans[int(np.argmax(means))])
    return grounding([(start * duration, end * duration) for duration in durations], truths), (start, end)


def _overlaps(truths: np.ndarray, start: float, end: float) -> np.ndarray:
    """Temporal IoU of one span with (n, 2) true ones."""
    low, high = truths.T
    shared = np.clip(np.minimum(high, end) - np.maximum(low, start), 0.0, None)
    return np.where(high > low, shared / (np.maximum(high, end) - np.minimum(low, start)), 0.0)


def most_frequent_letter(truths: Sequence[str]) -> tuple[float, str]:
    """(accuracy, letter) of the one answer that is right most often; of equally frequent ones the first in order."""
    if not truths:
        return 0.0, ""
    letter, count = min(Counter(truths).items(), key=lambda each: (-each[1], each[0]))
    return count / len(truths), letter
