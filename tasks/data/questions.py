"""Rows that ask a question: choices, open answers, LaTeX."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from rewards import math
from rewards.math import read_number, unwrapped
from rewards.tables import Table, read_table
from rewards.text import KINDS, TextTruth, exact_match, grade
from tasks.data import records, rows
from tasks.data.images import BadRowError
from tasks.data.records import Clip, identity
from tasks.data.rows import Form, Place
from vlrl.decoders import parse_json

MARK = "<image>"
_LETTER = re.compile(r"\(?([A-J])[).]?")


@dataclass(frozen=True)
class ImageQuestion:
    """One question about images (files or encoded bytes)."""

    id: str
    images: tuple[Path | bytes, ...]
    question: str
    truth: TextTruth
    weight: float = 1.0
    tags: Mapping[str, str] = field(default_factory=dict)
    boxes: tuple[tuple[float, float, float, float], ...] = ()  # where the answer is seen, in pixels of the first image


def truth(answer: Any, options: Sequence[str] = (), kind: str = "", **more: Any) -> TextTruth:
    """The truth of an answer as data sets write it. `kind` is told, or what the answer looks like.

    A lone capital letter is a choice, a number is one, what `rewards.math` reads and is no word is a formula,
    the rest is text. BadRowError: not even the answer itself would be right.
    """
    text = str(answer).strip() if isinstance(answer, str | int | float) and not isinstance(answer, bool) else ""
    if kind and kind not in KINDS:
        raise BadRowError(f"kind: {kind!r}: must be one of {', '.join(KINDS)}")
    kind = kind or ("choice" if options else _kind(text))
    if kind == "choice":
        bare = unwrapped(text)
        letter = _LETTER.fullmatch(bare)
        text = records.letter(bare, "answer", options) if options else letter[1] if letter else text
    result = TextTruth(kind, text, tuple(options), **more)
    if grade(text, result).correct < 1:
        raise BadRowError(f"answer: {answer!r}: not even this would be right where it is judged as {kind}")
    return result


def read_truth(value: Any) -> TextTruth:
    """A truth from JSON: the fields of a TextTruth, or an answer alone.

    Raises:
        ValueError: it is none.
    """
    try:
        if not isinstance(value, Mapping):
            return truth(value)
        if unknown := set(value) - {each.name for each in fields(TextTruth)}:
            raise ValueError(f"no field {', '.join(sorted(unknown))}")
        listed = {key: tuple(value[key]) for key in ("options", "also") if key in value}
        return truth(**{**value, **listed})
    except BadRowError as problem:
        raise ValueError(str(problem)) from None


def _kind(said: str) -> str:
    bare = unwrapped(said)
    if _LETTER.fullmatch(bare):
        return "choice"
    if read_number(said).value is not None:
        return "number"
    formula = math.formula(said).reason is None and not bare.isalpha()
    return "math" if formula or bare != said else "text"


def _make_question(
    values: Mapping[str, Any], images: Any, question: Any, right: TextTruth, place: Place, *tags: str
) -> ImageQuestion:
    """A row by the values that its format has for them; `images` () is a question in words alone."""
    pictures = rows.images({"image": images}, "image", place)[0] if images != () else ()
    text = rows.text_field({"question": question}, "question").replace(MARK, "").strip()
    return ImageQuestion(identity(values, place), pictures, text, right, tags=rows.tags(values, *tags))


def _plain(values: Mapping[str, Any], place: Place) -> ImageQuestion:
    """`{image or images, question, answer}`, perhaps `kind`, `options`, `also`, `absolute`, `relative`, `id`."""
    options = records.option_fields(values["options"], "options") if values.get("options") is not None else ()
    also = rows.texts(values["also"], "also") if values.get("also") is not None else ()
    errors = {key: _error(values[key], key) for key in ("absolute", "relative") if values.get(key) is not None}
    right = truth(values.get("answer"), options, values.get("kind") or "", also=also, **errors)
    key = "image" if values.get("image") is not None else "images"
    named = [name for name in values if name not in ("id", key, "question", "answer", "kind")]
    return _make_question(values, values.get(key), values.get("question"), right, place, *named)


def _error(value: Any, key: str) -> float:
    error = records.number(value, key)
    if error < 0:
        raise BadRowError(f"{key}: {error:g}: must be at least 0")
    return error


def _virl(values: Mapping[str, Any], place: Place) -> ImageQuestion:
    """`{qid, question, answer: \\\\boxed{..}, image: [names], category, source}`; options stand in the question."""
    named = {**values, "id": values.get("qid")}
    right = truth(values.get("answer"))
    return _make_question(named, values.get("image"), values.get("question"), right, place, "category", "source")


def _geometry(values: Mapping[str, Any], place: Place) -> ImageQuestion:
    """`{images, problem, answer}`."""
    return _make_question(values, values.get("images"), values.get("problem"), truth(values.get("answer")), place)


def _lmm_r1(values: Mapping[str, Any], place: Place) -> ImageQuestion:
    """`{message: a chat as JSON text, answer: $..$}`; of the chat, the user's texts and images, if any."""
    chat = values.get("message")
    try:
        turns = parse_json(chat) if isinstance(chat, str) else chat
    except (ValueError, RecursionError) as error:
        raise BadRowError(f"message: not JSON ({error})") from None
    users = [turn for turn in turns if isinstance(turn, Mapping) and turn.get("role") == "user"] if isinstance(
        turns, list
    ) else []  # fmt: skip
    parts = users[0].get("content") if len(users) == 1 else None
    if not isinstance(parts, list) or not all(isinstance(part, Mapping) for part in parts):
        raise BadRowError("message: must be a chat with one user turn, whose content is a list of images and texts")
    images = [str(part["image"]).removeprefix("file://") for part in parts if part.get("image")]
    text = "\n".join(str(part["text"]) for part in parts if part.get("text"))
    return _make_question(values, images or (), text, truth(values.get("answer")), place)


