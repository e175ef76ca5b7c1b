"""GUI actions as a model writes them, and the rewards of UI-R1, GUI-R1, GUI-G1 and GUI-Odyssey."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from rewards import boxes, parse
from rewards import text as rewards_text
from rewards.boxes import in_box, near
from rewards.parse import total

# One GUI action as a model writes it: a list that holds a single object with a kind, perhaps a point and a text.

# How strictly an action is read.
#   any: JSON or a Python literal, ints or floats, perhaps in a ``` fence
#   python: a Python literal with whole numbers
#   quoted: also single quotes, no space inside a point's brackets but after the comma, first of all pairs, as in UI-R1
#   line: also on one line, last of all pairs, as in UI-R1-E and GUI-R1
ActionsNotation = Literal["any", "python", "quoted", "line"]
PLACED = frozenset({"click", "long_press", "doubleclick", "rightclick", "moveto"})  # actions at a point
TYPED = frozenset({"type", "select", "open_app", "input_text"})  # actions with a text to compare by its words
NO_TEXT = "no input text"  # GUI-R1's word for it

# each takes linear time: a match starts at a fixed character and never looks back
_KIND = re.compile(r"'action':\s*'(\w+)'")
_POINT = re.compile(r"\[(\d+),\s*(\d+)\]")
_TEXT = re.compile(r"'input_text':\s*'([^']*)'")


@dataclass(frozen=True)
class Action:
    """`point` as written; `text` is None where none is given."""

    kind: str
    point: tuple[float, float] | None = None
    text: str | None = None

    @property
    def position(self) -> tuple[float, float] | None:
        """Where to act. No place has a negative coordinate: GUI-R1 writes [-100, -100] for none."""
        return self.point if self.point and min(self.point) >= 0 else None

    @property
    def words(self) -> str:
        """The text given, '' for none."""
        return "" if self.text is None or self.text == NO_TEXT else self.text


def read_action(written: str, point: str = "point", notation: ActionsNotation = "any") -> parse.Parsed:
    """The text inside the answer tags -> Action. `point` is the key of the coordinates. Keys not asked for are ignored.

    Reasons: those of `parse.literal` and `parse.point`; not_one_action, no_action, not_text, not_in_notation.
    """
    literal = parse.literal(written) if notation == "any" else parse.python_literal(written)
    if literal.reason:
        return literal
    listed = literal.value
    if not (isinstance(listed, list) and len(listed) == 1 and isinstance(listed[0], dict)):
        return parse.Parsed(reason="not_one_action")
    parsed = _action(listed[0], point)
    if parsed.reason or _fits(parsed.value, written, notation):
        return parsed
    return parse.Parsed(reason="not_in_notation")


def _action(given: dict[Any, Any], key: str) -> parse.Parsed:
    kind, point, words = given.get("action"), given.get(key), given.get("input_text")
    if not (isinstance(kind, str) and kind):
        return parse.Parsed(reason="no_action")
    if not (words is None or isinstance(words, str)):
        return parse.Parsed(reason="not_text")
    if point is None:
        return parse.Parsed(Action(kind, None, words))
    numbers = parse.point(point)
    return numbers if numbers.reason else parse.Parsed(Action(kind, tuple(point), words))


def _fits(action: Action, written: str, notation: ActionsNotation) -> bool:
    """Whether the plain patterns of the papers find in the text what the parser has read."""
    if notation == "any":
        return True
    if action.point and not all(isinstance(number, int) for number in action.point):
        return False
    if notation == "python":
        return True
    if '"' in written or "\\" in written or (notation == "line" and "\n" in written):
        return False
    points = [(int(x), int(y)) for x, y in _POINT.findall(written)]
    point = points[0 if notation == "quoted" else -1] if points else None  # the one that the papers' patterns take
    return (
        action.position in (None, point)
        and _KIND.findall(written) == [action.kind]
        and _TEXT.findall(written) == ([] if action.text is None else [action.text])
    )


def has_argument(action: Action) -> bool:
    """Whether the action says what its kind needs: a place, a direction, a text."""
    if action.kind in PLACED:
        return action.position is not None
    if action.kind == "scroll":
        return action.words in rewards_text.DIRECTIONS
    return bool(action.words.strip()) if action.kind in TYPED else True


def says(action: Action, truth: str) -> bool:
    """Whether the action's text is the right one: the same direction, at least half of a typed text's words (F1), or
    else the same text. Brackets and case do not count."""
    words, right = unbracketed(action.words), unbracketed(truth)
    if action.kind == "scroll":
        return bool(rewards_text.direction(words, right))
    if action.kind in TYPED:
        return rewards_text.token_f1(words, right) >= 0.5
    return words.lower().split() == right.lower().split()


def unbracketed(words: str) -> str:
    return words.replace("[", "").replace("]", "")


# GUI-G1's rewards (2505.15810) for one box; the paper adds them up.
#
# The completion is a list of one object with `bbox_2d`, bare or as a ```json block; no tags. Boxes (x1, y1, x2, y2) are
# in pixels of the original image. `notation` `any` also takes the object alone and any fence; `python` a Python
# literal,
# bare or between two lines ```json and ``` that hold nothing else. A box without area is worth 0 everywhere. None of
# these raises on any completion. Source: github.com/Yuqi-Zhou/GUI-G1, grpo_rec.py; differences in docs/rewards.md.

GuiG1Notation = Literal["any", "python"]
IOU_WEIGHT, EDGE_WEIGHT = 0.25, 0.125


@total(box=4)
def gui_g1_hit(completion: str, box: Sequence[float], notation: GuiG1Notation = "any") -> float:
    """0 or 1: the predicted box's centre lies in `box`, borders included."""
    parsed = gui_g1_read(completion, notation)
    if parsed.reason:
        return 0.0
    x1, y1, x2, y2 = parsed.value
    return in_box(((x1 + x2) / 2, (y1 + y2) / 2), box)


