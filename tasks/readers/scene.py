"""Images with what is on them: the rows of detection, referring expressions and classification."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rewards.boxes import Object
from tasks.readers import fields
from tasks.readers.rows import BadRowError, Form, Place


@dataclass(frozen=True)
class Scene:
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
        return tuple(found for found, many in zip(self.objects, crowd, strict=True) if not many)


def found(label: Any, box: Any, key: str, size: fields.Size, order: str = fields.CORNERS) -> Object:
    """A labelled box. BadRowError: no label, a box outside the image, one that looks like shares of it."""
    if not isinstance(label, str) or not label.strip():
        raise BadRowError(f"{key}: {label!r}: an object needs a label")
    placed = fields.box(box, key, size, order=order)
    if max(placed) <= 1 < max(size):
        raise BadRowError(f"{key}: {list(placed)} lies in the first pixel; is it in shares of the image?")
    return Object(label.strip(), placed)


def identity(values: Mapping[str, Any], place: Place) -> str:
    """The row's `id` behind its file's name, as data sets number the rows of each file anew; else the row's number."""
    return f"{place.name}/{values['id']}" if values.get("id") is not None else place.id


def areas(objects: Sequence[Object]) -> tuple[float, ...]:
    return tuple((o.box[2] - o.box[0]) * (o.box[3] - o.box[1]) for o in objects)


def scene(name: str, image: Path | bytes, objects: Sequence[Object], **more: Any) -> Scene:
    """A row of one image without crowds, whose labels are its objects' unless told."""
    listed = {"labels": tuple(dict.fromkeys(o.label for o in objects)), **more}
    return Scene(name, (image,), objects=tuple(objects), crowd=(False,) * len(objects), areas=areas(objects), **listed)


def _plain(values: Mapping[str, Any], place: Place) -> Scene:
    """`{image, objects: [{label, box}]}`, corners in pixels; `labels` (all that is asked for), `question`, `id`."""
    image, size = fields.image(values, "image", place)
    listed = values.get("objects")
    if not isinstance(listed, list) or not all(isinstance(item, Mapping) for item in listed):
        raise BadRowError("objects: must be a list of {label, box}, empty where there is nothing")
    objects = [found(o.get("label"), o.get("box"), f"objects[{i}]", size) for i, o in enumerate(listed)]
    told = fields.texts(values["labels"], "labels") if values.get("labels") is not None else ()
    labels = tuple(dict.fromkeys([*told, *(o.label for o in objects)]))
    if told and set(labels) > set(told):
        raise BadRowError(f"labels: lacks {', '.join(sorted(set(labels) - set(told)))}, which objects have")
    question = fields.text(values, "question") if values.get("question") is not None else ""
    if not labels and not question:
        raise BadRowError("labels: without objects, labels or question must say what is looked for")
    return scene(identity(values, place), image, objects, labels=labels, question=question)


def _phrase(values: Mapping[str, Any], place: Place) -> Scene:
    """`{image, phrase, box}`, corners in pixels, perhaps `id`; other texts are kept as tags."""
    named = fields.tags(values, *(key for key in values if key not in ("id", "image", "phrase")))
    return referred(values, place, "image", "phrase", "box", tags=named)


def referred(
    values: Mapping[str, Any], place: Place, image: str, phrase: str, box: str, order: str = fields.CORNERS, **more: Any
) -> Scene:
    """A row of one phrase and its box, by the keys that they have there. `more` are fields of Scene."""
    words = fields.text(values, phrase)
    picture, size = fields.image(values, image, place)
    fields.same_size(values, size)
    corners = fields.corners(values.get(box)) if order == fields.XYWH else values.get(box)
    return scene(identity(values, place), picture, [found(words, corners, box, size, order)], **more)


def _labelled(values: Mapping[str, Any], place: Place) -> Scene:
    """`{image, label}`, perhaps `question` and `id`; `folder`: the image's folder is its class."""
    image, _ = fields.image(values, "image", place)
    question = fields.text(values, "question") if values.get("question") is not None else ""
    return Scene(identity(values, place), (image,), question, answer=fields.text(values, "label"))


def _folder(values: Mapping[str, Any], place: Place) -> Scene:
    """A row is named after its file, so that files added later change no other's name."""
    return _labelled({**values, "id": values.get("image")}, place)


SCENES = {"jsonl": Form(frozenset({"image", "objects"}), _plain)}
REFERRING = {"jsonl": Form(frozenset({"image", "phrase", "box"}), _phrase)}
LABELLED = {
    "jsonl": Form(frozenset({"image", "label"}), _labelled),
    "folder": Form(frozenset({"image", "label"}), _folder),
}