def _mathvista(values: Mapping[str, Any], place: Place) -> ImageQuestion:
    """`{pid, question, image, decoded_image?, choices, unit, precision, answer, question_type, answer_type}`.

    A float is right to `precision` decimals. Lists are judged without their order.
    """
    image = values.get("decoded_image") or values.get("image")
    options, answer, kind = (), values.get("answer"), ""
    more: dict[str, float] = {}
    if values.get("choices"):
        options = records.option_fields(values["choices"], "choices")
    elif values.get("answer_type") == "list":
        kind = "list"
    elif values.get("answer_type") in ("integer", "float"):
        kind, with_unit = "number", f"{answer} {values.get('unit') or ''}".strip()
        answer = with_unit if read_number(with_unit).value else answer
        if values["answer_type"] == "float":
            more = {"absolute": 0.5 * 10 ** -records.number(values.get("precision"), "precision")}
    right = truth(answer, options, kind or ("" if options else "text"), **more)
    named = {**values, "id": values.get("pid")}
    return _make_question(named, image, values.get("question"), right, place, "question_type", "answer_type")


QUESTIONS: dict[str, Form[ImageQuestion]] = {
    "mathvista": Form(frozenset({"pid", "question", "image|decoded_image", "answer", "question_type"}), _mathvista),
    "virl39k": Form(frozenset({"qid", "question", "image", "answer"}), _virl),
    "geometry3k": Form(frozenset({"images", "problem", "answer"}), _geometry),
    "lmm_r1": Form(frozenset({"message", "answer"}), _lmm_r1),
    "jsonl": Form(frozenset({"image|images", "question", "answer"}), _plain),
}


# Details to be searched for in large images: V*Bench (2312.14135) and DeepEyes (2505.14362).

_OPTION = re.compile(r"\n\(([A-J])\) ?([^\n]+)")


def _vstar(values: Mapping[str, Any], place: Place) -> ImageQuestion:
    """`{image, text, label: letter, category, question_id}`; the options stand in the text, a line each."""
    text = rows.text_field(values, "text")
    options = tuple(option.strip() for _, option in _OPTION.findall(text))
    named = {**values, "id": values.get("question_id")}
    right = truth(values.get("label"), options)
    return _make_question(named, values.get("image"), text.partition("\n(A)")[0], right, place, "category")


def _vstar_boxes(values: Mapping[str, Any], place: Place) -> ImageQuestion:
    """`{image, question, options, bbox: [[x, y, width, height], ..], target_object}`; the first option is right."""
    options = records.option_fields(values.get("options"), "options")
    ordered = tuple(sorted(options))  # else the first would always be right
    row = _make_question(values, values.get("image"), values.get("question"), truth(options[0], ordered), place)
    return replace(row, boxes=_boxes(values, "bbox", place, corners=False))


def _deepeyes(values: Mapping[str, Any], place: Place) -> ImageQuestion:
    """`{images, prompt: a chat, reward_model: {ground_truth}, extra_info: {question?}, data_source?}`."""
    extra, model = values.get("extra_info"), values.get("reward_model")
    question = extra.get("question") if isinstance(extra, Mapping) else None
    chat = values.get("prompt")
    if not question and isinstance(chat, list):
        messages = [turn.get("content") for turn in chat if isinstance(turn, Mapping) and turn.get("role") == "user"]
        question = messages[-1] if messages else None
    right = truth(model.get("ground_truth") if isinstance(model, Mapping) else None)
    return _make_question(values, values.get("images"), question, right, place, "data_source")


