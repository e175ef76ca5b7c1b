"""Rows of scenes and of clips: what each field may be, and the frames that a task shows of a clip."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from PIL.Image import Image

from rewards.intervals import Interval
from rewards.parse import Object
from rewards.video import PROBLEMS
from tasks.base import check
from tasks.data import rows
from tasks.data.images import BadRowError, open_image
from tasks.data.rows import Form, Place
from tasks.data.video import Cache, FrameSampling
from vlrl.types import Annotation, Video

# Images with what is on them: the rows of detection, referring expressions and classification.


@dataclass(frozen=True)
class LabelledScene:
    """One question about images (files or encoded bytes). Boxes are in pixels of the first image."""

    id: str
    images: tuple[Path | bytes, ...]
    question: str = ""  # '': the task asks in its own words
    labels: tuple[str, ...] = ()  # categories asked for, absent ones included; () where only the question says
    objects: tuple[Object, ...] = ()
    crowd: tuple[bool, ...] = ()  # of each object: a region of many, which COCO neither asks for nor counts
    areas: tuple[float, ...] = ()  # of each object, in square pixels, as annotated: COCO's sizes go by it
    unsure: tuple[str, ...] = ()  # labels of which not every object is marked (LVIS)
    answer: str = ""  # the truth as text: a class, or what VLM-R1 has between its answer tags
    method: str = ""  # VLM-R1's `accu_reward_method`
    weight: float = 1.0  # how much it counts
    tags: Mapping[str, str] = field(default_factory=dict)

    @property
    def single(self) -> tuple[Object, ...]:
        """The objects without the crowds."""
        crowd = self.crowd or (False,) * len(self.objects)
        return tuple(thing for thing, many in zip(self.objects, crowd, strict=True) if not many)


def read_object(label: Any, box: Any, key: str, size: rows.Size, order: str = rows.CORNERS) -> Object:
    """A labelled box. BadRowError: no label, a box outside the image, one that looks like shares of it."""
    if not isinstance(label, str) or not label.strip():
        raise BadRowError(f"{key}: {label!r}: an object needs a label")
    placed = rows.box(box, key, size, order=order)
    if max(placed) <= 1 < max(size):
        raise BadRowError(f"{key}: {list(placed)} lies in the first pixel; is it in shares of the image?")
    return Object(label.strip(), placed)


def identity(values: Mapping[str, Any], place: Place) -> str:
    """The row's `id` behind its file's name, as data sets number the rows of each file anew; else the row's number."""
    return f"{place.name}/{values['id']}" if values.get("id") is not None else place.id


def areas(objects: Sequence[Object]) -> tuple[float, ...]:
    return tuple((o.box[2] - o.box[0]) * (o.box[3] - o.box[1]) for o in objects)


def scene(name: str, image: Path | bytes, objects: Sequence[Object], **more: Any) -> LabelledScene:
    """A row of one image without crowds, whose labels are its objects' unless told."""
    listed = {"labels": tuple(dict.fromkeys(o.label for o in objects)), **more}
    return LabelledScene(
        name, (image,), objects=tuple(objects), crowd=(False,) * len(objects), areas=areas(objects), **listed
    )


def _plain(values: Mapping[str, Any], place: Place) -> LabelledScene:
    """`{image, objects: [{label, box}]}`, corners in pixels; `labels` (all that is asked for), `question`, `id`."""
    image, size = rows.image(values, "image", place)
    listed = values.get("objects")
    if not isinstance(listed, list) or not all(isinstance(item, Mapping) for item in listed):
        raise BadRowError("objects: must be a list of {label, box}, empty where there is nothing")
    objects = [read_object(o.get("label"), o.get("box"), f"objects[{i}]", size) for i, o in enumerate(listed)]
    declared = rows.texts(values["labels"], "labels") if values.get("labels") is not None else ()
    labels = tuple(dict.fromkeys([*declared, *(o.label for o in objects)]))
    if declared and set(labels) > set(declared):
        raise BadRowError(f"labels: lacks {', '.join(sorted(set(labels) - set(declared)))}, which objects have")
    question = rows.text_field(values, "question") if values.get("question") is not None else ""
    if not labels and not question:
        raise BadRowError("labels: without objects, labels or question must say what is looked for")
    return scene(identity(values, place), image, objects, labels=labels, question=question)


def _phrase(values: Mapping[str, Any], place: Place) -> LabelledScene:
    """`{image, phrase, box}`, corners in pixels, perhaps `id`; other texts are kept as tags."""
    named = rows.tags(values, *(key for key in values if key not in ("id", "image", "phrase")))
    return referred(values, place, "image", "phrase", "box", tags=named)


