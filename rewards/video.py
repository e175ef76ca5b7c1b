"""Rewards of video papers: SEED-Bench-R1, Temporal-R1, Time-R1, Video-R1, VideoChat-R1."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from functools import partial
from typing import Literal

from rewards import boxes, parse
from rewards import intervals as rewards_intervals
from rewards.intervals import intervals, set_iou, tiou
from rewards.parse import total
from rewards.text import multiple_choice, rouge, tagged, word_accuracy_of_all

# SEED-Bench-R1's reward (2503.24376) for multiple choice: the capital letter of the option comes first.
#
# `text.multiple_choice` also takes `b` and `The answer is B`. Nothing here raises on any text.
# Source: github.com/TencentARC/SEED-Bench-R1, grpo.py; differences in docs/rewards.md.


@total()
def seed_bench_r1_accuracy(completion: str, truth: str, thinking: bool = True) -> float:
    """0 or 1: the answer inside the tags is the right `option`."""
    read = parse.answer_text(completion, thinking)
    return 0.0 if read.reason else seed_bench_r1_option(read.value, truth)


@total()
def seed_bench_r1_option(predicted: str, truth: str) -> float:
    """0 or 1: both begin with the same capital letter, alone or before the option's text: `B`, `B.`, `B. cat`."""
    first = truth.strip()[:1]
    same = "A" <= first <= "Z" and predicted.lstrip()[:1] == first
    return multiple_choice(predicted, truth) if same else 0.0


# Temporal-R1's rewards for temporal grounding: one span of time, in seconds, inside the answer tags.
#
# `iou` with `notation: words` is also VideoChat-R1's and Time-R1's. None of these raises on any completion.
# Source: github.com/appletea233/Temporal-R1, verl/utils/reward_score/tvg.py; differences in docs/rewards.md.

ACCURACY, FORMAT = 0.5, 0.5  # weights in `overall`


@total()
def temporal_r1_iou(
    completion: str, truth: Sequence[float], thinking: bool = True, notation: rewards_intervals.Notation = "any"
) -> float:
    """Temporal IoU of the answer's one span with `truth` (start, end) in seconds, in [0, 1]."""
    read = parse.answer(completion, thinking, partial(rewards_intervals.interval, notation=notation))
    return 0.0 if read.reason else tiou(read.value, truth)


@total()
def temporal_r1_format(completion: str, thinking: bool = True, notation: rewards_intervals.Notation = "any") -> float:
    """0 or 1: the tags are right, and inside is one span. The paper's own is `quoted`."""
    return tagged(completion, thinking, partial(rewards_intervals.interval, notation=notation))


@total()
def temporal_r1_overall(
    completion: str, truth: Sequence[float], thinking: bool = True, notation: rewards_intervals.Notation = "any"
) -> float:
    """0.5 IoU + 0.5 format, in [0, 1]."""
    return ACCURACY * temporal_r1_iou(completion, truth, thinking, notation) + FORMAT * temporal_r1_format(
        completion, thinking, notation
    )


# Time-R1's reward for temporal grounding; its plain IoU is `video.temporal_r1_iou` with `notation: words`.
#
# Source: github.com/xiaomi-research/time-r1, main.py; differences in docs/rewards.md.


@total()
def time_r1_discounted(
    completion: str,
    truth: Sequence[float],
    duration: float,
    thinking: bool = True,
    notation: rewards_intervals.Notation = "any",
) -> float:
    """Temporal IoU x (1 - |start - true start| / duration) x the same of the ends, in [0, 1]. Never raises.

    An end that is off by the video's duration (seconds) or more is worth 0; so is a duration of 0 or less.
    """
    read = parse.answer(completion, thinking, partial(rewards_intervals.interval, notation=notation))
    overlap = 0.0 if read.reason else tiou(read.value, truth)
    if not overlap or not duration > 0:
        return 0.0
    near = [1.0 - abs(side - true) / duration for side, true in zip(read.value, truth, strict=True)]
    return overlap * near[0] * near[1] if min(near) > 0 else 0.0


# Video-R1's rewards (2503.21776): accuracy by the kind of problem, and what a group of rollouts earns on top.
#
# None of these raises on any text or numbers. Source: github.com/tulerfeng/Video-R1, src/open_r1/grpo.py and
# trainer/grpo_trainer.py; differences in docs/rewards.md.

