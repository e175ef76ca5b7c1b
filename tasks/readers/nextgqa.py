"""NExT-QA (2105.08276) and NExT-GQA (2309.01327): a csv of questions, and the spans of their answers beside it.

Source: github.com/doc-doc/NExT-GQA, datasets/nextgqa.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tasks.readers import clip, fields, files
from tasks.readers import video_fields as timed
from tasks.readers.clip import Clip
from tasks.readers.rows import BadRowError, Form, Place

OPTIONS = ("a0", "a1", "a2", "a3", "a4")


def _question(values: Mapping[str, Any], place: Place) -> Clip:
    """`video_id` (or `video`), `question`, `qid`, `type`, `a0` to `a4`, `answer`: one of them, or its number from 0."""
    values = {name: str(value) for name, value in values.items()}  # parquet files have numbers
    key = "video_id" if "video_id" in values else "video"
    listed = timed.options([values.get(each) for each in OPTIONS], "a0 to a4")
    answer = fields.text(values, "answer")
    if answer not in listed and answer in "01234":
        answer = listed[int(answer)]
    named = {"id": f"{fields.text(values, key)}/{fields.text(values, 'qid')}", key: values[key]}
    more = {"question": fields.text(values, "question"), "tags": fields.tags(values, "type")}
    return clip.clip(named, key, place, **more, **clip.chosen(listed, "a0 to a4", answer))


def _grounded(values: Mapping[str, Any], place: Place) -> Clip:
    row = _question(values, place)
    if values["location"] is None:
        raise BadRowError(f"{values['spans_file']} has no span of question {row.id.partition('/')[2]}")
    return clip.spanned(row, values["location"], f"{values['spans_file']}: location")


def _located(rows: list[Any], file: Path) -> list[Any]:
    """The rows with `location`, their spans, of gsub_SPLIT.json beside SPLIT.csv: `{video: {location: {qid: ..}}}`."""
    name = f"gsub_{file.stem}.json"
    if not file.with_name(name).is_file():
        raise BadRowError(
            f"its spans are missing: put NExT-GQA's {name} beside it (datasets/nextgqa of its repository)"
        )
    found = files.decoded(file.with_name(name))
    if not isinstance(found, Mapping):
        raise BadRowError(f"{name} must be an object of videos")
    told = {"spans_file": name}
    return [{**row, **told, "location": _location(found, row)} if isinstance(row, Mapping) else row for row in rows]


def _location(found: Mapping[str, Any], row: Mapping[str, Any]) -> Any:
    """The spans of the row's question, None where there are none."""
    video = found.get(str(row.get("video_id") or row.get("video")))
    spans = video.get("location") if isinstance(video, Mapping) else None
    return spans.get(str(row.get("qid"))) if isinstance(spans, Mapping) else None


KEYS = frozenset({"video_id|video", "question", "answer", "qid", *OPTIONS})
VIDEO_QA = {"next_qa": Form(KEYS, _question)}
GROUNDED = {"next_gqa": Form(KEYS, _grounded, join=_located)}