def _search_plain(values: Mapping[str, Any], place: Place) -> ImageQuestion:
    """As other questions (`_plain`), perhaps with `boxes` (corners in pixels) where the answer is seen."""
    rest = {key: value for key, value in values.items() if key != "boxes"}
    boxes = _boxes(values, "boxes", place, corners=True) if values.get("boxes") is not None else ()
    return replace(_plain(rest, place), boxes=boxes)


def _boxes(values: Mapping[str, Any], key: str, place: Place, corners: bool) -> tuple:
    listed = values.get(key)
    if not isinstance(listed, list) or not listed:
        raise BadRowError(f"{key}: must be a list of boxes")
    _, size = rows.images({"image": values.get("image", values.get("images"))}, "image", place)
    order = rows.CORNERS if corners else rows.XYWH
    boxes = (each if corners else rows.corners(each) for each in listed)
    return tuple(rows.box(each, key, size, order=order) for each in boxes)


SEARCH: dict[str, Form[ImageQuestion]] = {
    "vstar": Form(frozenset({"image", "text", "label", "category"}), _vstar),
    "vstar_boxes": Form(frozenset({"image", "question", "options", "bbox", "target_object"}), _vstar_boxes),
    "deepeyes": Form(frozenset({"images", "prompt", "reward_model"}), _deepeyes),
    "jsonl": Form(frozenset({"image|images", "question", "answer"}), _search_plain),
}


# Benchmarks of multiple choice: MVBench (2311.17005), Video-MME (2405.21075), LongVideoBench (2407.15754).
#
# Sources: the data sets OpenGVLab/MVBench and lmms-lab/Video-MME of Hugging Face, as
# github.com/xiaomi-research/time-r1,
# data_loader.py, reads them; longvideobench/LongVideoBench.

NO_OPTION = "N/A"  # LongVideoBench's parquet files fill five columns
COLUMNS = tuple(f"option{i}" for i in range(5))


def _mvbench(values: Mapping[str, Any], place: Place) -> Clip:
    """`{video, question, candidates, answer: text, start?, end?}`; the file's name is the task."""
    row = _read_choices(values, "video", place, {"task": place.name})
    row = replace(row, **records.chosen(values.get("candidates"), "candidates", values.get("answer")))
    return replace(row, **records.read_bounds(values, row.duration))


def _video_mme(values: Mapping[str, Any], place: Place) -> Clip:
    """`{videoID, question_id, question, options: ["A. ..", ..], answer: letter, duration: short, medium or long}`."""
    named = {**values, "id": values.get("question_id")}
    tags = rows.tags(values, "duration", "domain", "sub_category", "task_type")
    row = _read_choices(named, "videoID", place, tags)
    return replace(row, **records.chosen(values.get("options"), "options", values.get("answer")))


def _long_video_bench(values: Mapping[str, Any], place: Place) -> Clip:
    """`{id, video_path, question, candidates, correct_choice: from 0, duration_group, subtitle_path?}`.

    Parquet files have `option0` to `option4` for `candidates`. Subtitles are not shown, only tagged.
    """
    listed = values.get("candidates")
    if listed is None:
        listed = [values.get(key) for key in COLUMNS if values.get(key) not in (None, NO_OPTION)]
    listed = records.option_fields(listed, "candidates")
    right = values.get("correct_choice")
    if type(right) is not int or not 0 <= right < len(listed):
        raise BadRowError(f"correct_choice: {right!r} is none of the {len(listed)} options, from 0")
    tags = {"duration_group": str(values.get("duration_group") or "")}
    tags |= {"subtitles": "yes" if values.get("subtitle_path") else "no"}
    tags |= rows.tags(values, "level", "question_category", "topic_category")
    row = _read_choices(values, "video_path", place, {key: value for key, value in tags.items() if value})
    return replace(row, options=listed, answer=records.LETTERS[right])


def _read_choices(values: Mapping[str, Any], key: str, place: Place, tags: Mapping[str, str]) -> Clip:
    return records.clip(values, key, place, question=rows.text_field(values, "question"), tags=tags)


VIDEO_QA = {
    "mvbench": Form(frozenset({"video", "question", "candidates", "answer"}), _mvbench),
    "video_mme": Form(frozenset({"videoID", "question", "options", "answer"}), _video_mme),
    "long_video_bench": Form(
        frozenset({"video_path", "question", "candidates|option0", "correct_choice"}), _long_video_bench
    ),
}


# Pictures of tables with their LaTeX, as Table2LaTeX-RL (2509.17589) pairs them: JSON lines.


@dataclass(frozen=True)
class TableTruth:
    """LaTeX as it was written, and the table that it is."""

    latex: str
    table: Table


@dataclass(frozen=True)
class Pictured:
    """A picture (a file or encoded bytes) of a table."""

    id: str
    image: Path | bytes
    truth: TableTruth
    tags: Mapping[str, str] = field(default_factory=dict)