@total(box=4)
def gui_g1_iou(completion: str, box: Sequence[float], notation: GuiG1Notation = "any") -> float:
    """A quarter of the IoU, in [0, 0.25]; as in the paper 0 where the boxes overlap by one pixel or less."""
    parsed = gui_g1_read(completion, notation)
    return 0.0 if parsed.reason else IOU_WEIGHT * boxes.iou(parsed.value, box, least=1.0)


@total(box=4, image_size=2)
def gui_g1_edges(
    completion: str, box: Sequence[float], image_size: Sequence[float], notation: GuiG1Notation = "any"
) -> float:
    """An eighth of `boxes.edges`, in [0, 0.125]. `image_size` is (width, height)."""
    parsed = gui_g1_read(completion, notation)
    return 0.0 if parsed.reason else EDGE_WEIGHT * boxes.edges(parsed.value, box, image_size)


def gui_g1_read(completion: str, notation: GuiG1Notation = "any") -> parse.Parsed:
    """The completion -> its one box. Reasons: those of `parse.literal` and `parse.box`; not_one_box."""
    if len(completion) > parse.MAX_CHARS:
        return parse.Parsed(reason="too_long")
    literal = parse.literal(completion) if notation == "any" else parse.python_literal(_block(completion))
    if literal.reason:
        return literal
    listed = [literal.value] if notation == "any" and isinstance(literal.value, dict) else literal.value
    if not (isinstance(listed, list) and len(listed) == 1 and isinstance(listed[0], dict)):
        return parse.Parsed(reason="not_one_box")
    return parse.box(listed[0].get("bbox_2d"))


def _block(text: str) -> str:
    """What is between the lines ```json and ```, or the whole text."""
    lines = text.strip("\n").split("\n")
    inside = "\n".join(lines[1:-1])
    return inside if lines[0] == "```json" and lines[-1] == "```" and "```" not in inside else text


