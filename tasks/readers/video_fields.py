"""What a row's fields must be where a video is asked about: the video, spans of time, options and their answer."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rewards.intervals import Interval
from tasks.readers import fields
from tasks.readers.rows import BadRowError, Place

MARGIN = 1.0  # seconds by which a span may leave its video: durations are rounded, and containers count differently
OVERRUN = 3.0  # seconds by which spans of Charades-STA, and of sets made of it, may: published ones end 1.5 s late
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def video(values: Mapping[str, Any], key: str, place: Place) -> tuple[Path, float]:
    """The video and its duration in seconds. `key` holds its name, with or without folders and ending."""
    name = values.get(key)
    if not isinstance(name, str) or not name.strip():
        raise BadRowError(f"{key}: must be the name of a video")
    file = place.videos.find(name.strip())
    return file, place.videos.duration(file)


def number(value: Any, key: str) -> float:
    """A finite number; one that is written as text is read."""
    try:
        found = float(value) if _number(value) or isinstance(value, str) else math.nan
    except (ValueError, OverflowError):
        found = math.nan
    if not math.isfinite(found):
        raise BadRowError(f"{key}: {value!r}: must be a finite number")
    return found


def pair(value: Any, key: str) -> Interval:
    """Two finite numbers."""
    if not _listed(value) or len(value) != 2:
        raise BadRowError(f"{key}: {value!r}: must be [start, end]")
    return number(value[0], key), number(value[1], key)


def span(value: Any, key: str, duration: float, margin: float = MARGIN) -> Interval:
    """(start, end) in seconds, cut to the video, which it may leave by `margin`."""
    start, end = pair(value, key)
    if start >= end:
        raise BadRowError(f"{key}: {[start, end]}: its start must be before its end")
    if start < -margin or end > duration + margin or start >= duration or end <= 0:
        raise BadRowError(f"{key}: {[start, end]} is outside the video of {duration:.2f} s; is it in seconds?")
    return max(start, 0.0), min(end, duration)


def spans(value: Any, key: str, duration: float, margin: float = MARGIN) -> tuple[tuple[Interval, ...], bool]:
    """One [start, end] or a list of them, in order, and whether one was cut to the video."""
    listed = value if _listed(value) and value and all(map(_listed, value)) else [value]
    found = tuple(span(each, key, duration, margin) for each in listed)
    cut = any(kept != tuple(map(float, each)) for each, kept in zip(listed, found, strict=True))
    return tuple(sorted(found)), cut


def shown(values: Mapping[str, Any], duration: float) -> dict[str, float]:
    """`start` and `end`, those that the row has, of what is shown of the video, as fields of Clip."""
    told = {key: number(values[key], key) for key in ("start", "end") if values.get(key) is not None}
    found = {key: min(max(value, 0.0), duration) for key, value in told.items()}
    if found and found.get("start", 0.0) >= found.get("end", duration):
        raise BadRowError(f"start, end: {list(told.values())} shows nothing of the video of {duration:.2f} s")
    return found


def _listed(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def options(value: Any, key: str) -> tuple[str, ...]:
    """At least two texts, all different, without the letters in front that some data sets write."""
    told = fields.texts([str(each) if _number(each) else each for each in value] if _listed(value) else value, key)
    if not 2 <= len(told) <= len(LETTERS):
        raise BadRowError(f"{key}: {len(told)} options; must be 2 to {len(LETTERS)}")
    bare = tuple(_bare(text, letter) for letter, text in zip(LETTERS, told, strict=False))
    told = told if None in bare else bare
    if repeated := [text for i, text in enumerate(told) if text in told[:i]]:
        raise BadRowError(f"{key}: {repeated[0]!r} is there twice; options must differ")
    return told


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _bare(text: str, letter: str) -> str | None:
    """`A. cat`, `A: cat`, `A) cat` or `(A) cat` without its letter; None where it has none."""
    marks = (f"({letter})", f"{letter}.", f"{letter}:", f"{letter})")
    return next((text.removeprefix(mark).strip() for mark in marks if text.startswith(mark)), None) or None


def letter(value: Any, key: str, listed: Sequence[str]) -> str:
    """The letter of the right option, told by its text, by its letter (`B`, `B.`, `(B)`) or by both (`B. cat`)."""
    told = str(value).strip() if isinstance(value, str) or _number(value) else ""
    if told in listed:
        return LETTERS[listed.index(told)]
    for right, text in zip(LETTERS, listed, strict=False):
        if told.strip("().:") == right or _bare(told, right) == text:
            return right
    raise BadRowError(f"{key}: {value!r} is none of the {len(listed)} options")
