"""GUI-Odyssey (2406.08451) as github.com/OpenGVLab/GUI-Odyssey, data/format_converter.py, writes its test files."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from rewards import parse
from rewards.actions import PLACED
from tasks.gui.gui_steps import Truth
from tasks.readers import fields
from tasks.readers.rows import BadRowError, Form, Place
from tasks.readers.step import Row

UNITS = 1000  # over each side of the screen


def _row(values: Mapping[str, Any], place: Place) -> Row:
    """`{id, image, question, answer, category, step_length, history_action, sam2_bbox}`.

    `answer` is `CLICK: (x, y)`, `TYPE: words`, `SCROLL: UP`, `PRESS_HOME`, ...; x, y and `sam2_bbox` (corners, may be
    left out) count 1000 over each side. The converter writes whole paths: the file's name is looked for in
    `data.images`. Episodes are told by the image's name up to its last `_`, as the benchmark's own evaluator does.
    """
    instruction = fields.text(values, "question")
    name = PurePosixPath(fields.text(values, "image")).name
    image, size = fields.image({"image": name}, "image", place)
    truth = _truth(fields.text(values, "answer"), values.get("sam2_bbox"), size)
    named = {"episode": name.rpartition("_")[0], **fields.tags(values, "category")}
    steps = values.get("step_length")
    if not isinstance(steps, int) or isinstance(steps, bool) or steps < 1:
        raise BadRowError(f"step_length: {steps!r}: must be a whole number of at least 1")
    return Row(
        fields.row_id(values, place), image, instruction, truth, history=_history(values.get("history_action")),
        tags={**named, "steps": str(steps)},
    )  # fmt: skip


def _truth(answer: str, box: Any, size: fields.Size) -> Truth:
    name, _, argument = answer.partition(":")
    kind = fields.kind(name, "answer", {})
    if kind not in PLACED:
        return fields.said(kind, argument, "answer")
    scale = fields.per(size, UNITS)
    point = fields.point(parse.python_literal(argument.strip()).value, "answer", size, scale)
    return Truth(kind, fields.box(box, "sam2_bbox", size, scale) if box is not None else (), point)


def _history(value: Any) -> str:
    """Earlier actions, numbered, from a list or the text of one."""
    try:
        actions = ast.literal_eval(value) if isinstance(value, str) else value or []
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        actions = None
    if not isinstance(actions, list) or not all(isinstance(action, str) for action in actions):
        raise BadRowError("history_action: must be a list of actions")
    return "\n".join(f"{i}. {action}" for i, action in enumerate(actions, start=1)) or "None"


FORMS = {"gui_odyssey": Form(frozenset({"image", "question", "answer", "step_length"}), _row)}