# GUI-Odyssey's action matching (2406.08451), as rewards for one step. Coordinates are in 0..1000 of the screen.
#
# Source: github.com/OpenGVLab/GUI-Odyssey, GUIOdyssey_action_matching.py; differences in docs/rewards.md.

SIZE = (1000.0, 1000.0)


@total(point=2, target=2)
def gui_odyssey_click(point: Sequence[float], target: Sequence[float], box: Sequence[float] = ()) -> float:
    """0 or 1: the point is in the target's `box` where one is given, or at most 14 % of the screen from its point."""
    return max(boxes.in_box(point, box) if len(box) == 4 else 0.0, boxes.near(point, target, SIZE))


@total()
def gui_odyssey_step(
    kind: str,
    argument: str | Sequence[float] | None,
    true_kind: str,
    true_argument: str | Sequence[float] | None,
    box: Sequence[float] = (),
) -> float:
    """0 or 1: the right kind of action with the right point, direction or text. Never raises on plain data.

    Points are two numbers: a text that looks like one is not read.
    """
    if kind != true_kind:
        return 0.0
    if kind in ("CLICK", "LONG_PRESS"):
        point, right = parse.point(argument), parse.point(true_argument)
        return 0.0 if point.reason or right.reason else gui_odyssey_click(point.value, right.value, box)
    if kind not in ("SCROLL", "TYPE"):
        return 1.0
    if not (isinstance(argument, str) and isinstance(true_argument, str)):
        return 0.0
    return (rewards_text.direction if kind == "SCROLL" else rewards_text.similar)(argument, true_argument)


# Credit for single steps of an episode, from values that critics estimate.


@total()
def advances(value: float, next_value: float, reward: float, returned: float, cost: float = 0.05) -> float:
    """0 or 1: the step gained more than its `cost`: V(next) - V(now) - cost + reward + Monte Carlo return > 0.

    0 for NaN. Never raises on numbers. Source: DigiRL (2406.11896), the filter of its actor's steps.
    """
    return float(next_value - value - cost + reward + returned > 0)


# GUI-R1's rewards (2504.10458): 0.8 accuracy + 0.2 format.
#
# `thinking` says whether the completion must hold thoughts; for `notation` see `rewards.gui`. None of these raises
# on any completion. Source: github.com/ritzz-ai/GUI-R1, verl/utils/reward_score/r1gui.py; differences in
# docs/rewards.md.

RADIUS = 140.0  # pixels around a target that is given as a point
COMPARED = ("type", "select", "scroll")  # kinds whose truth always has a text


@total()
def gui_r1_accuracy(
    completion: str,
    action: str,
    place: Sequence[float] = (),
    text: str = "",
    thinking: bool = True,
    notation: ActionsNotation = "any",
) -> float:
    """0 or 1: the right kind of action (case does not count) with the right argument.

    `place` is the target's box, which a click must fall inside of, or its point, from which it must be less than 140
    pixels away; other kinds at a point must too where the truth has a place. `text` is the direction, typed words, app
    or keys, see `rewards.gui.says`. A click without point is worth 0, as is a truth that the kind cannot have.
    """
    parsed = _gui_r1_read(completion, thinking, notation)
    if parsed.reason or parsed.value.kind.lower() != action.lower():
        return 0.0
    predicted_action = Action(action.lower(), parsed.value.point, parsed.value.text)
    if predicted_action.kind in PLACED:
        needs_point = predicted_action.kind == "click" or max(place, default=-1.0) >= 0
        return _there(predicted_action.position, place) if needs_point else 1.0
    if predicted_action.kind in COMPARED:
        return float(says(predicted_action, text))
    return float(text in ("", NO_TEXT) or says(predicted_action, text))


def _there(point: tuple[float, float] | None, place: Sequence[float]) -> float:
    if point is None:
        return 0.0
    if len(place) == 4:
        return in_box(point, place, borders=False)
    return near(point, place, radius=RADIUS, border=False) if len(place) == 2 else 0.0


