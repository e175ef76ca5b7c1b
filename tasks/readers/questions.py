"""Images with a question whose answer is open: a number, a formula, a text, a list, or one of several options.

ViRL39K (2504.08837), Geometry3K as EasyR1 reads it (hiyouga/geometry3k), LMM-R1's JSON lines (2503.07536), MathVista
(2310.02255), and plain JSON lines.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rewards import grading, mathematics, numbers
from rewards.grading import KINDS, Truth
from tasks.readers import fields
from tasks.readers import video_fields as listed
from tasks.readers.rows import BadRowError, Form, Place
from tasks.readers.scene import identity
from vlrl.decoders import parse_json

MARK = "<image>"
_LETTER = re.compile(r"\(?([A-J])[).]?")


@dataclass(frozen=True)
class Question:
    """One question about images (files or encoded bytes)."""

    id: str
    images: tuple[Path | bytes, ...]
    question: str
    truth: Truth
    weight: float = 1.0
    tags: Mapping[str, str] = field(default_factory=dict)


def truth(answer: Any, options: Sequence[str] = (), kind: str = "", **more: Any) -> Truth:
    """The truth of an answer as data sets write it. `kind` is told, or what the answer looks like.

    A lone capital letter is a choice, a number is one, what `rewards.mathematics` reads and is no word is a formula,
    the rest is text. BadRowError: not even the answer itself would be right.
    """
    said = str(answer).strip() if isinstance(answer, str | int | float) and not isinstance(answer, bool) else ""
    if kind and kind not in KINDS:
        raise BadRowError(f"kind: {kind!r}: must be one of {', '.join(KINDS)}")
    kind = kind or ("choice" if options else _kind(said))
    if kind == "choice":
        bare = numbers.unwrapped(said)
        letter = _LETTER.fullmatch(bare)
        said = listed.letter(bare, "answer", options) if options else letter[1] if letter else said
    made = Truth(kind, said, tuple(options), **more)
    if grading.grade(said, made).correct < 1:
        raise BadRowError(f"answer: {answer!r}: not even this would be right where it is judged as {kind}")
    return made


def _kind(said: str) -> str:
    bare = numbers.unwrapped(said)
    if _LETTER.fullmatch(bare):
        return "choice"
    if numbers.read(said).value is not None:
        return "number"
    formula = mathematics.formula(said).reason is None and not bare.isalpha()
    return "math" if formula or bare != said else "text"


def _asked(values: Mapping[str, Any], images: Any, question: Any, right: Truth, place: Place, *tags: str) -> Question:
    """A row by the values that its format has for them; `images` () is a question in words alone."""
    found = fields.images({"image": images}, "image", place)[0] if images != () else ()
    text = fields.text({"question": question}, "question").replace(MARK, "").strip()
    return Question(identity(values, place), found, text, right, tags=fields.tags(values, *tags))


def _plain(values: Mapping[str, Any], place: Place) -> Question:
    """`{image or images, question, answer}`, perhaps `kind`, `options`, `also`, `absolute`, `relative`, `id`."""
    options = listed.options(values["options"], "options") if values.get("options") is not None else ()
    also = fields.texts(values["also"], "also") if values.get("also") is not None else ()
    errors = {key: _error(values[key], key) for key in ("absolute", "relative") if values.get(key) is not None}
    right = truth(values.get("answer"), options, values.get("kind") or "", also=also, **errors)
    key = "image" if values.get("image") is not None else "images"
    named = [name for name in values if name not in ("id", key, "question", "answer", "kind")]
    return _asked(values, values.get(key), values.get("question"), right, place, *named)


def _error(value: Any, key: str) -> float:
    error = listed.number(value, key)
    if error < 0:
        raise BadRowError(f"{key}: {error:g}: must be at least 0")
    return error


def _virl(values: Mapping[str, Any], place: Place) -> Question:
    """`{qid, question, answer: \\\\boxed{..}, image: [names], category, source}`; options stand in the question."""
    named = {**values, "id": values.get("qid")}
    right = truth(values.get("answer"))
    return _asked(named, values.get("image"), values.get("question"), right, place, "category", "source")


def _geometry(values: Mapping[str, Any], place: Place) -> Question:
    """`{images, problem, answer}`."""
    return _asked(values, values.get("images"), values.get("problem"), truth(values.get("answer")), place)


def _lmm_r1(values: Mapping[str, Any], place: Place) -> Question:
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
    return _asked(values, images or (), text, truth(values.get("answer")), place)


def _mathvista(values: Mapping[str, Any], place: Place) -> Question:
    """`{pid, question, image, decoded_image?, choices, unit, precision, answer, question_type, answer_type}`.

    A float is right to `precision` decimals. Lists are judged without their order.
    """
    image = values.get("decoded_image") or values.get("image")
    options, answer, kind = (), values.get("answer"), ""
    more: dict[str, float] = {}
    if values.get("choices"):
        options = listed.options(values["choices"], "choices")
    elif values.get("answer_type") == "list":
        kind = "list"
    elif values.get("answer_type") in ("integer", "float"):
        kind, with_unit = "number", f"{answer} {values.get('unit') or ''}".strip()
        answer = with_unit if numbers.read(with_unit).value else answer
        if values["answer_type"] == "float":
            more = {"absolute": 0.5 * 10 ** -listed.number(values.get("precision"), "precision")}
    right = truth(answer, options, kind or ("" if options else "text"), **more)
    named = {**values, "id": values.get("pid")}
    return _asked(named, image, values.get("question"), right, place, "question_type", "answer_type")


QUESTIONS: dict[str, Form[Question]] = {
    "mathvista": Form(frozenset({"pid", "question", "image|decoded_image", "answer", "question_type"}), _mathvista),
    "virl39k": Form(frozenset({"qid", "question", "image", "answer"}), _virl),
    "geometry3k": Form(frozenset({"images", "problem", "answer"}), _geometry),
    "lmm_r1": Form(frozenset({"message", "answer"}), _lmm_r1),
    "jsonl": Form(frozenset({"image|images", "question", "answer"}), _plain),
}
