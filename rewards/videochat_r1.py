"""VideoChat-R1's rewards (2504.06958) for grounded question answering and tracking.

A grounded answer is `<think>...</think><answer>A</answer><glue>[(6.0, 12.0), (20.0, 25.0)]</glue>`, spans in seconds.
Its reward for temporal grounding is `temporal_r1.iou` with `notation: words`. None of these raises on any completion.
Source: github.com/OpenGVLab/VideoChat-R1, grpo_*.py; differences in docs/rewards.md.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Literal

from rewards import answers, boxes, parse, times
from rewards.intervals import set_iou
from rewards.total import total

# How the spans are written. any: pairs in a list; tuples: as the paper's pattern reads them, `[(6.0, 12), (20, 25)]`
Notation = Literal["any", "tuples"]
_TUPLE = r"\([0-9]{1,9}(?:\.[0-9]{1,18})?, ?[0-9]{1,9}(?:\.[0-9]{1,18})?\)"
_TUPLES = re.compile(rf"\[(?:{_TUPLE}(?:, ?{_TUPLE})*,?)?\]\n?")
TRACKED = 8  # frames of a tracking answer


def grounded(completion: str, thinking: bool = True, notation: Notation = "any") -> parse.Parsed:
    """A grounded answer -> (text of the answer, tuple of spans). The spans follow the answer, once.

    Reasons: those of `parse.answer_text` and `times.intervals`; no_glue, many_glues, not_in_notation.
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
    written = spans.removesuffix("</glue>")
    if notation == "tuples" and not _TUPLES.fullmatch(written):
        return parse.Parsed(reason="not_in_notation")
    read = times.intervals(written)
    return read if read.reason else parse.Parsed((text.value, read.value))


@total()
def glue_iou(
    completion: str, truths: Sequence[Sequence[float]], thinking: bool = True, notation: Notation = "any"
) -> float:
    """IoU of the times covered by the answer's spans and by the true ones, in [0, 1]."""
    read = grounded(completion, thinking, notation)
    return 0.0 if read.reason else set_iou(read.value[1], truths)


@total()
def glue_format(completion: str, thinking: bool = True, notation: Notation = "any") -> float:
    """0 or 1: the tags are right, and the spans can be read."""
    return float(grounded(completion, thinking, notation).reason is None)


@total()
def answer(completion: str, truth: str, thinking: bool = True) -> float:
    """0 or 1: the right option (`answers.multiple_choice`) in a grounded answer."""
    read = grounded(completion, thinking)
    return 0.0 if read.reason else answers.multiple_choice(read.value[0], truth)


def tracks(text: str, count: int = TRACKED) -> parse.Parsed:
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
    found = [parse.box(each) for each in read.value]
    reason = next((each.reason for each in found if each.reason), None)
    return parse.Parsed(reason=reason) if reason else parse.Parsed(tuple(each.value for each in found))


@total()
def tracking_iou(completion: str, truths: Sequence[Sequence[float]], thinking: bool = True) -> float:
    """Mean IoU over the frames of the answer's boxes with the true ones, in [0, 1]; one box for each true one."""
    read = parse.answer(completion, thinking, lambda text: tracks(text, len(truths)))
    if read.reason or not truths or any(len(truth) != 4 for truth in truths):
        return 0.0
    return math.fsum(boxes.iou(box, truth) for box, truth in zip(read.value, truths, strict=True)) / len(truths)


@total()
def tracking_format(completion: str, thinking: bool = True) -> float:
    """0 or 1: the tags are right, and inside are 8 boxes."""
    return float(parse.answer(completion, thinking, tracks).reason is None)
