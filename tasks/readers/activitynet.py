"""ActivityNet Captions (1705.00754): one JSON object for all videos. Other sets are converted to this form, too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tasks.readers import clip, fields
from tasks.readers.clip import Clip
from tasks.readers.rows import BadRowError, Form, Place

KEYS = ("timestamps", "sentences")


def _rows(document: Mapping[str, Any]) -> list[Any]:
    """`{video: {duration, timestamps: [[start, end], ..], sentences}}` -> a row for each sentence, in order.

    A video whose lists do not fit is one row, which is bad. BadRowError: the file is not ActivityNet's.
    """
    if not any(isinstance(told, Mapping) and set(KEYS) <= set(told) for told in document.values()):
        raise BadRowError("is one object, but none of its values has timestamps and sentences")
    return [row for video, told in document.items() for row in _sentences(video, told)]


def _sentences(video: str, told: Any) -> list[dict[str, Any]]:
    listed = [told.get(key) for key in KEYS] if isinstance(told, Mapping) else []
    if not listed or not all(isinstance(each, list) for each in listed) or len(listed[0]) != len(listed[1]):
        return [{"problem": f"{video}: timestamps and sentences must be lists of one length"}]
    return [
        {"id": f"{video}/{i}", "video": video, "timestamp": timestamp, "sentence": sentence}
        for i, (timestamp, sentence) in enumerate(zip(*listed, strict=True), start=1)
    ]


def _row(values: Mapping[str, Any], place: Place) -> Clip:
    """`duration` is not used: what the file itself lasts counts."""
    if "problem" in values:
        raise BadRowError(values["problem"])
    row = clip.clip(values, "video", place, question=fields.text(values, "sentence"))
    return clip.spanned(row, values["timestamp"], f"timestamps of {values['id']}")


SPANS = {"activitynet": Form(frozenset(), _row, rows=_rows)}
