"""Spans of time: reading them, temporal IoU and IoP."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any, Literal

from rewards import parse
from rewards.parse import total

Interval = tuple[float, float]
LONGEST = 1e300  # seconds; larger numbers could not be added


@total()
def tiou(predicted: Sequence[float], truth: Sequence[float]) -> float:
    """Temporal intersection over union, in [0, 1]."""
    return set_iou([predicted], [truth])


@total()
def iop(predicted: Sequence[float], truth: Sequence[float]) -> float:
    """Intersection over the predicted length, in [0, 1] (NExT-GQA, 2309.01327). To report, not to train on.

    Any short span inside the truth has 1; a point has 0, to which the official evaluation gives 1.
    """
    if not _sound([predicted, truth]):
        return 0.0
    return _share(_shared([predicted], [truth]), _length([predicted]))


@total()
def set_iou(predicted: Sequence[Sequence[float]], truths: Sequence[Sequence[float]]) -> float:
    """IoU of the times that two lists of spans cover, in [0, 1]; overlapping ones count once (VideoChat-R1).

    Two empty lists are worth 1; one, or one span that is not sound, is worth 0.
    """
    if not predicted or not truths:
        return float(len(predicted) == len(truths))
    if not _sound([*predicted, *truths]):
        return 0.0
    shared = _shared(predicted, truths)
    return _share(shared, _length(predicted) + _length(truths) - shared)


def merged(spans: Sequence[Sequence[float]]) -> list[Interval]:
    """The spans in order, those that overlap or touch made one."""
    joined: list[Interval] = []
    for start, end in sorted((float(start), float(end)) for start, end in spans):
        if joined and start <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(joined[-1][1], end)
        else:
            joined.append((start, end))
    return joined


def _sound(spans: Sequence[Sequence[float]]) -> bool:
    return all(len(span) == 2 and -LONGEST <= span[0] < span[1] <= LONGEST for span in spans)


def _length(spans: Sequence[Sequence[float]]) -> float:
    return math.fsum(end - start for start, end in merged(spans))


def _shared(first: Sequence[Sequence[float]], second: Sequence[Sequence[float]]) -> float:
    """The time that is in both; the spans are walked through once."""
    a, b = merged(first), merged(second)
    shared, i, j = [0.0], 0, 0
    while i < len(a) and j < len(b):
        shared.append(max(min(a[i][1], b[j][1]) - max(a[i][0], b[j][0]), 0.0))
        if a[i][1] < b[j][1]:
            i += 1
        else:
            j += 1
    return math.fsum(shared)


def _share(part: float, whole: float) -> float:
    return min(max(part / whole, 0.0), 1.0) if whole > 0 else 0.0


# Reads times and spans of time, the part of the strict parser that videos need. Nothing here raises on any text.
#
# A time is a number of seconds (`6`, `6.5`, `6.5 s`, `12 seconds`) or of a clock (`1:06`, `01:01:06.5`). Each pattern
# takes linear time: every number in it has a limit and nothing can be split in two ways.

# How one span of time is written.
#   any: words (`6 to 12`, `from 0:06 to 0:12`, `6.0-12.0 seconds`), two numbers in a list, or an object
#   words: as VideoChat-R1's and Time-R1's patterns find it, `6.0 to 12.0` or `6.0 and 12.0`, seconds only
#   object: JSON with `start_time` and `end_time`, seconds, in quotes or not (Temporal-R1)
#   quoted: and in quotes, in this order, nothing else (Temporal-R1's format)
Notation = Literal["any", "words", "object", "quoted"]
_SECONDS = r"[0-9]{1,9}(?:\.[0-9]{0,9})?"
_CLOCK = r"(?:[0-9]{1,3}:[0-5][0-9]|[0-9]{1,3}):[0-5][0-9](?:\.[0-9]{1,9})?"
_TIME = re.compile(rf"(?:({_SECONDS})|({_CLOCK}))(?: ?(?:s|sec|secs|second|seconds))?")
_WORDS = re.compile(
    rf"(?:from |between )?({_TIME.pattern})(?: (?:to|and) | ?[-\u2013] ?)({_TIME.pattern})\.?", re.IGNORECASE
)
_PAIR = re.compile(r"([0-9]{1,9}(?:\.[0-9]{0,9})?) (?:to|and) ([0-9]{1,9}(?:\.[0-9]{0,9})?)", re.IGNORECASE)
_PLAIN = re.compile(_SECONDS)
_QUOTED = re.compile(r'\s*\{\s*"start_time"\s*:\s*"[0-9.]+"\s*,\s*"end_time"\s*:\s*"[0-9.]+"\s*\}\s*')


def seconds(text: str) -> parse.Parsed:
    """One time -> seconds. Reason: not_a_time."""
    match = _TIME.fullmatch(" ".join(text.lower().split()))
    if not match or len(text) > parse.MAX_LITERAL_CHARS:
        return parse.Parsed(reason="not_a_time")
    return parse.Parsed(float(match[1]) if match[1] else _clock(match[2]))


def _clock(written: str) -> float:
    total = 0.0
    for part in written.split(":"):
        total = total * 60 + float(part)
    return total


def interval(text: str, notation: Notation = "any") -> parse.Parsed:
    """The text inside the answer tags -> its one span (start, end) in seconds, 0 <= start < end.

    Reasons: those of `parse.literal`; too_long, not_a_time, not_an_interval, empty_interval, not_in_notation.
    """
    if len(text) > parse.MAX_LITERAL_CHARS:
        return parse.Parsed(reason="too_long")
    stripped = text.strip()
    if notation in ("object", "quoted") and not stripped.startswith("{"):
        return _REFUSED
    read = (_literal if stripped[:1] in ("{", "[", "(") else _words)(stripped, notation)
    if read.reason or notation != "quoted":
        return read
    return read if _QUOTED.fullmatch(text) else _REFUSED


def intervals(text: str) -> parse.Parsed:
    """A list of pairs of seconds -> tuple of spans; `[]` is empty.

    Reasons: those of `parse.literal`; not_a_list, too_many_objects, not_an_interval, not_finite, empty_interval.
    """
    read = parse.literal(text)
    if read.reason:
        return read
    if not isinstance(read.value, list):
        return parse.Parsed(reason="not_a_list")
    if len(read.value) > parse.MAX_OBJECTS:
        return parse.Parsed(reason="too_many_objects")
    spans = [parse.interval(each) for each in read.value]
    reason = next((each.reason for each in spans if each.reason), None)
    return parse.Parsed(reason=reason) if reason else parse.Parsed(tuple(each.value for each in spans))


_REFUSED = parse.Parsed(reason="not_in_notation")


def _words(written: str, notation: Notation) -> parse.Parsed:
    if len(written) > 1 and written[0] == written[-1] and written[0] in "'\"":
        written = written[1:-1]
    match = _WORDS.fullmatch(" ".join(written.split()).lower())
    if not match:
        return parse.Parsed(reason="not_an_interval")
    span = parse.interval([seconds(match[1]).value, seconds(match[4]).value])
    if span.reason or notation != "words":
        return span
    same_span = [tuple(map(float, pair)) for pair in _PAIR.findall(written)] == [span.value]
    return span if same_span and ":" not in written else _REFUSED


def _literal(written: str, notation: Notation) -> parse.Parsed:
    if notation == "words":
        return _REFUSED
    read = parse.literal(written)
    if read.reason:
        return read
    if not isinstance(read.value, dict):
        return parse.interval(read.value)
    if notation != "any" and "'" in written:
        return _REFUSED
    bounds = [_number(read.value.get(key), notation) for key in ("start_time", "end_time")]
    reason = next((each.reason for each in bounds if each.reason), None)
    return parse.Parsed(reason=reason) if reason else parse.interval([each.value for each in bounds])


def _number(value: Any, notation: Notation) -> parse.Parsed:
    """A number, or a text that is one; in the papers' notation without units and clocks."""
    if not isinstance(value, str):
        return parse.Parsed(value)
    plain = notation == "any" or _PLAIN.fullmatch(value.strip())
    return seconds(value) if plain else parse.Parsed(reason="not_a_time")