# a number as written; thousands may be marked by commas
_NUMBER = re.compile(
    r"[+-]?(?:[0-9]{1,3}(?:,[0-9]{3}){1,5}|[0-9]{1,18}|(?=\.))(?:\.[0-9]{0,18})?(?:[eE][+-]?[0-9]{1,2})?"
)
STEPS = 10  # thresholds of `relative_accuracy`: relative errors of 0.5, 0.45, ... 0.05
BONUS, LENGTH_BONUS = 0.3, 0.2
CORRECT = 0.1  # accuracy above which a rollout counts as right


@total()
def video_r1_accuracy(completion: str, truth: str, problem_type: str, thinking: bool = True) -> float:
    """The answer inside the tags against the truth, in [0, 1]; 0 for an empty truth or an unknown type.

    Types: multiple choice (`exact`), numerical, regression, relative accuracy (`relative_accuracy`), OCR
    (`text.word_accuracy_of_all`), free-form (`text.rouge`).
    """
    read = parse.answer_text(completion, thinking)
    reward = PROBLEMS.get(problem_type)
    return 0.0 if read.reason or reward is None or not truth.strip() else reward(read.value, truth)


@total()
def video_r1_exact(predicted: str, truth: str) -> float:
    """0 or 1: the same text but for outer spaces; case counts. An empty truth is worth 0."""
    return float(predicted.strip() == truth.strip() != "")


@total()
def video_r1_numerical(predicted: str, truth: str) -> float:
    """0 or 1: the same number after rounding to two decimals, both with a `.` or `,` in them or both without."""
    first, second = _number(predicted), _number(truth)
    marked = [any(mark in text for mark in ".,") for text in (predicted, truth)]
    if first is None or second is None:
        return 0.0
    return float(marked[0] == marked[1] and round(first, 2) == round(second, 2))


@total()
def video_r1_regression(predicted: str, truth: str) -> float:
    """1 - |predicted - truth| / |truth|, in [0, 1]. A truth of 0 is worth 0 to all, as published."""
    error = _relative_error(predicted, truth)
    return 0.0 if error is None else 1.0 - min(error, 1.0)


@total()
def video_r1_relative_accuracy(predicted: str, truth: str) -> float:
    """Share of the thresholds 0.5, 0.45, ... 0.05 that the relative error is below, in [0, 1]. A truth of 0: 0.

    Source: the mean relative accuracy of VSI-Bench (2412.14171), Video-R1's measure for regression.
    """
    error = _relative_error(predicted, truth)
    return 0.0 if error is None else sum(error < (STEPS - i) / (2 * STEPS) for i in range(STEPS)) / STEPS


def _relative_error(predicted: str, truth: str) -> float | None:
    value, right = _number(predicted), _number(truth)
    return abs(value - right) / abs(right) if value is not None and right else None


def _number(text: str) -> float | None:
    stripped = text.strip()
    usable = _NUMBER.fullmatch(stripped) and any(char.isdigit() for char in stripped.lower().partition("e")[0])
    return float(stripped.replace(",", "")) if usable else None


PROBLEMS = {
    "multiple choice": video_r1_exact,
    "numerical": video_r1_numerical,
    "regression": video_r1_regression,
    "relative accuracy": video_r1_relative_accuracy,
    "OCR": word_accuracy_of_all,
    "free-form": rouge,
}


