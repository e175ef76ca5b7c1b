"""Vision-R1's columns (2503.18013; github.com/jefferyZhan/Griffon, Vision-R1/vision_r1/visionr1_qwen.py)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rewards import parse
from tasks.readers import fields, scene
from tasks.readers.rows import BadRowError, Form, Place
from tasks.readers.scene import Scene

MOST_CHARS = 100_000  # of a row's list


def _row(values: Mapping[str, Any], place: Place) -> Scene:
    """`{problem, image, solution, width, height, num_instances, target_id_maps}`.

    `solution`: `[[label, [x1, y1, x2, y2]], ..]` in pixels, as JSON; `target_id_maps`: `{label: id}`, all that is
    asked for. An id of 0 is the background.
    """
    question = fields.text(values, "problem").replace("<image>", "").strip()
    image, size = fields.image(values, "image", place)
    fields.same_size(values, size)
    listed = _json(values, "solution")
    if not isinstance(listed, list) or not all(isinstance(item, list) and len(item) == 2 for item in listed):
        raise BadRowError("solution: must be a list of [label, [x1, y1, x2, y2]]")
    if values.get("num_instances", len(listed)) != len(listed):
        raise BadRowError(f"num_instances: {values['num_instances']}, but solution has {len(listed)}")
    objects = [scene.found(label, box, f"solution[{i}]", size) for i, (label, box) in enumerate(listed)]
    return scene.scene(
        scene.identity(values, place), image, objects, question=question, labels=_labels(values, objects)
    )


def _labels(values: Mapping[str, Any], objects: list[Any]) -> tuple[str, ...]:
    """The labels of the map, less its background; each object's must be there, whatever its case."""
    ids = _json(values, "target_id_maps")
    if not isinstance(ids, Mapping) or not all(isinstance(number, int) for number in ids.values()):
        raise BadRowError("target_id_maps: must be an object of label: id")
    labels = tuple(label.strip() for label, number in ids.items() if number != 0)
    unknown = {o.label for o in objects if o.label.lower() not in map(str.lower, labels)}
    if unknown:
        raise BadRowError(f"target_id_maps: lacks {', '.join(sorted(unknown))}, which solution has")
    return labels


def _json(values: Mapping[str, Any], key: str) -> Any:
    """The value, read if it is a text."""
    value = values.get(key)
    return parse.literal(value, MOST_CHARS).value if isinstance(value, str) else value


SCENES = {"vision_r1": Form(frozenset({"problem", "image", "solution", "target_id_maps"}), _row)}
