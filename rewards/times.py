"""Reads times and spans of time, the part of the strict parser that videos need. Nothing here raises on any text.

A time is a number of seconds (`6`, `6.5`, `6.5 s`, `12 seconds`) or of a clock (`1:06`, `01:01:06.5`). Each pattern
takes linear time: every number in it has a limit and nothing can be split in two ways.
"""

from __future__ import annotations

import re
from typing import Any, Literal

from rewards import parse

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
    found = _TIME.fullmatch(" ".join(text.lower().split()))
    if not found or len(text) > parse.MAX_LITERAL_CHARS:
        return parse.Parsed(reason="not_a_time")
    return parse.Parsed(float(found[1]) if found[1] else _clock(found[2]))


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
    written = text.strip()
    if notation in ("object", "quoted") and not written.startswith("{"):
        return _REFUSED
    read = (_literal if written[:1] in ("{", "[", "(") else _words)(written, notation)
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
    found = [parse.interval(each) for each in read.value]
    reason = next((each.reason for each in found if each.reason), None)
    return parse.Parsed(reason=reason) if reason else parse.Parsed(tuple(each.value for each in found))


_REFUSED = parse.Parsed(reason="not_in_notation")


def _words(written: str, notation: Notation) -> parse.Parsed:
    if len(written) > 1 and written[0] == written[-1] and written[0] in "'\"":
        written = written[1:-1]
    found = _WORDS.fullmatch(" ".join(written.split()).lower())
    if not found:
        return parse.Parsed(reason="not_an_interval")
    span = parse.interval([seconds(found[1]).value, seconds(found[4]).value])
    if span.reason or notation != "words":
        return span
    as_found = [tuple(map(float, pair)) for pair in _PAIR.findall(written)] == [span.value]
    return span if as_found and ":" not in written else _REFUSED


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
    given = [_number(read.value.get(key), notation) for key in ("start_time", "end_time")]
    reason = next((each.reason for each in given if each.reason), None)
    return parse.Parsed(reason=reason) if reason else parse.interval([each.value for each in given])


def _number(value: Any, notation: Notation) -> parse.Parsed:
    """A number, or a text that is one; in the papers' notation without units and clocks."""
    if not isinstance(value, str):
        return parse.Parsed(value)
    plain = notation == "any" or _PLAIN.fullmatch(value.strip())
    return seconds(value) if plain else parse.Parsed(reason="not_a_time")
