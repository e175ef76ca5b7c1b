"""One GUI action as a model writes it: a list that holds a single object with a kind, perhaps a point and a text."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

from rewards import parse, text

# How strictly an action is read.
#   any: JSON or a Python literal, ints or floats, perhaps in a ``` fence
#   python: a Python literal with whole numbers
#   quoted: also single quotes, no space inside a point's brackets but after the comma, first of all pairs, as in UI-R1
#   line: also on one line, last of all pairs, as in UI-R1-E and GUI-R1
Notation = Literal["any", "python", "quoted", "line"]
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
    def place(self) -> tuple[float, float] | None:
        """Where to act. No place has a negative coordinate: GUI-R1 writes [-100, -100] for none."""
        return self.point if self.point and min(self.point) >= 0 else None

    @property
    def words(self) -> str:
        """The text given, '' for none."""
        return "" if self.text is None or self.text == NO_TEXT else self.text


def read(written: str, point: str = "point", notation: Notation = "any") -> parse.Parsed:
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


def _fits(action: Action, written: str, notation: Notation) -> bool:
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
    found = points[0 if notation == "quoted" else -1] if points else None  # the one that the papers' patterns take
    return (
        action.place in (None, found)
        and _KIND.findall(written) == [action.kind]
        and _TEXT.findall(written) == ([] if action.text is None else [action.text])
    )


def has_argument(action: Action) -> bool:
    """Whether the action says what its kind needs: a place, a direction, a text."""
    if action.kind in PLACED:
        return action.place is not None
    if action.kind == "scroll":
        return action.words in text.DIRECTIONS
    return bool(action.words.strip()) if action.kind in TYPED else True


def says(action: Action, truth: str) -> bool:
    """Whether the action's text is the right one: the same direction, at least half of a typed text's words (F1), or
    else the same text. Brackets and case do not count."""
    given, right = unbracketed(action.words), unbracketed(truth)
    if action.kind == "scroll":
        return bool(text.direction(given, right))
    if action.kind in TYPED:
        return text.token_f1(given, right) >= 0.5
    return given.lower().split() == right.lower().split()


def unbracketed(words: str) -> str:
    return words.replace("[", "").replace("]", "")
