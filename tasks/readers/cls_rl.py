"""CLS-RL's few-shot sets (2503.16188; github.com/minglllli/CLS-RL): R1-V's columns, the class in answer tags."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tasks.readers import fields
from tasks.readers.rows import BadRowError, Form, Place
from tasks.readers.scene import Scene, identity


def _row(values: Mapping[str, Any], place: Place) -> Scene:
    """`{image, problem, solution}`: `problem` asks and lists the choices, `solution` is the class, perhaps in tags."""
    question = fields.text(values, "problem").replace("<image>", "").strip()
    image, _ = fields.image(values, "image", place)
    answer = fields.text(values, "solution").removeprefix("<answer>").removesuffix("</answer>").strip()
    if not answer:
        raise BadRowError("solution: must name a class")
    return Scene(identity(values, place), (image,), question, answer=answer)


LABELLED = {"cls_rl": Form(frozenset({"image", "problem", "solution"}), _row)}
