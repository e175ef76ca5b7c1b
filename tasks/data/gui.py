"""Readers of GUI actions: GUI-G1, GUI-Odyssey, GUI-R1, OS-Atlas, ScreenSpot, UI-R1."""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from rewards import parse
from rewards.gui import NO_TEXT, PLACED
from tasks.data import rows
from tasks.data.images import BadRowError
from tasks.data.rows import Form, Place
from tasks.gui_formats import GuiTruth

# Screens with what is right to do on them: the rows of GUI grounding and GUI actions.


@dataclass(frozen=True, slots=True)
class GuiRow:
    """One question: what is right to do on `image`, a file or encoded bytes."""

    id: str
    image: Path | bytes
    instruction: str
    truth: GuiTruth
    history: str = "None"  # what was done before
    level: str = ""  # high or low, where the source says how much the instruction covers
    weight: float = 1.0  # how much it counts
    tags: Mapping[str, str] = field(default_factory=dict)  # platform, type, group, ...: what results are broken down by


# GUI-G1's training data (2505.15810; github.com/Yuqi-Zhou/GUI-G1).


def _gui_g1_row(values: Mapping[str, Any], place: Place) -> GuiRow:
    """`{image, problem, solution, rate}`: corners in pixels of the original image; `rate` is how much it counts."""
    instruction = rows.text_field(values, "problem")
    image, size = rows.image(values, "image", place)
    box = rows.box(values.get("solution"), "solution", size)
    return GuiRow(rows.row_id(values, place), image, instruction, GuiTruth("click", box), weight=_rate(values))


def _rate(values: Mapping[str, Any]) -> float:
    rate = values.get("rate", 1.0)
    number = isinstance(rate, int | float) and not isinstance(rate, bool)
    if not number or not math.isfinite(rate) or rate < 0:
        raise BadRowError(f"rate: {rate!r}: must be a number of at least 0")
    return float(rate)


GUI_G1_FORMS = {"gui_g1": Form(frozenset({"image", "problem", "solution"}), _gui_g1_row)}


# GUI-Odyssey (2406.08451) as github.com/OpenGVLab/GUI-Odyssey, data/format_converter.py, writes its test files.

UNITS = 1000  # over each side of the screen


def _gui_odyssey_row(values: Mapping[str, Any], place: Place) -> GuiRow:
    """`{id, image, question, answer, category, step_length, history_action, sam2_bbox}`.

    `answer` is `CLICK: (x, y)`, `TYPE: words`, `SCROLL: UP`, `PRESS_HOME`, ...; x, y and `sam2_bbox` (corners, may be
    left out) count 1000 over each side. The converter writes whole paths: the file's name is looked for in
    `data.images`. Episodes are told by the image's name up to its last `_`, as the benchmark's own evaluator does.
    """
    instruction = rows.text_field(values, "question")
    name = PurePosixPath(rows.text_field(values, "image")).name
    image, size = rows.image({"image": name}, "image", place)
    truth = _truth(rows.text_field(values, "answer"), values.get("sam2_bbox"), size)
    named = {"episode": name.rpartition("_")[0], **rows.tags(values, "category")}
    steps = values.get("step_length")
    if not isinstance(steps, int) or isinstance(steps, bool) or steps < 1:
        raise BadRowError(f"step_length: {steps!r}: must be a whole number of at least 1")
    return GuiRow(
        rows.row_id(values, place), image, instruction, truth, history=_history(values.get("history_action")),
        tags={**named, "steps": str(steps)},
    )  # fmt: skip


def _truth(answer: str, box: Any, size: rows.Size) -> GuiTruth:
    name, _, argument = answer.partition(":")
    kind = rows.kind(name, "answer", {})
    if kind not in PLACED:
        return rows.make_text_truth(kind, argument, "answer")
    scale = rows.per(size, UNITS)
    point = rows.point(parse.python_literal(argument.strip()).value, "answer", size, scale)
    return GuiTruth(kind, rows.box(box, "sam2_bbox", size, scale) if box is not None else (), point)


def _history(value: Any) -> str:
    """Earlier actions, numbered, from a list or the text of one."""
    try:
        actions = ast.literal_eval(value) if isinstance(value, str) else value or []
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        actions = None
    if not isinstance(actions, list) or not all(isinstance(action, str) for action in actions):
        raise BadRowError("history_action: must be a list of actions")
    return "\n".join(f"{i}. {action}" for i, action in enumerate(actions, start=1)) or "None"


GUI_ODYSSEY_FORMS = {"gui_odyssey": Form(frozenset({"image", "question", "answer", "step_length"}), _gui_odyssey_row)}


# GUI-R1's training and test files (2504.10458; github.com/ritzz-ai/GUI-R1, verl/utils/dataset.py).

LEVELS = ("high", "low")


