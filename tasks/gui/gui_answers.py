"""How models of three papers write a GUI action, and what the paper pays for it. Rewards come from `rewards/`.

A family's functions take and give actions under one set of names (gui_steps.py) and never raise on a completion.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from rewards import actions, gui_g1, gui_r1, parse, ui_r1
from rewards.actions import PLACED, Action
from tasks.base import answer_markup
from tasks.gui.gui_steps import Truth, on_image, right_place
from tasks.places import expressible, nearest, written
from vlrl.types import Frame

UI_R1_WORDS = {"type": "input_text", "press_back": "navigate_back"}  # our name -> UI-R1's
NOWHERE = (-100, -100)  # how GUI-R1 writes the point of an action that has no place


@dataclass(frozen=True)
class Answer:
    """An action as a model wrote it; GUI-G1's also has the box whose centre is the action's point."""

    action: Action
    box: tuple[float, ...] = ()

    def in_pixels(self, frame: Frame) -> Answer:
        """The same answer in pixels of the image: the one place where predictions are converted."""
        point = frame.to_original(*self.action.point) if self.action.point else None
        box = (*frame.to_original(*self.box[:2]), *frame.to_original(*self.box[2:])) if self.box else ()
        return Answer(replace(self.action, point=point), box)


@dataclass(frozen=True)
class Family:
    """`read`: completion, thinking -> Parsed[Answer]; `write`: Answer, thinking -> completion.

    `parts`: Answer in pixels, Truth, Frame -> reward parts, each in [0, 1]; `weights` are the paper's.
    `gold`: Truth, Frame -> the best Answer that the frame can express, in the frame's coordinates.
    """

    weights: Mapping[str, float]
    read: Callable[[str, bool], parse.Parsed]
    write: Callable[[Answer, bool], str]
    parts: Callable[[Answer, Truth, Frame], dict[str, float]]
    gold: Callable[[Truth, Frame], Answer]


def _read_list(completion: str, thinking: bool, key: str, ours: Mapping[str, str]) -> parse.Parsed:
    parsed = parse.answer(completion, thinking, partial(actions.read, point=key))
    if parsed.reason:
        return parsed
    kind = parsed.value.kind
    return parse.Parsed(Answer(replace(parsed.value, kind=ours.get(kind, kind))))


def _write_list(answer: Answer, thinking: bool, key: str, theirs: Mapping[str, str]) -> str:
    action = answer.action
    fields = {"action": theirs.get(action.kind, action.kind), key: action.point, "input_text": action.text}
    given = {name: list(v) if isinstance(v, tuple) else v for name, v in fields.items() if v is not None}
    return answer_markup(repr([given]), thinking)


def _place(truth: Truth, frame: Frame) -> tuple[float, ...]:
    """A right point in the frame's coordinates."""
    return tuple(written(frame, expressible(frame, truth.box) if truth.box else frame.from_original(*truth.point)))


# -- UI-R1 -----------------------------------------------------------------------------------------------------------


def _read_ui_r1(completion: str, thinking: bool) -> parse.Parsed:
    return _read_list(completion, thinking, "coordinate", {word: kind for kind, word in UI_R1_WORDS.items()})


def _write_ui_r1(answer: Answer, thinking: bool) -> str:
    return _write_list(answer, thinking, "coordinate", UI_R1_WORDS)


def _parts_ui_r1(answer: Answer, truth: Truth, frame: Frame) -> dict[str, float]:
    """The paper's three. A truth that is a point (AndroidControl) is met within 14 % of the screen, as its evaluation
    has it."""
    completion = _write_ui_r1(answer, False)
    kind = UI_R1_WORDS.get(truth.kind, truth.kind)
    action = ui_r1.action(completion, kind, thinking=False)
    if truth.kind == "click" and not truth.box:
        coordinate = action * right_place(answer.action, truth, frame.original)
    else:
        coordinate = ui_r1.coordinate(completion, kind, truth.box, truth.text, thinking=False)
    return {"action": action, "coordinate": coordinate, "format": ui_r1.format(completion, thinking=False)}


