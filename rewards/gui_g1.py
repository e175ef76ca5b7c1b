"""GUI-G1's rewards (2505.15810) for one box; the paper adds them up.

The completion is a list of one object with `bbox_2d`, bare or as a ```json block; no tags. Boxes (x1, y1, x2, y2) are
in pixels of the original image. `notation` `any` also takes the object alone and any fence; `python` a Python literal,
bare or between two lines ```json and ``` that hold nothing else. A box without area is worth 0 everywhere. None of
these raises on any completion. Source: github.com/Yuqi-Zhou/GUI-G1, grpo_rec.py; differences in docs/rewards.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from rewards import boxes, parse
from rewards.points import in_box
from rewards.total import total

Notation = Literal["any", "python"]
IOU_WEIGHT, EDGE_WEIGHT = 0.25, 0.125


@total(box=4)
def hit(completion: str, box: Sequence[float], notation: Notation = "any") -> float:
    """0 or 1: the predicted box's centre lies in `box`, borders included."""
    parsed = read(completion, notation)
    if parsed.reason:
        return 0.0
    x1, y1, x2, y2 = parsed.value
    return in_box(((x1 + x2) / 2, (y1 + y2) / 2), box)


@total(box=4)
def iou(completion: str, box: Sequence[float], notation: Notation = "any") -> float:
    """A quarter of the IoU, in [0, 0.25]; as in the paper 0 where the boxes overlap by one pixel or less."""
    parsed = read(completion, notation)
    return 0.0 if parsed.reason else IOU_WEIGHT * boxes.iou(parsed.value, box, least=1.0)


@total(box=4, image_size=2)
def edges(completion: str, box: Sequence[float], image_size: Sequence[float], notation: Notation = "any") -> float:
    """An eighth of `boxes.edges`, in [0, 0.125]. `image_size` is (width, height)."""
    parsed = read(completion, notation)
    return 0.0 if parsed.reason else EDGE_WEIGHT * boxes.edges(parsed.value, box, image_size)


def read(completion: str, notation: Notation = "any") -> parse.Parsed:
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