def _gui_r1_row(values: Mapping[str, Any], place: Place) -> GuiRow:
    """`{image, instruction, history, task_type, gt_bbox, gt_action, gt_input_text, group, ui_type}`.

    `gt_bbox` has a point or corners in shares of the image; actions without a place have anything there. The text of
    an action that says nothing is `no input text`.
    """
    instruction = rows.text_field(values, "instruction")
    image, size = rows.image(values, "image", place)
    kind = rows.kind(values.get("gt_action"), "gt_action", {})
    words = values.get("gt_input_text")
    truth = (
        _placed(kind, values.get("gt_bbox"), size)
        if kind in PLACED
        else rows.make_text_truth(kind, "" if words == NO_TEXT else words, "gt_input_text")
    )
    history = values.get("history")
    return GuiRow(
        rows.row_id(values, place), image, instruction, truth,
        history=history.strip() if isinstance(history, str) and history.strip() else "None",
        level=rows.one_of(values, "task_type", LEVELS), tags=rows.tags(values, "group", "ui_type"),
    )  # fmt: skip


def _placed(kind: str, place: Any, size: rows.Size) -> GuiTruth:
    if not parse.point(place).reason:
        return GuiTruth(kind, point=rows.point(place, "gt_bbox", size, rows.per(size, 1)))
    return GuiTruth(kind, rows.box(place, "gt_bbox", size, rows.per(size, 1), order="[x, y] or [x1, y1, x2, y2]"))


GUI_R1_FORMS = {"gui_r1": Form(frozenset({"image", "gt_action", "gt_bbox"}), _gui_r1_row)}


# AndroidControl, OmniAct and GUI-Act-Web as OS-Atlas has them (2410.23218; github.com/OS-Copilot/OS-Atlas, eval/).

OS_ATLAS_KINDS = {
    "right_click": "rightclick", "double_click": "doubleclick", "move_to": "moveto", "hover": "moveto",
    "open": "open_app", "press_appselect": "press_recent",
}  # fmt: skip
TASKS = ("\nTask: ", "\nTask instruction: ")
HISTORY = "\nHistory:"


