"""GUI-R1's rewards (2504.10458): 0.8 accuracy + 0.2 format.

`thinking` says whether the completion must hold thoughts; for `notation` see `rewards.actions`. None of these raises
on any completion. Source: github.com/ritzz-ai/GUI-R1, verl/utils/reward_score/r1gui.py; differences in docs/rewards.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from rewards import actions, parse
from rewards.actions import PLACED, Action, Notation
from rewards.points import in_box, near
from rewards.total import total

RADIUS = 140.0  # pixels around a target that is given as a point
COMPARED = ("type", "select", "scroll")  # kinds whose truth always has a text


@total()
def accuracy(
    completion: str,
    action: str,
    place: Sequence[float] = (),
    text: str = "",
    thinking: bool = True,
    notation: Notation = "any",
) -> float:
    """0 or 1: the right kind of action (case does not count) with the right argument.

    `place` is the target's box, which a click must fall inside of, or its point, from which it must be less than 140
    pixels away; other kinds at a point must too where the truth has a place. `text` is the direction, typed words, app
    or keys, see `rewards.actions.says`. A click without point is worth 0, as is a truth that the kind cannot have.
    """
    parsed = _read(completion, thinking, notation)
    if parsed.reason or parsed.value.kind.lower() != action.lower():
        return 0.0
    given = Action(action.lower(), parsed.value.point, parsed.value.text)
    if given.kind in PLACED:
        asked = given.kind == "click" or max(place, default=-1.0) >= 0
        return _there(given.place, place) if asked else 1.0
    if given.kind in COMPARED:
        return float(actions.says(given, text))
    return float(text in ("", actions.NO_TEXT) or actions.says(given, text))


def _there(point: tuple[float, float] | None, place: Sequence[float]) -> float:
    if point is None:
        return 0.0
    if len(place) == 4:
        return in_box(point, place, borders=False)
    return near(point, place, radius=RADIUS, border=False) if len(place) == 2 else 0.0


@total()
def format(completion: str, thinking: bool = True, notation: Notation = "any") -> float:
    """0 or 1: the tags are right, and inside is one action with `action`, `point` and `input_text`.

    An action at a point has one, `type`, `select` and `open_app` have a text, `scroll` one of up, down, left, right.
    `notation` other than `any` also refuses white space around.
    """
    if notation != "any" and completion != completion.strip():
        return 0.0
    parsed = _read(completion, thinking, notation)
    if parsed.reason or parsed.value.point is None or parsed.value.text is None:
        return 0.0
    return float(actions.has_argument(parsed.value))


@total()
def overall(
    completion: str,
    action: str,
    place: Sequence[float] = (),
    text: str = "",
    thinking: bool = True,
    notation: Notation = "any",
) -> float:
    """0.8 * accuracy + 0.2 * format, in [0, 1]. `notation` is that of the accuracy; the form may be any Python's."""
    right = accuracy(completion, action, place, text, thinking, notation)
    return 0.8 * right + 0.2 * format(completion, thinking, "any" if notation == "any" else "python")


def _read(completion: str, thinking: bool, notation: Notation) -> parse.Parsed:
    return parse.answer(completion, thinking, partial(actions.read, point="point", notation=notation))
