"""UI-R1's rewards (2503.21620): the action, its coordinate, the form. Each is 0 or 1; the paper adds them up.

`thinking` says whether the completion must hold thoughts; for `notation` see `rewards.actions`. None of these raises
on any completion. Source: github.com/lll6gg/UI-R1, grpo_json_action_coord.py; differences in docs/rewards.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

from rewards import actions, parse
from rewards.actions import Notation
from rewards.points import in_box
from rewards.total import total


@total()
def action(completion: str, action: str, thinking: bool = True, notation: Notation = "any") -> float:
    """0 or 1: the completion's one action is of the right kind; case counts."""
    parsed = _read(completion, thinking, notation)
    return float(parsed.reason is None and parsed.value.kind == action)


@total(scale=2)
def coordinate(
    completion: str,
    action: str,
    box: Sequence[float] = (),
    text: str = "",
    scale: Sequence[float] = (1.0, 1.0),
    thinking: bool = True,
    notation: Notation = "any",
) -> float:
    """0 or 1: the right kind, and a click falls into `box` (pixels of the original image, borders included).

    `scale` is original / shown size (x, y); a scaled click also counts by the whole pixel that it falls into, as in the
    paper. Other kinds must say `text` (direction, typed words, app) where the truth has one; the paper never asks.
    A click without a coordinate, or on a box without area, is worth 0.
    """
    parsed = _read(completion, thinking, notation)
    if parsed.reason or parsed.value.kind != action:
        return 0.0
    if action != "click":
        return float(not text or actions.says(parsed.value, text))
    place = parsed.value.place
    if place is None or len(box) != 4:
        return 0.0
    scaled = place[0] * scale[0], place[1] * scale[1]
    if not all(map(math.isfinite, scaled)):
        return 0.0
    return max(in_box(scaled, box), in_box([math.floor(value) for value in scaled], box))


@total()
def format(completion: str, thinking: bool = True, notation: Notation = "any") -> float:
    """0 or 1: the tags are right, and inside is one action; a click has a coordinate. `notation` other than `any`
    also refuses white space around."""
    if notation != "any" and completion != completion.strip():
        return 0.0
    parsed = _read(completion, thinking, notation)
    return float(parsed.reason is None and (parsed.value.kind != "click" or parsed.value.place is not None))


def _read(completion: str, thinking: bool, notation: Notation) -> parse.Parsed:
    return parse.answer(completion, thinking, partial(actions.read, point="coordinate", notation=notation))
