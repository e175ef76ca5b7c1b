"""AndroidControl, OmniAct and GUI-Act-Web as OS-Atlas has them (2410.23218; github.com/OS-Copilot/OS-Atlas, eval/)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rewards import parse
from rewards.actions import PLACED
from tasks.gui.gui_steps import Truth
from tasks.readers import fields
from tasks.readers.rows import BadRowError, Form, Place
from tasks.readers.step import Row

KINDS = {
    "right_click": "rightclick", "double_click": "doubleclick", "move_to": "moveto", "hover": "moveto",
    "open": "open_app", "press_appselect": "press_recent",
}  # fmt: skip
TASKS = ("\nTask: ", "\nTask instruction: ")
HISTORY = "\nHistory:"


def _row(values: Mapping[str, Any], place: Place) -> Row:
    """`{image, conversations: [{from: human, value}, {from: gpt, value}]}`.

    The human's value ends in `Task: ...` and `History: ...`; the reply is `thoughts:`, a line, `actions:`, one action:
    `CLICK <point>[[x, y]]</point>` with x and y in 0 to 1000 of each side, `TYPE [words]`, `SCROLL [UP]`, `PRESS_BACK`.
    """
    asked, told = _turns(values.get("conversations"))
    image, size = fields.image(values, "image", place)
    instruction, history = _question(asked)
    return Row(
        fields.row_id(values, place), image, instruction, action(told, size), history=history,
        tags=fields.tags(values, "group"),
    )  # fmt: skip


def _turns(value: Any) -> tuple[str, str]:
    turns = value if isinstance(value, list) else []
    texts = [turn["value"] for turn in turns if isinstance(turn, Mapping) and isinstance(turn.get("value"), str)]
    if len(texts) != 2 or len(turns) != 2:
        raise BadRowError("conversations: must be two turns with a value, the question and the reply")
    return texts[0], texts[1]


def _question(asked: str) -> tuple[str, str]:
    """Instruction and history."""
    marks = [mark for mark in TASKS if mark in asked]
    if not marks:
        raise BadRowError("conversations: the question names no `Task:`")
    task, _, history = asked.rpartition(marks[0])[2].partition(HISTORY)
    instruction = fields.text({"Task": task}, "Task")
    return instruction, history.strip() if history.strip() not in ("", "null") else "None"


def action(told: str, size: fields.Size) -> Truth:
    """The one action after `actions:`."""
    lines = [line.strip() for line in told.rpartition("actions:")[2].split("\n") if line.strip()]
    if len(lines) != 1:
        raise BadRowError(f"actions: one step has one action, here are {len(lines)}")
    name, _, argument = lines[0].partition(" ")
    kind = fields.kind(name, "actions", KINDS)
    argument = argument.strip()
    if kind in PLACED:
        point = argument.removeprefix("<point>").removesuffix("</point>").strip()
        literal = parse.literal(point.removeprefix("[").removesuffix("]"))
        return Truth(kind, point=fields.point(literal.value, "actions", size, fields.per(size, 1000)))
    return fields.said(kind, argument.removeprefix("[").removesuffix("]"), "actions")


FORMS = {"os_atlas": Form(frozenset({"image", "conversations"}), _row)}
