"""Grounding as Temporal-R1 (github.com/appletea233/Temporal-R1) and Time-R1 (2503.13377) train and test on it.

Sources: Temporal-R1, verl/utils/dataset_video.py; github.com/xiaomi-research/time-r1, dataset/timer1/annotations.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tasks.readers import clip, fields
from tasks.readers import video_fields as timed
from tasks.readers.clip import Clip
from tasks.readers.rows import BadRowError, Form, Place

MARK = "<video>"


def _temporal_r1(values: Mapping[str, Any], place: Place) -> Clip:
    """`{dataset, video, problem, solution: [start, end] as shares of video_length}`; the problem asks in a sentence."""
    question = fields.text(values, "problem").replace(MARK, "").strip()
    length = timed.number(values.get("video_length"), "video_length")
    shares = timed.pair(values.get("solution"), "solution")
    if not 0 <= shares[0] < shares[1] <= 1:
        raise BadRowError(f"solution: {list(shares)}: must be [start, end] as shares of the video, 0 to 1")
    row = clip.clip(values, "video", place, question=question, tags=fields.tags(values, "dataset"))
    return clip.spanned(row, [share * length for share in shares], "solution x video_length", timed.OVERRUN)


def _time_r1(values: Mapping[str, Any], place: Place) -> Clip:
    """`{video, sentence, timestamp, duration, qid?, video_start?, video_end?}`; times count from `video_start`."""
    source = str(values.get("qid")).split("|")
    told = {"source": source[1]} if len(source) > 2 else {}
    row = clip.clip(values, "video", place, question=fields.text(values, "sentence"), tags=told)
    cut = values.get("video_start"), values.get("video_end")
    return _cut(row, values, cut, timed.pair(values.get("timestamp"), "timestamp"), "timestamp")


def _tvgbench(values: Mapping[str, Any], place: Place) -> Clip:
    """`{path, question, answer: "13.4-28.1", duration, start, end, dataset_name, qsemtype}`."""
    parts = fields.text(values, "answer").split("-")
    tags = fields.tags(values, "dataset_name", "qsemtype")
    row = clip.clip(values, "path", place, question=fields.text(values, "question"), tags=tags)
    return _cut(row, values, (values.get("start"), values.get("end")), timed.pair(parts, "answer"), "answer")


def _cut(row: Clip, values: Mapping[str, Any], cut: tuple[Any, Any], told: tuple[float, float], of: str) -> Clip:
    """The row with its span, which counts from where the clip starts, unless the file is that clip already."""
    length = timed.number(values.get("duration"), "duration")
    whole = abs(row.duration - length) <= timed.MARGIN
    if None not in cut and not whole:
        shown = timed.shown({"start": cut[0], "end": cut[1]}, row.duration)
        told = told[0] + shown["start"], told[1] + shown["start"]
        row = replace(row, **shown)
    elif row.duration < length - timed.OVERRUN:
        raise BadRowError(f"duration: {length:g}, but the video has {row.duration:.2f} s; is it another one?")
    return clip.spanned(row, told, of, timed.OVERRUN)


SPANS = {
    "temporal_r1": Form(frozenset({"video", "problem", "solution", "video_length"}), _temporal_r1),
    "time_r1": Form(frozenset({"video", "sentence", "timestamp", "duration"}), _time_r1),
    "tvgbench": Form(frozenset({"path", "question", "answer", "duration", "start", "end"}), _tvgbench),
}
