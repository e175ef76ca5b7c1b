"""Benchmarks of multiple choice: MVBench (2311.17005), Video-MME (2405.21075), LongVideoBench (2407.15754).

Sources: the data sets OpenGVLab/MVBench and lmms-lab/Video-MME of Hugging Face, as github.com/xiaomi-research/time-r1,
data_loader.py, reads them; longvideobench/LongVideoBench.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tasks.readers import clip, fields
from tasks.readers import video_fields as timed
from tasks.readers.clip import Clip
from tasks.readers.rows import BadRowError, Form, Place

NO_OPTION = "N/A"  # LongVideoBench's parquet files fill five columns
COLUMNS = tuple(f"option{i}" for i in range(5))


def _mvbench(values: Mapping[str, Any], place: Place) -> Clip:
    """`{video, question, candidates, answer: text, start?, end?}`; the file's name is the task."""
    row = _asked(values, "video", place, {"task": place.name})
    row = replace(row, **clip.chosen(values.get("candidates"), "candidates", values.get("answer")))
    return replace(row, **timed.shown(values, row.duration))


def _video_mme(values: Mapping[str, Any], place: Place) -> Clip:
    """`{videoID, question_id, question, options: ["A. ..", ..], answer: letter, duration: short, medium or long}`."""
    named = {**values, "id": values.get("question_id")}
    tags = fields.tags(values, "duration", "domain", "sub_category", "task_type")
    row = _asked(named, "videoID", place, tags)
    return replace(row, **clip.chosen(values.get("options"), "options", values.get("answer")))


def _long_video_bench(values: Mapping[str, Any], place: Place) -> Clip:
    """`{id, video_path, question, candidates, correct_choice: from 0, duration_group, subtitle_path?}`.

    Parquet files have `option0` to `option4` for `candidates`. Subtitles are not shown, only tagged.
    """
    listed = values.get("candidates")
    if listed is None:
        listed = [values.get(key) for key in COLUMNS if values.get(key) not in (None, NO_OPTION)]
    listed = timed.options(listed, "candidates")
    right = values.get("correct_choice")
    if type(right) is not int or not 0 <= right < len(listed):
        raise BadRowError(f"correct_choice: {right!r} is none of the {len(listed)} options, from 0")
    tags = {"duration_group": str(values.get("duration_group") or "")}
    tags |= {"subtitles": "yes" if values.get("subtitle_path") else "no"}
    tags |= fields.tags(values, "level", "question_category", "topic_category")
    row = _asked(values, "video_path", place, {key: value for key, value in tags.items() if value})
    return replace(row, options=listed, answer=timed.LETTERS[right])


def _asked(values: Mapping[str, Any], key: str, place: Place, tags: Mapping[str, str]) -> Clip:
    return clip.clip(values, key, place, question=fields.text(values, "question"), tags=tags)


VIDEO_QA = {
    "mvbench": Form(frozenset({"video", "question", "candidates", "answer"}), _mvbench),
    "video_mme": Form(frozenset({"videoID", "question", "options", "answer"}), _video_mme),
    "long_video_bench": Form(
        frozenset({"video_path", "question", "candidates|option0", "correct_choice"}), _long_video_bench
    ),
}