def referred(
    values: Mapping[str, Any], place: Place, image: str, phrase: str, box: str, order: str = rows.CORNERS, **more: Any
) -> LabelledScene:
    """A row of one phrase and its box, by the keys that they have there. `more` are fields of LabelledScene."""
    words = rows.text_field(values, phrase)
    picture, size = rows.image(values, image, place)
    rows.same_size(values, size)
    corners = rows.corners(values.get(box)) if order == rows.XYWH else values.get(box)
    return scene(identity(values, place), picture, [read_object(words, corners, box, size, order)], **more)


def _labelled(values: Mapping[str, Any], place: Place) -> LabelledScene:
    """`{image, label}`, perhaps `question` and `id`; `folder`: the image's folder is its class."""
    image, _ = rows.image(values, "image", place)
    question = rows.text_field(values, "question") if values.get("question") is not None else ""
    return LabelledScene(identity(values, place), (image,), question, answer=rows.text_field(values, "label"))


def _folder(values: Mapping[str, Any], place: Place) -> LabelledScene:
    """A row is named after its file, so that files added later change no other's name."""
    return _labelled({**values, "id": values.get("image")}, place)


SCENES = {"jsonl": Form(frozenset({"image", "objects"}), _plain)}
REFERRING = {"jsonl": Form(frozenset({"image", "phrase", "box"}), _phrase)}
LABELLED = {
    "jsonl": Form(frozenset({"image", "label"}), _labelled),
    "folder": Form(frozenset({"image", "label"}), _folder),
}


# What a row's fields must be where a video is asked about: the video, spans of time, options and their answer.

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
        result = float(value) if _number(value) or isinstance(value, str) else math.nan
    except (ValueError, OverflowError):
        result = math.nan
    if not math.isfinite(result):
        raise BadRowError(f"{key}: {value!r}: must be a finite number")
    return result


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


def span_fields(value: Any, key: str, duration: float, margin: float = MARGIN) -> tuple[tuple[Interval, ...], bool]:
    """One [start, end] or a list of them, in order, and whether one was cut to the video."""
    listed = value if _listed(value) and value and all(map(_listed, value)) else [value]
    spans = tuple(span(each, key, duration, margin) for each in listed)
    cut = any(kept != tuple(map(float, each)) for each, kept in zip(listed, spans, strict=True))
    return tuple(sorted(spans)), cut


def read_bounds(values: Mapping[str, Any], duration: float) -> dict[str, float]:
    """`start` and `end`, those that the row has, of what is shown of the video, as fields of Clip."""
    bounds = {key: number(values[key], key) for key in ("start", "end") if values.get(key) is not None}
    clamped = {key: min(max(value, 0.0), duration) for key, value in bounds.items()}
    if clamped and clamped.get("start", 0.0) >= clamped.get("end", duration):
        raise BadRowError(f"start, end: {list(bounds.values())} shows nothing of the video of {duration:.2f} s")
    return clamped


