"""Video-R1's JSON (2503.21776; github.com/tulerfeng/Video-R1, src/open_r1/grpo.py): videos and images, any problem."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rewards.video_r1 import PROBLEMS
from tasks.readers import clip, fields
from tasks.readers.clip import Clip
from tasks.readers.rows import BadRowError, Form, Place

MEDIA = ("image", "video")


def _row(values: Mapping[str, Any], place: Place) -> Clip:
    """`{problem_id, problem, problem_type, data_type, options, solution, path, data_source}`.

    `solution` is `<answer>B</answer>`; `process`, a worked answer, is not read.
    """
    kind = fields.one_of(values, "problem_type", tuple(PROBLEMS))
    answer = fields.text(values, "solution").replace("<answer>", "").replace("</answer>", "").strip()
    chosen = kind == Clip.kind
    told = clip.chosen(values.get("options"), "options", answer) if chosen else clip.judged(kind, answer)
    tags = fields.tags(values, "problem_type", "data_type", "data_source")
    return replace(_shown(values, place), question=fields.text(values, "problem"), tags=tags, **told)


def _shown(values: Mapping[str, Any], place: Place) -> Clip:
    named = {**values, "id": values.get("problem_id")}
    media = fields.one_of(values, "data_type", MEDIA)
    if media == "video":
        return clip.clip(named, "path", place, question="")
    if not media:
        raise BadRowError(f"data_type: must be one of {', '.join(MEDIA)}")
    image, _ = fields.image(values, "path", place)
    return Clip(clip.identity(named, place), "", images=(image,))


KEYS = frozenset({"problem", "problem_type", "data_type", "solution", "path"})
VIDEO_QA = {"video_r1": Form(KEYS, _row)}
