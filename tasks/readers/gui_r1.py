"""GUI-R1's training and test files (2504.10458; github.com/ritzz-ai/GUI-R1, verl/utils/dataset.py)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rewards import parse
from rewards.actions import NO_TEXT, PLACED
from tasks.gui.gui_steps import Truth
from tasks.readers import fields
from tasks.readers.rows import Form, Place
from tasks.readers.step import Row

LEVELS = ("high", "low")


def _row(values: Mapping[str, Any], place: Place) -> Row:
    """`{image, instruction, history, task_type, gt_bbox, gt_action, gt_input_text, group, ui_type}`.

    `gt_bbox` has a point or corners in shares of the image; actions without a place have anything there. The text of
    an action that says nothing is `no input text`.
    """
    instruction = fields.text(values, "instruction")
    image, size = fields.image(values, "image", place)
    kind = fields.kind(values.get("gt_action"), "gt_action", {})
    words = values.get("gt_input_text")
    truth = (
        _placed(kind, values.get("gt_bbox"), size)
        if kind in PLACED
        else fields.said(kind, "" if words == NO_TEXT else words, "gt_input_text")
    )
    history = values.get("history")
    return Row(
        fields.row_id(values, place), image, instruction, truth,
        history=history.strip() if isinstance(history, str) and history.strip() else "None",
        level=fields.one_of(values, "task_type", LEVELS), tags=fields.tags(values, "group", "ui_type"),
    )  # fmt: skip


def _placed(kind: str, place: Any, size: fields.Size) -> Truth:
    if not parse.point(place).reason:
        return Truth(kind, point=fields.point(place, "gt_bbox", size, fields.per(size, 1)))
    return Truth(kind, fields.box(place, "gt_bbox", size, fields.per(size, 1), order="[x, y] or [x1, y1, x2, y2]"))


FORMS = {"gui_r1": Form(frozenset({"image", "gt_action", "gt_bbox"}), _row)}