def _listed(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def option_fields(value: Any, key: str) -> tuple[str, ...]:
    """At least two texts, all different, without the letters in front that some data sets write."""
    options = rows.texts([str(each) if _number(each) else each for each in value] if _listed(value) else value, key)
    if not 2 <= len(options) <= len(LETTERS):
        raise BadRowError(f"{key}: {len(options)} options; must be 2 to {len(LETTERS)}")
    bare = tuple(_bare(text, letter) for letter, text in zip(LETTERS, options, strict=False))
    options = options if None in bare else bare
    if repeated := [text for i, text in enumerate(options) if text in options[:i]]:
        raise BadRowError(f"{key}: {repeated[0]!r} is there twice; options must differ")
    return options


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _bare(text: str, letter: str) -> str | None:
    """`A. cat`, `A: cat`, `A) cat` or `(A) cat` without its letter; None where it has none."""
    marks = (f"({letter})", f"{letter}.", f"{letter}:", f"{letter})")
    return next((text.removeprefix(mark).strip() for mark in marks if text.startswith(mark)), None) or None


def letter(value: Any, key: str, listed: Sequence[str]) -> str:
    """The letter of the right option, told by its text, by its letter (`B`, `B.`, `(B)`) or by both (`B. cat`)."""
    answer = str(value).strip() if isinstance(value, str) or _number(value) else ""
    if answer in listed:
        return LETTERS[listed.index(answer)]
    for right, text in zip(LETTERS, listed, strict=False):
        if answer.strip("().:") == right or _bare(answer, right) == text:
            return right
    raise BadRowError(f"{key}: {value!r} is none of the {len(listed)} options")


# Videos with questions about them: the rows of video question answering and temporal grounding.


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
    kind: str = "multiple choice"  # how `answer` is judged: a key of rewards.video.PROBLEMS
    spans: tuple[Interval, ...] = ()  # when what is asked about is seen, inside the video
    weight: float = 1.0
    tags: Mapping[str, str] = field(default_factory=dict)  # level, type, duration group, ...


def clip(values: Mapping[str, Any], key: str, place: Place, **more: Any) -> Clip:
    """A row about the video that `key` names. `more` are fields of Clip, `question` among them."""
    file, duration = video(values, key, place)
    return Clip(**{"id": identity(values, place), "video": file, "duration": duration, **more})


def spanned(row: Clip, values: Any, of: str, margin: float = MARGIN) -> Clip:
    """The row with the spans `values` in seconds, which it has under the key `of`, cut to the video.

    The tag `clamped` says that one was cut.
    """
    spans, cut = span_fields(values, of, row.duration, margin)
    window = row.start, row.duration if row.end is None else row.end
    if spans[0][0] < window[0] or spans[-1][1] > window[1]:
        raise BadRowError(
            f"{of}: {list(map(list, spans))} is not within what is shown, {window[0]:g} to {window[1]:g} s"
        )
    return replace(row, spans=spans, tags={**row.tags, **({"clamped": "yes"} if cut else {})})


def chosen(options: Any, of: str, answer: Any) -> dict[str, Any]:
    """Options, which the row has under the key `of`, and the right one's letter or text, as fields of Clip."""
    listed = option_fields(options, of)
    return {"options": listed, "answer": letter(answer, "answer", listed)}


def judged(kind: Any, answer: str) -> dict[str, Any]:
    """An answer without options and how it is judged, as fields of Clip. BadRowError: nothing would be right."""
    kinds = tuple(name for name in PROBLEMS if name != Clip.kind)
    if kind not in kinds:
        raise BadRowError(f"kind: {kind!r}: must be one of {', '.join(kinds)} where there are no options")
    if PROBLEMS[kind](answer, answer) < 1:
        raise BadRowError(f"answer: {answer!r}: not even this would be right where it is judged as {kind}")
    return {"kind": kind, "answer": answer}


def _read_clip(values: Mapping[str, Any], place: Place) -> Clip:
    """`{video, question or query}`, perhaps `id`, and `start`, `end` of what is shown; other texts become tags."""
    key = "question" if values.get("question") is not None else "query"
    named = rows.tags(values, *(name for name in values if name not in PLAIN))
    row = clip(values, "video", place, question=rows.text_field(values, key), tags=named)
    return replace(row, **read_bounds(values, row.duration))


def _spans(values: Mapping[str, Any], place: Place) -> Clip:
    """The same with `span`: [start, end] in seconds of the whole video, or `spans`, a list of them."""
    key = "span" if values.get("span") is not None else "spans"
    return spanned(_read_clip(values, place), values.get(key), key)


def _question(values: Mapping[str, Any], place: Place) -> Clip:
    """`{video, question, options, answer: letter or text}`, or without options `kind`, of rewards.video."""
    row = _read_clip(values, place)
    if values.get("options") is not None:
        return replace(row, **chosen(values["options"], "options", values.get("answer")))
    return replace(row, **judged(values.get("kind"), rows.text_field(values, "answer")))


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


# What a task shows of a row's video and images: the row's clip, within a budget of frames and pixels.


@dataclass(frozen=True)
class MediaReader:
    """Reads the media of rows, each video once while it fits into the cache."""

    sampling: FrameSampling
    cache: Cache

    def see(self, row: Clip) -> tuple[Video | Image, ...]:
        """The row's clip, then its images.

        Raises:
            BadVideoError: the file has changed since it was checked.
        """
        images = tuple(map(open_image, row.images))
        if row.video is None:
            return images
        return self.cache.read(row.video, replace(self.sampling, start=row.start, end=row.end)), *images


def viewer(fps: float, frames: int, total_pixels: int) -> MediaReader:
    """At most `frames` frames at `fps` a second, `total_pixels` in all. UserError: options out of range."""
    check(fps > 0, "fps", fps, "above 0 frames a second")
    check(frames >= 2, "frames", frames, "at least 2")
    check(total_pixels >= 1, "total_pixels", total_pixels, "at least 1")
    return MediaReader(FrameSampling(fps=fps, least=min(4, frames), most=frames, total_pixels=total_pixels), Cache())


def span_text(span: Interval) -> str:
    """As reports say it: '2 to 4.5 s'."""
    return f"{span[0]:g} to {span[1]:g} s"


def span_marks(role: Literal["truth", "prediction"], said: str, spans: Sequence[Interval]) -> tuple[Annotation, ...]:
    """What reports show of spans of the first video: the text `said`, and each span on the time axis."""
    return Annotation(role, "text", label=said), *(Annotation(role, "span", tuple(map(float, span))) for span in spans)


def format_seconds(time: float) -> str:
    """Seconds as an answer has them: to the nanosecond, without zeros at the end."""
    return f"{time:.9f}".rstrip("0").rstrip(".")