def latex_truth(value: Any) -> TableTruth:
    """The truth of a row's LaTeX. BadRowError: it is none that an answer could match."""
    if not isinstance(value, str) or not value.strip():
        raise BadRowError("latex: must be a text that is not empty")
    read = read_table(value)
    if read.reason:
        raise BadRowError(f"latex: {read.reason.replace('_', ' ')}: must be one table of known commands")
    return TableTruth(value.strip(), read.value)


def _latex_plain(values: Mapping[str, Any], place: Place) -> Pictured:
    """`{image, latex}`, perhaps `id`; other texts are tags."""
    image, _ = rows.image(values, "image", place)
    named = [name for name in values if name not in ("id", "image", "latex")]
    return Pictured(identity(values, place), image, latex_truth(values.get("latex")), rows.tags(values, *named))


TABLES: dict[str, Form[Pictured]] = {"jsonl": Form(frozenset({"image", "latex"}), _latex_plain)}


# Images with a question and one or several right answers in free words; and with two answers, one of them better.

_TAGGED = re.compile(r"\s*<([A-Za-z0-9_]{1,40})>(.*)", re.DOTALL)


@dataclass(frozen=True)
class OpenQuestion:
    """A question about images (files or encoded bytes); `modality` is the kind of image, '' where it is not told."""

    id: str
    images: tuple[Path | bytes, ...]
    question: str
    answers: tuple[str, ...]  # each is right
    modality: str = ""
    weight: float = 1.0
    tags: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Compared:
    """A question about images and two answers to it."""

    id: str
    images: tuple[Path | bytes, ...]
    question: str
    better: str
    worse: str
    weight: float = 1.0
    tags: Mapping[str, str] = field(default_factory=dict)


def answers(given: Any, key: str) -> tuple[str, ...]:
    """One right text or several; BadRowError for others, and for one that not even itself would match."""
    texts = (given,) if isinstance(given, str) else rows.texts(given, key)
    for text in texts:
        if exact_match(text, text) < 1:
            raise BadRowError(f"{key}: {text!r}: not even this would be right: no words, or too many")
    if not texts:
        raise BadRowError(f"{key}: must be a text, or a list of texts")
    return tuple(text.strip() for text in texts)


def _open(values: Mapping[str, Any], place: Place) -> OpenQuestion:
    """`{image or images, question, answer or answers}`, perhaps `modality`, `id`; MediX-R1's `<TAG>answer` too."""
    key = "answer" if values.get("answer") is not None else "answers"
    value, modality = values.get(key), values.get("modality") or ""
    if isinstance(value, str) and not modality and (tagged := _TAGGED.fullmatch(value)):
        modality, value = tagged[1], tagged[2]
    if not (isinstance(modality, str) and re.fullmatch(r"\w{0,40}", modality)):
        raise BadRowError(f"modality: {modality!r}: must be one word")
    images, question = _read_images(values, place)
    return OpenQuestion(identity(values, place), images, question, answers(value, key), modality.upper())


def _compared(values: Mapping[str, Any], place: Place) -> Compared:
    """`{image or images, question, answers: [one, other], better: 1 or 2}`, perhaps `id`."""
    two, better = rows.texts(values.get("answers"), "answers"), values.get("better")
    if len(two) != 2:
        raise BadRowError(f"answers: {len(two)} texts: must be two")
    if better not in (1, 2, "1", "2"):
        raise BadRowError(f"better: {better!r}: must be 1 or 2")
    return _pair(values, place, two[int(better) - 1], two[2 - int(better)])


def _preferred(values: Mapping[str, Any], place: Place) -> Compared:
    """`{image or images, question, chosen, rejected}`, perhaps `id`."""
    two = [rows.text_field(values, key) for key in ("chosen", "rejected")]
    return _pair(values, place, *two)


def _pair(values: Mapping[str, Any], place: Place, better: str, worse: str) -> Compared:
    if better.split() == worse.split():
        raise BadRowError("answers: both are the same: neither is better")
    images, question = _read_images(values, place)
    return Compared(identity(values, place), images, question, better.strip(), worse.strip())


def _read_images(values: Mapping[str, Any], place: Place) -> tuple[tuple[Path | bytes, ...], str]:
    key = "image" if values.get("image") is not None else "images"
    images, _ = rows.images({"image": values.get(key)}, "image", place)
    return images, rows.text_field(values, "question").replace(MARK, "").strip()


OPEN = {"jsonl": Form(frozenset({"image|images", "question", "answer|answers"}), _open)}
COMPARED = {
    "compared": Form(frozenset({"image|images", "question", "answers", "better"}), _compared),
    "preferred": Form(frozenset({"image|images", "question", "chosen", "rejected"}), _preferred),
}