def _gold_ui_r1(truth: Truth, frame: Frame) -> Answer:
    point = _place(truth, frame) if truth.kind in PLACED else None
    return Answer(Action(truth.kind, point, truth.text or None))


# -- GUI-R1 ----------------------------------------------------------------------------------------------------------


def _read_gui_r1(completion: str, thinking: bool) -> parse.Parsed:
    parsed = _read_list(completion, thinking, "point", {})
    if parsed.reason:
        return parsed
    action = parsed.value.action
    return parse.Parsed(Answer(replace(action, kind=action.kind.lower())))


def _write_gui_r1(answer: Answer, thinking: bool) -> str:
    return _write_list(answer, thinking, "point", {})


def _parts_gui_r1(answer: Answer, truth: Truth, frame: Frame) -> dict[str, float]:
    """Accuracy and format. A click beside the image is worth nothing, however near its target is."""
    completion, size = _write_gui_r1(answer, False), frame.original
    accuracy = gui_r1.accuracy(completion, truth.kind, truth.place, truth.text, thinking=False)
    if truth.kind in PLACED and not on_image(answer.action.place, size):
        accuracy = 0.0
    return {"accuracy": accuracy, "format": gui_r1.format(completion, thinking=False)}


def _gold_gui_r1(truth: Truth, frame: Frame) -> Answer:
    point = _place(truth, frame) if truth.kind in PLACED else NOWHERE
    return Answer(Action(truth.kind, point, truth.text or actions.NO_TEXT))


# -- GUI-G1 ----------------------------------------------------------------------------------------------------------


def _read_gui_g1(completion: str, thinking: bool) -> parse.Parsed:
    parsed = gui_g1.read(completion)
    if parsed.reason:
        return parsed
    x1, y1, x2, y2 = parsed.value
    return parse.Parsed(Answer(Action("click", ((x1 + x2) / 2, (y1 + y2) / 2)), parsed.value))


def _write_gui_g1(answer: Answer, thinking: bool) -> str:
    return f"```json\n{json.dumps([{'bbox_2d': list(answer.box)}])}\n```"


def _parts_gui_g1(answer: Answer, truth: Truth, frame: Frame) -> dict[str, float]:
    """Hit, IoU and edges, the latter two as shares of what the paper weighs them with (0.25, 0.125)."""
    corners = [nearest(frame, answer.box[i : i + 2], truth.box[i : i + 2]) for i in (0, 2)]
    completion = _write_gui_g1(Answer(answer.action, (*corners[0], *corners[1])), False)
    return {
        "hit": gui_g1.hit(completion, truth.box),
        "iou": gui_g1.iou(completion, truth.box) / gui_g1.IOU_WEIGHT,
        "edges": gui_g1.edges(completion, truth.box, frame.original) / gui_g1.EDGE_WEIGHT,
    }


def _gold_gui_g1(truth: Truth, frame: Frame) -> Answer:
    (x1, y1), (x2, y2) = (frame.from_original(*truth.box[i : i + 2]) for i in (0, 2))
    step = 1e-4 if frame.space == "rel1" else 1
    box = written(frame, (x1, y1, max(x2, x1 + step), max(y2, y1 + step)))  # no box without area
    return Answer(Action("click"), tuple(box))


UI_R1 = Family({"action": 1.0, "coordinate": 1.0, "format": 1.0}, _read_ui_r1, _write_ui_r1, _parts_ui_r1, _gold_ui_r1)
GUI_R1 = Family({"accuracy": 0.8, "format": 0.2}, _read_gui_r1, _write_gui_r1, _parts_gui_r1, _gold_gui_r1)
GUI_G1 = Family(
    {"hit": 1.0, "iou": gui_g1.IOU_WEIGHT, "edges": gui_g1.EDGE_WEIGHT},
    _read_gui_g1, _write_gui_g1, _parts_gui_g1, _gold_gui_g1,
)  # fmt: skip
