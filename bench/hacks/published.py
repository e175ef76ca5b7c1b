"""The GUI rewards as published, faults included, which `exploit` compares with ours. Train nothing on them.

Rules in our own words after github.com/lll6gg/UI-R1, ritzz-ai/GUI-R1 and Yuqi-Zhou/GUI-G1, checked against recorded
results of their code. One difference: GUI-R1 runs `eval` on the model's text, this
reads it with `ast.literal_eval`. The comments name the faults; docs/rewards.md says what ours do instead.
"""

from __future__ import annotations

import ast
import math
import re
import warnings
from collections.abc import Sequence
from typing import Any

from rewards.boxes import iou

TAGGED = re.compile(r"<think>.*?</think>\s*<answer>.*?</answer>", re.DOTALL)
FIRST_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)  # also one inside the thoughts


def literal(text: str) -> Any:
    """A Python literal, or ValueError."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.literal_eval(text.strip())
    except (SyntaxError, TypeError, RecursionError, MemoryError) as error:
        raise ValueError(str(error)) from None


# -- UI-R1: action + coordinate + format, 0 to 3 -----------------------------------------------------------------------


def ui_r1(completion: str, action: str, box: Sequence[float], text: str = "") -> float:
    """The sum. The truth is kept as a text: the coordinate of an action without place is [0, 0, 0, 0]; `text` is not
    kept at all."""
    solution = f"<answer>[{{'action': '{action}' ,'coordinate': {list(box) or [0, 0, 0, 0]} }}]</answer>"
    parts = ui_r1_action(completion, solution), ui_r1_coordinate(completion, solution, (1.0, 1.0))
    return sum(parts) + ui_r1_format(completion)


def ui_r1_action(completion: str, solution: str) -> float:
    said, right = _ui_r1_kind(completion), _ui_r1_kind(solution)
    return float(bool(said) and said == right)


def ui_r1_coordinate(completion: str, solution: str, scale: Sequence[float]) -> float:
    if not ui_r1_action(completion, solution):
        return 0.0
    if _ui_r1_kind(completion) != "click":
        return 1.0  # no direction, text or app is ever compared
    x1, y1, x2, y2 = _ui_r1_numbers(solution, 4)
    x, y = (int(value * factor) for value, factor in zip(_ui_r1_numbers(completion, 2), scale, strict=True))
    return float(x1 <= x <= x2 and y1 <= y <= y2)


def ui_r1_format(completion: str) -> float:
    return float(TAGGED.fullmatch(completion) is not None)


def _ui_r1_kind(text: str) -> str | None:
    found = FIRST_ANSWER.search(text)
    words = re.search(r"'action':\s*'(\w+)'", found[1]) or re.search(r"'action':\s*(\w+)", found[1]) if found else None
    return words and words[1]


def _ui_r1_numbers(text: str, count: int) -> list[int]:
    """The first list of so many whole numbers; zeros where there is none, so no coordinate is a click at [0, 0], and a
    true box with decimals is one."""
    found = FIRST_ANSWER.search(text)
    numbers = re.search(r"\[" + r",\s*".join([r"(\d+)"] * count) + r"\]", found[1]) if found else None
    return [int(number) for number in numbers.groups()] if numbers else [0] * count


# -- GUI-R1: 0.8 accuracy + 0.2 format ---------------------------------------------------------------------------------


def gui_r1(completion: str, action: str, place: Sequence[float], text: str = "") -> float:
    return 0.8 * gui_r1_accuracy(completion, action, place, text) + 0.2 * gui_r1_format(completion)


def gui_r1_accuracy(completion: str, action: str, place: Sequence[float], text: str) -> float:
    found = re.search(r"'action':\s*'(\w+)'", _gui_r1_answer(completion))
    kind = found[1].lower() if found else "no action"
    if kind != action.lower():
        return 0.0
    if kind == "click":
        return _gui_r1_there(_gui_r1_point(completion), place)
    if kind in ("type", "select", "scroll"):
        return float(gui_r1_f1(_gui_r1_text(completion), text) >= 0.5)
    return 1.0  # any app, any keys, any place


def _gui_r1_there(point: Sequence[float], place: Sequence[float]) -> float:
    x, y = point[:2]
    if len(place) == 2:
        return float((x - place[0]) ** 2 + (y - place[1]) ** 2 < 140**2)
    return float(len(place) == 4 and place[0] < x < place[2] and place[1] < y < place[3])


def gui_r1_f1(predicted: str, truth: str) -> float:
    said, right = (set(re.sub(r"[\[\]]", "", text).lower().split()) for text in (predicted, truth))
    if len(said) == len(right) == 1:
        one, other = *said, *right
        if one in other or other in one:  # one letter, or all the words in one
            return 1.0
    return 2 * len(said & right) / (len(said) + len(right)) if said & right else 0.0


def gui_r1_format(completion: str) -> float:
    if not TAGGED.fullmatch(completion):
        return 0.0
    try:
        listed = literal(FIRST_ANSWER.search(completion)[1])
    except ValueError:
        return 0.0
    return float(isinstance(listed, list) and all(map(_gui_r1_item, listed)))  # true of an empty list


def _gui_r1_item(item: Any) -> bool:
    if not (isinstance(item, dict) and {"action", "point", "input_text"} <= item.keys()):
        return False
    action, point, text = item["action"], item["point"], item["input_text"]
    if not (isinstance(action, str) and isinstance(text, str) and isinstance(point, list | tuple) and len(point) > 1):
        return False
    if not all(isinstance(value, int) for value in point[:2]):
        return False
    if action in ("type", "select", "open_app") and text == "no input text":
        return False
    return action != "scroll" or text in ("left", "right", "up", "down")


def _gui_r1_answer(completion: str) -> str:
    found = FIRST_ANSWER.search(completion)
    return found[1] if found else ""


def _gui_r1_point(completion: str) -> list[int]:
    """The last point between braces on one line; zeros where there is none."""
    found = re.search(r"\{.*\[(\d+),\s*(\d+)\].*\}", _gui_r1_answer(completion))
    return [int(value) for value in found.groups()] if found else [0, 0, 0, 0]


def _gui_r1_text(completion: str) -> str:
    found = re.search(r"'input_text':\s*'(.*?)'", _gui_r1_answer(completion))
    return found[1] if found else "no input text"


# -- GUI-G1: hit + 0.25 IoU + 0.125 edges ------------------------------------------------------------------------------


def gui_g1_hit(completion: str, box: Sequence[float]) -> float:
    given = _gui_g1_box(completion)
    if given is None:
        return 0.0
    x, y = (given[0] + given[2]) / 2, (given[1] + given[3]) / 2  # of a box without area too
    return float(box[0] <= x <= box[2] and box[1] <= y <= box[3])


def gui_g1_iou(completion: str, box: Sequence[float]) -> float:
    given = _gui_g1_box(completion)
    return 0.25 * iou(given, box, least=1.0) if given else 0.0


def gui_g1_edges(completion: str, box: Sequence[float], size: Sequence[float]) -> float:
    """The harmonic mean of four shares that are cut off nowhere: any value, from minus to plus infinity."""
    given = _gui_g1_box(completion)
    if given is None:
        return 0.0
    shares = [1 - abs(given[i] - box[i]) / size[i % 2] for i in range(4)]
    inverse = sum(map(_inverse, shares))
    return 0.125 * 4 / inverse if inverse and math.isfinite(inverse) else 0.0


def _inverse(share: float) -> float:
    return 1 / share if share else math.nan


def _gui_g1_box(completion: str) -> list[float] | None:
    """The first box of the list, with four numbers or more."""
    lines = completion.split("\n")
    if "```json" in lines:
        completion = "\n".join(lines[lines.index("```json") + 1 :]).split("```")[0]
    try:
        box = literal(completion)[0]["bbox_2d"]
        return box if len(box) >= 4 and all(math.isfinite(side) for side in box) else None
    except (ValueError, TypeError, KeyError, IndexError, OverflowError):
        return None
