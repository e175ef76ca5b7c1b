"""Video-R1's rewards (2503.21776): accuracy by the kind of problem, and what a group of rollouts earns on top.

None of these raises on any text or numbers. Source: github.com/tulerfeng/Video-R1, src/open_r1/grpo.py and
trainer/grpo_trainer.py; differences in docs/rewards.md.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from rewards import parse, words
from rewards.total import total

# a number as written; thousands may be marked by commas
_NUMBER = re.compile(
    r"[+-]?(?:[0-9]{1,3}(?:,[0-9]{3}){1,5}|[0-9]{1,18}|(?=\.))(?:\.[0-9]{0,18})?(?:[eE][+-]?[0-9]{1,2})?"
)
STEPS = 10  # thresholds of `relative_accuracy`: relative errors of 0.5, 0.45, ... 0.05
BONUS, LENGTH_BONUS = 0.3, 0.2
CORRECT = 0.1  # accuracy above which a rollout counts as right


@total()
def accuracy(completion: str, truth: str, problem_type: str, thinking: bool = True) -> float:
    """The answer inside the tags against the truth, in [0, 1]; 0 for an empty truth or an unknown type.

    Types: multiple choice (`exact`), numerical, regression, OCR (`words.accuracy`), free-form (`words.rouge`).
    """
    read = parse.answer_text(completion, thinking)
    reward = PROBLEMS.get(problem_type)
    return 0.0 if read.reason or reward is None or not truth.strip() else reward(read.value, truth)


@total()
def exact(predicted: str, truth: str) -> float:
    """0 or 1: the same text but for outer spaces; case counts. An empty truth is worth 0."""
    return float(predicted.strip() == truth.strip() != "")


@total()
def numerical(predicted: str, truth: str) -> float:
    """0 or 1: the same number after rounding to two decimals, both with a `.` or `,` in them or both without."""
    first, second = _number(predicted), _number(truth)
    marked = [any(mark in text for mark in ".,") for text in (predicted, truth)]
    if first is None or second is None:
        return 0.0
    return float(marked[0] == marked[1] and round(first, 2) == round(second, 2))


@total()
def regression(predicted: str, truth: str) -> float:
    """1 - |predicted - truth| / |truth|, in [0, 1]. A truth of 0 is worth 0 to all, as published."""
    error = _relative_error(predicted, truth)
    return 0.0 if error is None else 1.0 - min(error, 1.0)


@total()
def relative_accuracy(predicted: str, truth: str) -> float:
    """Share of the thresholds 0.5, 0.45, ... 0.05 that the relative error is below, in [0, 1]. A truth of 0: 0.

    Source: the mean relative accuracy of VSI-Bench (2412.14171), Video-R1's measure for regression.
    """
    error = _relative_error(predicted, truth)
    return 0.0 if error is None else sum(error < (STEPS - i) / (2 * STEPS) for i in range(STEPS)) / STEPS


def _relative_error(predicted: str, truth: str) -> float | None:
    value, right = _number(predicted), _number(truth)
    return abs(value - right) / abs(right) if value is not None and right else None


def _number(text: str) -> float | None:
    written = text.strip()
    usable = _NUMBER.fullmatch(written) and any(char.isdigit() for char in written.lower().partition("e")[0])
    return float(written.replace(",", "")) if usable else None


PROBLEMS = {
    "multiple choice": exact,
    "numerical": numerical,
    "regression": regression,
    "OCR": words.accuracy,
    "free-form": words.rouge,
}


def temporal_bonus(
    accuracies: Sequence[float], shuffled: Sequence[float], bonus: float = BONUS, ratio: float = 1.0
) -> list[float]:
    """T-GRPO: what each rollout of a group earns because the order of the frames helped; 0 or `bonus` each.

    Right rollouts (accuracy above 0.1) earn it if the group's mean accuracy is above 0 and at least `ratio` times that
    of `shuffled`, rollouts that saw the frames in another order. `ratio` is 0.8 in the published code, which also pays
    where order did harm.

    Where accuracy is 0 or 1, the group's other rewards are all equal and advantages are divided by the standard
    deviation, the bonus changes nothing: it only stretches the rewards, and the division takes that back. It acts
    beside other terms, with graded accuracies, or without that division.
    """
    if not accuracies or not shuffled:
        return [0.0] * len(accuracies)
    helped = sum(accuracies) / len(accuracies) >= ratio * sum(shuffled) / len(shuffled)
    return [bonus if helped and accuracy > CORRECT else 0.0 for accuracy in accuracies]


def length_bonus(
    accuracies: Sequence[float], lengths: Sequence[int], bonus: float = LENGTH_BONUS, least: int = 320, most: int = 512
) -> list[float]:
    """What each rollout of a group earns for its length: `bonus` to right ones of `least` to `most` tokens, else 0.

    Nothing where only one is right. In a group that is right throughout, length alone decides the advantages.
    """
    several = sum(accuracy > CORRECT for accuracy in accuracies) > 1
    paid = [several and a > CORRECT and least <= n <= most for a, n in zip(accuracies, lengths, strict=True)]
    return [bonus if each else 0.0 for each in paid]
