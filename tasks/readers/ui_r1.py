"""UI-R1's training data and its AndroidControl test file (2503.21620; github.com/lll6gg/UI-R1)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rewards.actions import PLACED
from tasks.gui.gui_steps import Truth
from tasks.readers import fields
from tasks.readers.rows import BadRowError, Form, Place
from tasks.readers.step import Row

KINDS = {"input_text": "type", "navigate_back": "press_back", "navigate_home": "press_home"}
SAYS = {"type": "text", "scroll": "direction", "open_app": "app_name"}  # AndroidControl's keys of what is said


def _training(values: Mapping[str, Any], place: Place) -> Row:
    """`{img_filename, instruction, bbox}`, corners in pixels, for clicks; `{.., action}` for others, without a text."""
    instruction = fields.text(values, "instruction")
    image, size = fields.image(values, "img_filename", place)
    kind = fields.kind(values.get("action", "click"), "action", KINDS)
    if kind == "click":
        truth = Truth(kind, fields.box(values.get("bbox"), "bbox", size))
    elif kind in PLACED:
        raise BadRowError(f"action: {kind!r} has no place in this format")
    else:
        truth = Truth(kind)
    return Row(fields.row_id(values, place), image, instruction, truth)


def _test(values: Mapping[str, Any], place: Place) -> Row:
    """`ac_test.json`: `{image, gt, task}`; `gt` is an action of AndroidControl (2406.03679), pixels of the image.

    `gt` is `{action_type, x, y | direction | text | app_name}`, `navigate_back` has no more.
    """
    instruction = fields.text(values, "task")
    image, size = fields.image(values, "image", place)
    action = values.get("gt")
    if not isinstance(action, Mapping):
        raise BadRowError("gt: must be an object with action_type")
    kind = fields.kind(action.get("action_type"), "gt.action_type", KINDS)
    if kind in PLACED:
        truth = Truth(kind, point=fields.point([action.get("x"), action.get("y")], "gt.x, gt.y", size))
    else:
        key = SAYS.get(kind, "text")
        truth = fields.said(kind, action.get(key), f"gt.{key}")
    return Row(fields.row_id(values, place), image, instruction, truth, tags={"group": "android_control"})


CLICKS = {"ui_r1": Form(frozenset({"img_filename", "action"}), _training)}  # clicks only: `auto` must be told
FORMS = {**CLICKS, "ui_r1_android": Form(frozenset({"image", "gt", "task"}), _test)}