@total()
def gui_r1_format(completion: str, thinking: bool = True, notation: ActionsNotation = "any") -> float:
    """0 or 1: the tags are right, and inside is one action with `action`, `point` and `input_text`.

    An action at a point has one, `type`, `select` and `open_app` have a text, `scroll` one of up, down, left, right.
    `notation` other than `any` also refuses white space around.
    """
    if notation != "any" and completion != completion.strip():
        return 0.0
    parsed = _gui_r1_read(completion, thinking, notation)
    if parsed.reason or parsed.value.point is None or parsed.value.text is None:
        return 0.0
    return float(has_argument(parsed.value))


@total()
def gui_r1_overall(
    completion: str,
    action: str,
    place: Sequence[float] = (),
    text: str = "",
    thinking: bool = True,
    notation: ActionsNotation = "any",
) -> float:
    """0.8 * accuracy + 0.2 * format, in [0, 1]. `notation` is that of the accuracy; the form may be any Python's."""
    right = gui_r1_accuracy(completion, action, place, text, thinking, notation)
    return 0.8 * right + 0.2 * gui_r1_format(completion, thinking, "any" if notation == "any" else "python")


def _gui_r1_read(completion: str, thinking: bool, notation: ActionsNotation) -> parse.Parsed:
    return parse.answer(completion, thinking, partial(read_action, point="point", notation=notation))


# UI-R1's rewards (2503.21620): the action, its coordinate, the form. Each is 0 or 1; the paper adds them up.
#
# `thinking` says whether the completion must hold thoughts; for `notation` see `rewards.gui`. None of these raises
# on any completion. Source: github.com/lll6gg/UI-R1, grpo_json_action_coord.py; differences in docs/rewards.md.


@total()
def ui_r1_action(completion: str, action: str, thinking: bool = True, notation: ActionsNotation = "any") -> float:
    """0 or 1: the completion's one action is of the right kind; case counts."""
    parsed = _ui_r1_read(completion, thinking, notation)
    return float(parsed.reason is None and parsed.value.kind == action)


@total(scale=2)
def ui_r1_coordinate(
    completion: str,
    action: str,
    box: Sequence[float] = (),
    text: str = "",
    scale: Sequence[float] = (1.0, 1.0),
    thinking: bool = True,
    notation: ActionsNotation = "any",
) -> float:
    """0 or 1: the right kind, and a click falls into `box` (pixels of the original image, borders included).

    `scale` is original / shown size (x, y); a scaled click also counts by the whole pixel that it falls into, as in the
    paper. Other kinds must say `text` (direction, typed words, app) where the truth has one; the paper never asks.
    A click without a coordinate, or on a box without area, is worth 0.
    """
    parsed = _ui_r1_read(completion, thinking, notation)
    if parsed.reason or parsed.value.kind != action:
        return 0.0
    if action != "click":
        return float(not text or says(parsed.value, text))
    place = parsed.value.position
    if place is None or len(box) != 4:
        return 0.0
    scaled = place[0] * scale[0], place[1] * scale[1]
    if not all(map(math.isfinite, scaled)):
        return 0.0
    return max(in_box(scaled, box), in_box([math.floor(value) for value in scaled], box))


@total()
def ui_r1_format(completion: str, thinking: bool = True, notation: ActionsNotation = "any") -> float:
    """0 or 1: the tags are right, and inside is one action; a click has a coordinate. `notation` other than `any`
    also refuses white space around."""
    if notation != "any" and completion != completion.strip():
        return 0.0
    parsed = _ui_r1_read(completion, thinking, notation)
    return float(parsed.reason is None and (parsed.value.kind != "click" or parsed.value.position is not None))


def _ui_r1_read(completion: str, thinking: bool, notation: ActionsNotation) -> parse.Parsed:
    return parse.answer(completion, thinking, partial(read_action, point="coordinate", notation=notation))
