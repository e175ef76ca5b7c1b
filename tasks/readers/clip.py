"""Videos with questions about them: the rows of video question answering and temporal grounding."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from rewards.intervals import Interval
from rewards.video_r1 import PROBLEMS
from tasks.readers import fields
from tasks.readers import video_fields as timed
from tasks.readers.rows import BadRowError, Form, Place
from tasks.readers.scene import identity


@dataclass(frozen=True)
class Clip:
    """One question about a video, or about images. Times are seconds of the whole video, also where a clip is cut."""

    id: str
    question: str
    video: Path | None = None
    images: tuple[Path | bytes, ...] = ()  # shown behind the video
    start: float = 0.0  # of what is shown of the video
    end: float | None = None  # None: its end
    duration: float = 0.0  # of the video, as it is, not as annotated; 0 without a video
    options: tuple[str, ...] = ()  # without their letters, in order
    answer: str = ""  # a letter where there are options, else the truth as text
    kind: str = "multiple choice"  # how `answer` is judged: a key of rewards.video_r1.PROBLEMS
    spans: tuple[Interval, ...] = ()  # when what is asked about is seen, inside the video
    weight: float = 1.0
    tags: Mapping[str, str] = field(default_factory=dict)  # level, type, duration group, ...


def clip(values: Mapping[str, Any], key: str, place: Place, **more: Any) -> Clip:
    """A row about the video that `key` names. `more` are fields of Clip, `question` among them."""
    file, duration = timed.video(values, key, place)
    return Clip(**{"id": identity(values, place), "video": file, "duration": duration, **more})


def spanned(row: Clip, told: Any, of: str, margin: float = timed.MARGIN) -> Clip:
    """The row with the spans `told` in seconds, which it has under the key `of`, cut to the video.

    The tag `clamped` says that one was cut.
    """
    spans, cut = timed.spans(told, of, row.duration, margin)
    shown = row.start, row.duration if row.end is None else row.end
    if spans[0][0] < shown[0] or spans[-1][1] > shown[1]:
        raise BadRowError(f"{of}: {list(map(list, spans))} is not within what is shown, {shown[0]:g} to {shown[1]:g} s")
    return replace(row, spans=spans, tags={**row.tags, **({"clamped": "yes"} if cut else {})})


def chosen(options: Any, of: str, answer: Any) -> dict[str, Any]:
    """Options, which the row has under the key `of`, and the right one's letter or text, as fields of Clip."""
    listed = timed.options(options, of)
    return {"options": listed, "answer": timed.letter(answer, "answer", listed)}


def judged(kind: Any, answer: str) -> dict[str, Any]:
    """An answer without options and how it is judged, as fields of Clip. BadRowError: nothing would be right."""
    kinds = tuple(name for name in PROBLEMS if name != Clip.kind)
    if kind not in kinds:
        raise BadRowError(f"kind: {kind!r}: must be one of {', '.join(kinds)} where there are no options")
    if PROBLEMS[kind](answer, answer) < 1:
        raise BadRowError(f"answer: {answer!r}: not even this would be right where it is judged as {kind}")
    return {"kind": kind, "answer": answer}


def _asked(values: Mapping[str, Any], place: Place) -> Clip:
    """`{video, question or query}`, perhaps `id`, and `start`, `end` of what is shown; other texts become tags."""
    key = "question" if values.get("question") is not None else "query"
    named = fields.tags(values, *(name for name in values if name not in PLAIN))
    row = clip(values, "video", place, question=fields.text(values, key), tags=named)
    return replace(row, **timed.shown(values, row.duration))


def _spans(values: Mapping[str, Any], place: Place) -> Clip:
    """The same with `span`: [start, end] in seconds of the whole video, or `spans`, a list of them."""
    key = "span" if values.get("span") is not None else "spans"
    return spanned(_asked(values, place), values.get(key), key)


def _question(values: Mapping[str, Any], place: Place) -> Clip:
    """`{video, question, options, answer: letter or text}`, or without options `kind`, of rewards.video_r1."""
    row = _asked(values, place)
    if values.get("options") is not None:
        return replace(row, **chosen(values["options"], "options", values.get("answer")))
    return replace(row, **judged(values.get("kind"), fields.text(values, "answer")))


def _grounded(values: Mapping[str, Any], place: Place, key: str = "") -> Clip:
    """A question, and the spans where its answer is seen."""
    key = key or ("span" if values.get("span") is not None else "spans")
    return spanned(_question(values, place), values.get(key), key)


PLAIN = ("id", "video", "question", "query", "answer", "kind")  # texts that are no tags
ASKED = frozenset({"video", "question|query"})
SPANS = {"jsonl": Form(ASKED | {"span|spans"}, _spans)}
VIDEO_QA = {"jsonl": Form(ASKED | {"answer", "options|kind"}, _question)}
GROUNDED = {
    "jsonl": Form(ASKED | {"answer", "options|kind", "span|spans"}, _grounded),
    "videochat_r1": Form(ASKED | {"answer", "options", "glue"}, partial(_grounded, key="glue")),
}
