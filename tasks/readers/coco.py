"""COCO's JSON (1405.0312) and what extends it: LVIS (1908.03195), ODinW (2204.08790), OVDEval (2308.13177), MDETR.

Sources: cocodataset.org/#format-data; lvisdataset.org/dataset; github.com/om-ai-lab/OVDEval; MDETR's files of RefCOCO
(2104.12763; github.com/ashkamath/mdetr), where each image entry is one phrase, its `caption`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from rewards.boxes import Object
from tasks.readers import fields, scene
from tasks.readers.rows import BadRowError, Form, Place
from tasks.readers.scene import Scene

KEYS = frozenset({"images", "annotations", "categories"})


def _rows(document: Mapping[str, Any]) -> list[Any]:
    """A row for each image, with `annotations` and `names` of categories; then one for each image that is not there.

    Images keep the file's order, annotations too. BadRowError: the file is not COCO's.
    """
    listed = {key: document.get(key) for key in KEYS}
    for key, value in listed.items():
        if not isinstance(value, list) or not all(isinstance(item, Mapping) for item in value):
            raise BadRowError(f"{key}: must be a list of objects")
    names = _names(listed["categories"], listed["annotations"])
    annotations: dict[Any, list[Mapping[str, Any]]] = {}
    for annotation in listed["annotations"]:
        annotations.setdefault(str(annotation.get("image_id")), []).append(annotation)
    rows = [
        {**image, "annotations": annotations.pop(str(image.get("id")), []), "names": names}
        for image in listed["images"]
    ]
    return [
        *rows,
        *({"problem": f"image_id: {image} has annotations, but is not among images"} for image in annotations),
    ]


def _names(categories: list[Mapping[str, Any]], annotations: list[Mapping[str, Any]]) -> dict[Any, str]:
    """Category id -> name. Roboflow's first category, a parent of others that nothing is marked as, is left out."""
    used = {str(annotation.get("category_id")) for annotation in annotations}
    parents = {str(category.get("supercategory")) for category in categories}
    names = {}
    for category in categories:
        number, name = category.get("id"), category.get("name")
        if not isinstance(number, int) or not isinstance(name, str) or not name.strip() or number in names:
            raise BadRowError(f"categories: {dict(category)}: needs an id of its own and a name")
        if str(number) in used or name not in parents or category.get("supercategory") != "none":
            names[number] = name.strip()
    return names


def _row(values: Mapping[str, Any], place: Place) -> Scene:
    """`images`: {id, file_name or coco_url, width, height}; `annotations`: {bbox xywh, category_id, iscrowd, area}.

    Asked for are all categories of the file; in LVIS the image's own and `neg_category_ids`; in OVDEval its `text` and
    `neg_text`.
    """
    image, size = _image(values, place)
    names = values["names"]
    marked = [_marked(each, names, size) for each in values["annotations"]]
    objects = tuple(found for found, _, _ in marked)
    labels = _asked(values, objects, names)
    if not labels:
        raise BadRowError("nothing is asked for: no category, text or neg_text for this image")
    return Scene(
        scene.identity(values, place), (image,), objects=objects, labels=labels,
        crowd=tuple(crowd for _, crowd, _ in marked), areas=tuple(area for _, _, area in marked),
        unsure=_named(values, "not_exhaustive_category_ids", names),
    )  # fmt: skip


def _image(values: Mapping[str, Any], place: Place) -> tuple[Any, fields.Size]:
    if "problem" in values:
        raise BadRowError(values["problem"])
    if not isinstance(values.get("id"), int | str):
        raise BadRowError("id: an image needs one")
    name = values.get("file_name")
    if name is None and isinstance(values.get("coco_url"), str):
        name = "/".join(PurePosixPath(values["coco_url"]).parts[-2:])  # train2017/000000000001.jpg
    image, size = fields.image({"file_name": name}, "file_name", place)
    fields.same_size(values, size)
    return image, size


def _marked(annotation: Mapping[str, Any], names: Mapping[Any, str], size: fields.Size) -> tuple[Object, bool, float]:
    """The object, whether it is a crowd, and its area."""
    key = f"annotation {annotation.get('id')}"
    label = _name(annotation.get("category_id"), f"{key}: category_id", names)
    found = scene.found(label, fields.corners(annotation.get("bbox")), f"{key}: bbox", size, fields.XYWH)
    area = annotation.get("area", scene.areas([found])[0])
    if not isinstance(area, int | float) or not 0 <= area < 1e18:
        raise BadRowError(f"{key}: area {area!r}: must be a number of at least 0")
    return found, bool(annotation.get("iscrowd", 0)), float(area)


def _asked(values: Mapping[str, Any], objects: tuple[Object, ...], names: Mapping[Any, str]) -> tuple[str, ...]:
    marked = dict.fromkeys(found.label for found in objects)
    if "neg_category_ids" in values:
        asked = {*marked, *_named(values, "neg_category_ids", names)}
        asked |= set(_named(values, "not_exhaustive_category_ids", names))
        return tuple(name for name in names.values() if name in asked)
    if "text" in values:
        told = [fields.texts(values.get(key) or [], key) for key in ("text", "neg_text")]
        return tuple(dict.fromkeys([*told[0], *marked, *told[1]]))
    return tuple(dict.fromkeys(names.values()))


def _named(values: Mapping[str, Any], key: str, names: Mapping[Any, str]) -> tuple[str, ...]:
    numbers = values.get(key, [])
    if not isinstance(numbers, list):
        raise BadRowError(f"{key}: must be a list of ids of categories")
    return tuple(_name(number, key, names) for number in numbers)


def _name(number: Any, key: str, names: Mapping[Any, str]) -> str:
    if not isinstance(number, int) or number not in names:
        raise BadRowError(f"{key}: {number!r} is not among categories")
    return names[number]


def _caption(values: Mapping[str, Any], place: Place) -> Scene:
    """MDETR: `images` have a `caption`, the phrase, and one annotation each."""
    image, size = _image(values, place)
    phrase = fields.text(values, "caption")
    if len(values["annotations"]) != 1:
        raise BadRowError(f"annotations: {len(values['annotations'])} of one phrase; it must have one box")
    box = fields.corners(values["annotations"][0].get("bbox"))
    found = scene.found(phrase, box, "bbox", size, fields.XYWH)
    named = fields.tags(values, "dataset_name")
    return scene.scene(scene.identity(values, place), image, [found], tags=named)


SCENES = {"coco": Form(KEYS, _row, rows=_rows)}
REFERRING = {"mdetr": Form(KEYS, _caption, rows=_rows)}
