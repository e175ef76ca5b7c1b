"""What a GUI agent does in one turn, as it writes it: `["click", x, y]`, `["type", "text"]`, `["key", "Enter"]`,
`["scroll", x, y, "down"]`, `["drag", x, y, x, y]`, `["wait"]`, `["done"]`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from rewards import parse
from vlrl.types import Frame

KEYS = (
    *("Enter", "Tab", "Escape", "Backspace", "Delete", "Space", "Home", "End", "PageUp", "PageDown"),
    *("ArrowUp", "ArrowDown", "ArrowLeft", "ArrowRight", "Control+A", "Control+C", "Control+V", "Control+X"),
)
DIRECTIONS = ("up", "down", "left", "right")
MAX_TYPED = 200  # characters of one action
# kind -> what follows it: points (two numbers each), then a word from a list, a text (None) or nothing
FORMS: Mapping[str, tuple[int, tuple[str, ...] | None]] = {
    "click": (1, ()),
    "type": (0, None),
    "key": (0, KEYS),
    "scroll": (1, DIRECTIONS),
    "drag": (2, ()),
    "wait": (0, ()),
    "done": (0, ()),
}
ASKED = """Answer with the next action inside <answer> </answer>, one of ["click", x, y], ["type", "text"], \
["key", "Enter"], ["scroll", x, y, "down"], ["drag", x1, y1, x2, y2], ["wait"], ["done"]."""


@dataclass(frozen=True)
class Action:
    """One action; `points` in pixels of the screen or, as read, in the coordinates of whoever wrote it."""

    kind: str
    points: tuple[tuple[float, float], ...] = ()
    word: str = ""  # text to type, key, or direction

    def moved(self, move) -> Action:
        """The same action with every point (x, y) mapped by `move`."""
        return replace(self, points=tuple(move(x, y) for x, y in self.points))


def read(written: str) -> parse.Parsed:
    """The text inside the answer tags -> Action. Never raises.

    Reasons: those of `parse.literal`; no_action, unknown_action, wrong_arguments, not_finite.
    """
    literal = parse.literal(written)
    if literal.reason:
        return literal
    given = literal.value
    if not (isinstance(given, list) and given and isinstance(given[0], str)):
        return parse.Parsed(reason="no_action")
    if given[0] not in FORMS:
        return parse.Parsed(reason="unknown_action")
    return _checked(given[0], given[1:])


def _checked(kind: str, arguments: list[Any]) -> parse.Parsed:
    count, words = FORMS[kind]
    numbers, rest = arguments[: 2 * count], arguments[2 * count :]
    points = [parse.point(numbers[i : i + 2]) for i in range(0, 2 * count, 2)]
    bad = next((point.reason for point in points if point.reason), None)
    if bad or len(rest) != (words != ()):
        return parse.Parsed(reason=bad if bad == "not_finite" else "wrong_arguments")
    word = rest[0] if rest else ""
    if (
        not isinstance(word, str)
        or len(word) > MAX_TYPED
        or (words and word not in words)
        or (words is None and not word)
    ):
        return parse.Parsed(reason="wrong_arguments")
    return parse.Parsed(Action(kind, tuple(tuple(point.value) for point in points), word))


def write(action: Action, frame: Frame) -> str:
    """An action in pixels as a policy of that frame writes it, without tags. The inverse of `read`, up to rounding."""
    numbers = [value for point in action.points for value in _expressible(frame, point)]
    whole = numbers if frame.space == "rel1" else [int(value) for value in numbers]
    return json.dumps([action.kind, *whole, *([action.word] if action.word else [])], ensure_ascii=False)


def _expressible(frame: Frame, point: tuple[float, float]) -> tuple[float, float]:
    """The point as the frame can write it; where rounding would leave the screen, one step back inside."""
    written, step = frame.from_original(*point), 1e-4 if frame.space == "rel1" else 1.0
    pixels = frame.to_original(*written)
    x, y = (v if at < side else v - step for v, at, side in zip(written, pixels, frame.original, strict=True))
    return x, y


def in_pixels(action: Action, frame: Frame) -> Action | None:
    """A written action in pixels of the screen; None where a point lies outside of it."""
    moved = action.moved(frame.to_original)
    width, height = frame.original
    return moved if all(0 <= x < width and 0 <= y < height for x, y in moved.points) else None