def _os_atlas_row(values: Mapping[str, Any], place: Place) -> GuiRow:
    """`{image, conversations: [{from: human, value}, {from: gpt, value}]}`.

    The human's value ends in `Task: ...` and `History: ...`; the reply is `thoughts:`, a line, `actions:`, one action:
    `CLICK <point>[[x, y]]</point>` with x and y in 0 to 1000 of each side, `TYPE [words]`, `SCROLL [UP]`, `PRESS_BACK`.
    """
    question, answer = _turns(values.get("conversations"))
    image, size = rows.image(values, "image", place)
    instruction, history = _question(question)
    return GuiRow(
        rows.row_id(values, place), image, instruction, action(answer, size), history=history,
        tags=rows.tags(values, "group"),
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
    instruction = rows.text_field({"Task": task}, "Task")
    return instruction, history.strip() if history.strip() not in ("", "null") else "None"


def action(answer: str, size: rows.Size) -> GuiTruth:
    """The one action after `actions:`."""
    lines = [line.strip() for line in answer.rpartition("actions:")[2].split("\n") if line.strip()]
    if len(lines) != 1:
        raise BadRowError(f"actions: one step has one action, here are {len(lines)}")
    name, _, argument = lines[0].partition(" ")
    kind = rows.kind(name, "actions", OS_ATLAS_KINDS)
    argument = argument.strip()
    if kind in PLACED:
        point = argument.removeprefix("<point>").removesuffix("</point>").strip()
        literal = parse.literal(point.removeprefix("[").removesuffix("]"))
        return GuiTruth(kind, point=rows.point(literal.value, "actions", size, rows.per(size, 1000)))
    return rows.make_text_truth(kind, argument.removeprefix("[").removesuffix("]"), "actions")


OS_ATLAS_FORMS = {"os_atlas": Form(frozenset({"image", "conversations"}), _os_atlas_row)}


# ScreenSpot (2401.10935), ScreenSpot-v2, ScreenSpot-Pro (2504.07981), and plain JSON lines.
#
# Sources: github.com/njucckevin/SeeClick, agent_tasks/screenspot_test.py; github.com/likaixin2000/ScreenSpot-Pro-GUI-
# Grounding, eval_screenspot_pro.py; the data set rootsautomation/ScreenSpot of Hugging Face.

PLATFORMS = {
    "mobile": ("ios", "android"),
    "desktop": ("windows", "macos"),
    "web": ("tool", "shop", "gitlab", "forum"),
}
TYPES = ("text", "icon")


def _screenspot(values: Mapping[str, Any], place: Place) -> GuiRow:
    """`bbox` [x, y, width, height] in pixels."""
    image, size = rows.image(values, "img_filename", place)
    box = rows.box(rows.corners(values.get("bbox")), "bbox", size, order=rows.XYWH)
    return _screenspot_row(values, place, image, box)


def _hugging_face(values: Mapping[str, Any], place: Place) -> GuiRow:
    """`bbox` corners in shares of the image; the image's bytes are in the row."""
    image, size = rows.image(values, "image", place)
    return _screenspot_row(values, place, image, rows.box(values.get("bbox"), "bbox", size, rows.per(size, 1)))


def _screenspot_row(values: Mapping[str, Any], place: Place, image: Any, box: tuple[float, ...]) -> GuiRow:
    named = {"platform": platform(values.get("data_source"), place.file.stem)}
    named |= {"type": rows.one_of(values, "data_type", TYPES), **rows.tags(values, "data_source")}
    named = {name: value for name, value in named.items() if value}
    instruction = rows.text_field(values, "instruction")
    return GuiRow(rows.row_id(values, place), image, instruction, GuiTruth("click", box), tags=named)


def platform(source: Any, stem: str) -> str:
    """mobile, desktop or web, by the row's source, else by the file's name, which SeeClick has one of per platform."""
    for name, sources in PLATFORMS.items():
        if source in sources:
            return name
    return next((name for name in PLATFORMS if name in stem.lower()), "")


def _pro(values: Mapping[str, Any], place: Place) -> GuiRow:
    """`bbox` corners in pixels, `img_size` to check the image by."""
    instruction = rows.text_field(values, "instruction")
    image, size = rows.image(values, "img_filename", place)
    if values.get("img_size") != list(size):
        raise BadRowError(f"img_size: {values.get('img_size')}, but {values['img_filename']} has {list(size)}")
    if values.get("gt_type", "positive") != "positive":
        raise BadRowError(f"gt_type: {values['gt_type']!r}: only targets that are there can be clicked")
    box = rows.box(values.get("bbox"), "bbox", size)
    named = {**rows.tags(values, "group", "application", "platform")}
    ui_type = rows.one_of(values, "ui_type", TYPES)
    named |= {"ui_type": ui_type} if ui_type else {}
    return GuiRow(rows.row_id(values, place), image, instruction, GuiTruth("click", box), tags=named)


def _plain(values: Mapping[str, Any], place: Place) -> GuiRow:
    """`image`, `instruction`, `box` corners in pixels, perhaps `id`; other texts are kept as tags."""
    instruction = rows.text_field(values, "instruction")
    image, size = rows.image(values, "image", place)
    box = rows.box(values.get("box"), "box", size)
    named = rows.tags(values, *(key for key in values if key not in ("id", "image", "instruction")))
    return GuiRow(rows.row_id(values, place), image, instruction, GuiTruth("click", box), tags=named)


SCREENSPOT_FORMS = {
    "jsonl": Form(frozenset({"image", "box"}), _plain),
    "screenspot_pro": Form(frozenset({"img_filename", "img_size"}), _pro),
    "screenspot": Form(frozenset({"img_filename", "data_type"}), _screenspot, lacks=frozenset({"img_size"})),
    "screenspot_hf": Form(frozenset({"image", "bbox", "data_source"}), _hugging_face),
}


# UI-R1's training data and its AndroidControl test file (2503.21620; github.com/lll6gg/UI-R1).

UI_R1_KINDS = {"input_text": "type", "navigate_back": "press_back", "navigate_home": "press_home"}
SAYS = {"type": "text", "scroll": "direction", "open_app": "app_name"}  # AndroidControl's keys of what is said


def _training(values: Mapping[str, Any], place: Place) -> GuiRow:
    """`{img_filename, instruction, bbox}`, corners in pixels, for clicks; `{.., action}` for others, without a text."""
    instruction = rows.text_field(values, "instruction")
    image, size = rows.image(values, "img_filename", place)
    kind = rows.kind(values.get("action", "click"), "action", UI_R1_KINDS)
    if kind == "click":
        truth = GuiTruth(kind, rows.box(values.get("bbox"), "bbox", size))
    elif kind in PLACED:
        raise BadRowError(f"action: {kind!r} has no place in this format")
    else:
        truth = GuiTruth(kind)
    return GuiRow(rows.row_id(values, place), image, instruction, truth)


def _test(values: Mapping[str, Any], place: Place) -> GuiRow:
    """`ac_test.json`: `{image, gt, task}`; `gt` is an action of AndroidControl (2406.03679), pixels of the image.

    `gt` is `{action_type, x, y | direction | text | app_name}`, `navigate_back` has no more.
    """
    instruction = rows.text_field(values, "task")
    image, size = rows.image(values, "image", place)
    action = values.get("gt")
    if not isinstance(action, Mapping):
        raise BadRowError("gt: must be an object with action_type")
    kind = rows.kind(action.get("action_type"), "gt.action_type", UI_R1_KINDS)
    if kind in PLACED:
        truth = GuiTruth(kind, point=rows.point([action.get("x"), action.get("y")], "gt.x, gt.y", size))
    else:
        key = SAYS.get(kind, "text")
        truth = rows.make_text_truth(kind, action.get(key), f"gt.{key}")
    return GuiRow(rows.row_id(values, place), image, instruction, truth, tags={"group": "android_control"})


CLICKS = {"ui_r1": Form(frozenset({"img_filename", "action"}), _training)}  # clicks only: `auto` must be told
UI_R1_FORMS = {**CLICKS, "ui_r1_android": Form(frozenset({"image", "gt", "task"}), _test)}