def video_r1_temporal_bonus(
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


def video_r1_length_bonus(
    accuracies: Sequence[float], lengths: Sequence[int], bonus: float = LENGTH_BONUS, least: int = 320, most: int = 512
) -> list[float]:
    """What each rollout of a group earns for its length: `bonus` to right ones of `least` to `most` tokens, else 0.

    Nothing where only one is right. In a group that is right throughout, length alone decides the advantages.
    """
    several = sum(accuracy > CORRECT for accuracy in accuracies) > 1
    paid = [several and a > CORRECT and least <= n <= most for a, n in zip(accuracies, lengths, strict=True)]
    return [bonus if each else 0.0 for each in paid]


# VideoChat-R1's rewards (2504.06958) for grounded question answering and tracking.
#
# A grounded answer is `<think>...</think><answer>A</answer><glue>[(6.0, 12.0), (20.0, 25.0)]</glue>`, spans in seconds.
# Its reward for temporal grounding is `video.temporal_r1_iou` with `notation: words`. None of these raises on any
# completion.
# Source: github.com/OpenGVLab/VideoChat-R1, grpo_*.py; differences in docs/rewards.md.

# How the spans are written. any: pairs in a list; tuples: as the paper's pattern reads them, `[(6.0, 12), (20, 25)]`
Notation = Literal["any", "tuples"]
_TUPLE = r"\([0-9]{1,9}(?:\.[0-9]{1,18})?, ?[0-9]{1,9}(?:\.[0-9]{1,18})?\)"
_TUPLES = re.compile(rf"\[(?:{_TUPLE}(?:, ?{_TUPLE})*,?)?\]\n?")
TRACKED = 8  # frames of a tracking answer


def videochat_r1_grounded(completion: str, thinking: bool = True, notation: Notation = "any") -> parse.Parsed:
    """A grounded answer -> (text of the answer, tuple of spans). The spans follow the answer, once.

    Reasons: those of `parse.answer_text` and `intervals.intervals`; no_glue, many_glues, not_in_notation.
    """
    if len(completion) > parse.MAX_CHARS:
        return parse.Parsed(reason="too_long")
    counts = completion.count("<glue>"), completion.count("</glue>")
    if counts != (1, 1):
        return parse.Parsed(reason="no_glue" if min(counts) == 0 else "many_glues")
    before, _, spans = completion.strip().partition("<glue>")
    text = parse.answer_text(before, thinking)
    if text.reason:
        return text
    if not spans.endswith("</glue>"):
        return parse.Parsed(reason="outside_tags")
    body = spans.removesuffix("</glue>")
    if notation == "tuples" and not _TUPLES.fullmatch(body):
        return parse.Parsed(reason="not_in_notation")
    read = intervals(body)
    return read if read.reason else parse.Parsed((text.value, read.value))


@total()
def videochat_r1_glue_iou(
    completion: str, truths: Sequence[Sequence[float]], thinking: bool = True, notation: Notation = "any"
) -> float:
    """IoU of the times covered by the answer's spans and by the true ones, in [0, 1]."""
    read = videochat_r1_grounded(completion, thinking, notation)
    return 0.0 if read.reason else set_iou(read.value[1], truths)


@total()
def videochat_r1_glue_format(completion: str, thinking: bool = True, notation: Notation = "any") -> float:
    """0 or 1: the tags are right, and the spans can be read."""
    return float(videochat_r1_grounded(completion, thinking, notation).reason is None)


@total()
def videochat_r1_answer(completion: str, truth: str, thinking: bool = True) -> float:
    """0 or 1: the right option (`text.multiple_choice`) in a grounded answer."""
    read = videochat_r1_grounded(completion, thinking)
    return 0.0 if read.reason else multiple_choice(read.value[0], truth)


def videochat_r1_tracks(text: str, count: int = TRACKED) -> parse.Parsed:
    """`count` boxes in a list, one for each frame: lists without a fence, as the paper reads them.

    Line breaks count for nothing. Reasons: those of `parse.python_literal` and `parse.box`; not_a_track.
    """
    read = parse.python_literal(text.replace("\n", ""))
    if read.reason:
        return read
    if not isinstance(read.value, list) or len(read.value) != count:
        return parse.Parsed(reason="not_a_track")
    if not all(isinstance(each, list) for each in read.value):
        return parse.Parsed(reason="not_a_track")
    boxes = [parse.box(each) for each in read.value]
    reason = next((each.reason for each in boxes if each.reason), None)
    return parse.Parsed(reason=reason) if reason else parse.Parsed(tuple(each.value for each in boxes))


@total()
def videochat_r1_tracking_iou(completion: str, truths: Sequence[Sequence[float]], thinking: bool = True) -> float:
    """Mean IoU over the frames of the answer's boxes with the true ones, in [0, 1]; one box for each true one."""
    read = parse.answer(completion, thinking, lambda text: videochat_r1_tracks(text, len(truths)))
    if read.reason or not truths or any(len(truth) != 4 for truth in truths):
        return 0.0
    return math.fsum(boxes.iou(box, truth) for box, truth in zip(read.value, truths, strict=True)) / len(truths)


@total()
def videochat_r1_tracking_format(completion: str, thinking: bool = True) -> float:
    """0 or 1: the tags are right, and inside are 8 boxes."""
    return float(parse.answer(completion, thinking, videochat_r1_tracks).reason is None)
