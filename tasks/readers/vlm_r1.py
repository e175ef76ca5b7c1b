"""VLM-R1's JSON lines (2504.07615; github.com/om-ai-lab/VLM-R1, grpo_jsonl.py): any question, any reward."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from rewards import parse
from rewards.boxes import Object
from tasks.readers import fields, scene
from tasks.readers.rows import BadRowError, Form, Place
from tasks.readers.scene import Scene

REC = "Please provide the bounding box coordinate of the region this sentence describes: "
MARK = "<image>"


def turns(values: Mapping[str, Any]) -> tuple[str, str]:
    """`conversations`: the question without image marks, the truth without answer tags."""
    listed = values.get("conversations")
    told = [turn.get("value") for turn in listed or () if isinstance(turn, Mapping)] if isinstance(listed, list) else []
    if len(told) != 2 or not isinstance(told[0], str) or not isinstance(told[1], str | int | float):
        raise BadRowError("conversations: must be two turns with a value, the question and the answer")
    question, answer = told[0].replace(MARK, ""), str(told[1]).replace("<answer>", "").replace("</answer>", "").strip()
    if not question.strip() or not answer:
        raise BadRowError("conversations: the question and the answer must not be empty")
    return question, answer


def marked(answer: str, size: fields.Size) -> tuple[Object, ...]:
    """The boxes of an answer: a ```json list of {bbox_2d, label}, or the word None."""
    read = parse.objects(answer)
    if read.reason:
        problem = read.reason.replace("_", " ")
        raise BadRowError(f"answer: {problem}; must be a ```json list of {{bbox_2d, label}}, or None")
    return tuple(scene.found(o.label, list(o.box), "answer", size) for o in read.value)


def _row(values: Mapping[str, Any], place: Place) -> Scene:
    """`{id, image: name or list of names, conversations, accu_reward_method?}`: question and truth as they stand."""
    question, answer = turns(values)
    images, _ = fields.images(values, "image", place)
    method = values.get("accu_reward_method") or ""
    if not isinstance(method, str):
        raise BadRowError(f"accu_reward_method: {method!r}: must be a name")
    return Scene(scene.identity(values, place), images, question, answer=answer, method=method)


def _detection(values: Mapping[str, Any], place: Place) -> Scene:
    """The answer is a list of objects; what else is looked for stands in the question only."""
    return _with_objects(_row(values, place), place)


def _with_objects(row: Scene, place: Place) -> Scene:
    return _one_image(row, marked(row.answer, place.images.size(row.images[0])))


def _rec(values: Mapping[str, Any], place: Place) -> Scene:
    """The answer is `[x1, y1, x2, y2]`; the phrase is what follows the usual sentence, else the whole question."""
    row = _row(values, place)
    question = row.question.strip()
    phrase = question.partition(REC)[2].strip().removesuffix(".") or question
    box = parse.literal(row.answer).value
    return _one_image(row, (scene.found(phrase, box, "answer", place.images.size(row.images[0])),))


def asked(method: str, lists: Collection[str]) -> dict[str, Form[Scene]]:
    """The format, where rows without a method have `method`, and answers of the methods of `lists` are objects."""

    def one(values: Mapping[str, Any], place: Place) -> Scene:
        row = _row({**values, "accu_reward_method": values.get("accu_reward_method") or method}, place)
        return _with_objects(row, place) if row.method in lists else row

    return {"vlm_r1": Form(KEYS, one)}


def _one_image(row: Scene, objects: tuple[Object, ...]) -> Scene:
    if len(row.images) != 1:
        raise BadRowError(f"image: {len(row.images)} images; boxes need exactly one")
    told = {"question": row.question, "answer": row.answer, "method": row.method}
    return scene.scene(row.id, row.images[0], objects, **told)


KEYS = frozenset({"image", "conversations"})
SCENES = {"vlm_r1": Form(KEYS, _detection)}
REFERRING = {"vlm_r1": Form(KEYS, _rec)}
