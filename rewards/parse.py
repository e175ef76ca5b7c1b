"""The border of every reward: the one strict parser of model output, and what holds a reward to its range.

Nothing here raises on any text; a failure is a `Parsed` with a short reason. Every reader takes time linear in the
text, which is bounded first. No regular expression, no eval.
"""

from __future__ import annotations

import ast
import inspect
import json
import math
import threading
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from types import FunctionType
from typing import Any, NoReturn, ParamSpec

import numpy as np

from rewards import RANGES

MAX_CHARS = 20_000  # of a completion
MAX_LITERAL_CHARS = 2_000
MAX_LISTED_CHARS = 20_000  # of a list of objects
MAX_OBJECTS = 300
MAX_DEPTH = 8  # of brackets in a literal
MAX_DIGITS = 9  # of an integer token
MAX_CALLS = 8  # of tools in a completion
CALL, CALL_END = "<tool_call>", "</tool_call>"
LARGEST = 10**100  # integer argument of a reward: a product of two would still be a float
P = ParamSpec("P")
_WARNINGS = threading.Lock()  # Python's filters are one for all threads


@dataclass(frozen=True)
class Object:
    """A labelled box (x1, y1, x2, y2)."""

    label: str
    box: tuple[float, ...]  # four numbers


@dataclass(frozen=True)
class Parsed:
    """What was read, or why it could not be (`reason` is None when it could)."""

    value: Any = None
    reason: str | None = None


def answer(completion: str, thinking: bool, read: Callable[[str], Parsed]) -> Parsed:
    """What `read` makes of the text inside the answer tags; the first failure's reason."""
    text = answer_text(completion, thinking)
    return text if text.reason else read(text.value)


def answer_text(completion: str, thinking: bool) -> Parsed:
    """The text inside the only `<answer>` block.

    With `thinking` the completion must be `<think>...</think>`, white space, `<answer>...</answer>`; without, the
    answer block alone. White space around is ignored. Each tag occurs exactly once, so that an answer inside the
    thoughts, or several answers, are never graded.
    Reasons: too_long, no_answer, many_answers, no_think, many_thinks, think_not_asked, outside_tags.
    """
    if len(completion) > MAX_CHARS:
        return Parsed(reason="too_long")
    text = completion.strip()
    reason = _count_reason(text, thinking)
    if reason:
        return Parsed(reason=reason)
    if thinking:
        if not text.startswith("<think>"):
            return Parsed(reason="outside_tags")
        text = text.partition("</think>")[2].lstrip()
    if not (text.startswith("<answer>") and text.endswith("</answer>")):
        return Parsed(reason="outside_tags")
    return Parsed(text[len("<answer>") : -len("</answer>")])


def _count_reason(text: str, thinking: bool) -> str | None:
    answers = (text.count("<answer>"), text.count("</answer>"))
    thinks = (text.count("<think>"), text.count("</think>"))
    if min(answers) == 0:
        return "no_answer"
    if max(answers) > 1:
        return "many_answers"
    if not thinking:
        return "think_not_asked" if max(thinks) else None
    if min(thinks) == 0:
        return "no_think"
    return "many_thinks" if max(thinks) > 1 else None


def tool_calls(completion: str) -> tuple[Parsed, ...]:
    """Every call of a tool in Hermes' form, in order, as (name, arguments); () where a completion has none.

    The form is `<tool_call>{"name": "...", "arguments": {...}}</tool_call>`, JSON with these two keys. Calls inside the
    thoughts, up to the last `</think>`, are none.
    Reasons: too_long, too_deep, not_finite, not_json, not_a_call, unclosed_call, unopened_call, too_many_calls (one
    for them all).
    """
    if len(completion) > MAX_CHARS:
        return (Parsed(reason="too_long"),) if CALL in completion else ()
    _, closed, text = completion.rpartition("</think>")
    if not closed and "<think>" in text:
        return ()
    pieces = text.split(CALL)
    if len(pieces) - 1 > MAX_CALLS:
        return (Parsed(reason="too_many_calls"),)
    unopened = (Parsed(reason="unopened_call"),) if CALL_END in pieces[0] else ()
    return unopened + tuple(map(_tool_call, pieces[1:]))


def _tool_call(piece: str) -> Parsed:
    body, closed, rest = piece.partition(CALL_END)
    if not closed or CALL_END in rest:
        return Parsed(reason="unopened_call" if closed else "unclosed_call")
    if reason := _excess(body, MAX_CHARS):
        return Parsed(reason=reason)
    try:
        call = json.loads(body, parse_constant=_refuse)
    except _NotFiniteError:
        return Parsed(reason="not_finite")
    except (ValueError, RecursionError):
        return Parsed(reason="not_json")
    if not isinstance(call, dict) or call.keys() != {"name", "arguments"}:
        return Parsed(reason="not_a_call")
    if not isinstance(call["name"], str) or not isinstance(call["arguments"], dict):
        return Parsed(reason="not_a_call")
    return Parsed((call["name"], call["arguments"]))


def literal(text: str, most: int = MAX_LITERAL_CHARS) -> Parsed:
    """A JSON value, else a Python literal (single quotes, tuples, trailing commas), of at most `most` characters.

    A ``` fence is removed. Reasons: too_long, too_deep, not_finite (NaN, Infinity), not_literal.
    """
    text = _without_fence(text.strip())
    reason = _excess(text, most)
    if reason:
        return Parsed(reason=reason)
    try:
        return Parsed(json.loads(text, parse_constant=_refuse))
    except _NotFiniteError:
        return Parsed(reason="not_finite")
    except (ValueError, RecursionError):
        return python_literal(text, most)


def python_literal(text: str, most: int = MAX_LITERAL_CHARS) -> Parsed:
    """A Python literal and nothing else: no JSON words such as `null`, no fence.

    Reasons: too_long, too_deep, not_literal.
    """
    reason = _excess(text, most)
    if reason:
        return Parsed(reason=reason)
    try:
        with _WARNINGS, warnings.catch_warnings():  # such as an invalid escape in a model's string
            warnings.simplefilter("ignore")
            return Parsed(ast.literal_eval(text))
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):  # TypeError: unhashable dict key
        return Parsed(reason="not_literal")


def _excess(text: str, most: int) -> str | None:
    if len(text) > most:
        return "too_long"
    return "too_deep" if _depth(text) > MAX_DEPTH else None


class _NotFiniteError(Exception):
    """NaN or Infinity in JSON, which Python's reader would take."""


def _refuse(name: str) -> NoReturn:
    raise _NotFiniteError(name)


def _without_fence(text: str) -> str:
    if not (text.startswith("```") and text.endswith("```") and len(text) >= 6):
        return text
    return text[3:-3].removeprefix("json").strip()


def _depth(text: str) -> int:
    """The deepest nesting of brackets; those inside strings count too, which only makes it stricter."""
    depth = deepest = 0
    for char in text:
        if char in "([{":
            depth += 1
            deepest = max(deepest, depth)
        elif char in ")]}":
            depth -= 1
    return deepest


def point(value: Any) -> Parsed:
    """Two finite numbers in a list -> (x, y). Reasons: not_a_point, not_finite."""
    return _numbers(value, 2, "not_a_point")


def box(value: Any) -> Parsed:
    """Four finite numbers in a list with x1 < x2, y1 < y2 -> (x1, y1, x2, y2).

    Reasons: not_a_box, not_finite, empty_box.
    """
    parsed = _numbers(value, 4, "not_a_box")
    if parsed.reason:
        return parsed
    x1, y1, x2, y2 = parsed.value
    return parsed if x1 < x2 and y1 < y2 else Parsed(reason="empty_box")


def interval(value: Any) -> Parsed:
    """Two finite numbers in a list with 0 <= start < end -> (start, end), seconds. `rewards.intervals` reads texts.

    Reasons: not_an_interval, not_finite, empty_interval.
    """
    parsed = _numbers(value, 2, "not_an_interval")
    if parsed.reason:
        return parsed
    start, end = parsed.value
    return parsed if 0 <= start < end else Parsed(reason="empty_interval" if end <= start else "not_an_interval")


def objects(text: str, label: str | None = None) -> Parsed:
    """A list of `{"bbox_2d": [x1, y1, x2, y2], "label": "..."}` -> tuple of Object; `[]` and the word None are empty.

    Where only one `label` is asked for, an object may be its four numbers alone, or lack its label.
    Reasons: those of `literal` and `box`; not_a_list, too_many_objects, not_an_object, no_label.
    """
    if text.strip().lower() == "none":
        return Parsed(())
    read = literal(text, MAX_LISTED_CHARS)
    if read.reason:
        return read
    if not isinstance(read.value, list):
        return Parsed(reason="not_a_list")
    if len(read.value) > MAX_OBJECTS:
        return Parsed(reason="too_many_objects")
    items = [_object(item, label) for item in read.value]
    reason = next((each.reason for each in items if each.reason), None)
    return Parsed(reason=reason) if reason else Parsed(tuple(each.value for each in items))


def _object(item: Any, label: str | None) -> Parsed:
    if label is not None and isinstance(item, list):
        item = {"bbox_2d": item}
    if not isinstance(item, dict) or "bbox_2d" not in item:
        return Parsed(reason="not_an_object")
    name = item.get("label", label)
    if not isinstance(name, str):
        return Parsed(reason="no_label")
    corners = box(item["bbox_2d"])
    return corners if corners.reason else Parsed(Object(name, corners.value))


def _numbers(value: Any, count: int, reason: str) -> Parsed:
    if not isinstance(value, list | tuple) or len(value) != count:
        return Parsed(reason=reason)
    if not all(isinstance(number, int | float) and not isinstance(number, bool) for number in value):
        return Parsed(reason=reason)
    try:
        numbers = tuple(float(number) for number in value)
    except OverflowError:  # an integer too large for a float
        return Parsed(reason="not_finite")
    return Parsed(numbers) if all(map(math.isfinite, numbers)) else Parsed(reason="not_finite")


def integers(text: str, low: int, high: int) -> Parsed:
    """All tokens of the text as a tuple of integers in low..high, as Jigsaw-R1 reads a grid of indices.

    Comma, semicolon, backtick and newline count as spaces; ASCII digits only.
    Reasons: too_long, no_integers, not_an_integer, out_of_range.
    """
    if len(text) > MAX_LITERAL_CHARS:
        return Parsed(reason="too_long")
    tokens = [token for token in text.translate(_SEPARATORS).split(" ") if token]
    if not tokens:
        return Parsed(reason="no_integers")
    if not all(token.isascii() and token.isdigit() and len(token) <= MAX_DIGITS for token in tokens):
        return Parsed(reason="not_an_integer")
    numbers = tuple(int(token) for token in tokens)
    return Parsed(numbers) if all(low <= number <= high for number in numbers) else Parsed(reason="out_of_range")


def count(text: str) -> Parsed:
    """A number of things: one integer from 0 on, ASCII digits only, nothing else. Reason: not_an_integer."""
    digits = text.strip()
    whole = digits.isascii() and digits.isdigit() and len(digits) <= MAX_DIGITS
    return Parsed(int(digits)) if whole else Parsed(reason="not_an_integer")


def nonempty(text: str) -> Parsed:
    """The text without white space around it. Reason: empty_answer."""
    return Parsed(text.strip()) if text.strip() else Parsed(reason="empty_answer")


_SEPARATORS = str.maketrans(dict.fromkeys(",;`\n", " "))


def letter(text: str, choices: int) -> Parsed:
    """Exactly one of the first `choices` capital letters, nothing else. Reason: not_a_letter."""
    text = text.strip()
    is_choice = len(text) == 1 and "A" <= text < chr(ord("A") + choices)
    return Parsed(text) if is_choice else Parsed(reason="not_a_letter")


# An argument of another kind than declared earns the lowest value, nothing raises.


def _is_number(value: Any) -> bool:
    if isinstance(value, float | np.floating):
        return math.isfinite(value)
    return _is_integer(value)


def _is_integer(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and -LARGEST <= value <= LARGEST


def _all_of(is_one: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list | tuple | np.ndarray) and all(map(is_one, value))


def _is_object(value: Any) -> bool:
    labelled = isinstance(value, Object) and isinstance(value.label, str)
    return labelled and len(value.box) == 4 and _are_numbers(value.box)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


_are_numbers = _all_of(_is_number)
# annotation -> whether a value is of its kind; what is not listed (options, arrays) is checked by the reward itself
KINDS: Mapping[str, Callable[[Any], bool]] = {
    "str": _is_text,
    "int": _is_integer,
    "float": _is_number,
    "Sequence[str]": _all_of(_is_text),
    "Sequence[int]": lambda value: _is_text(value) or _all_of(_is_integer)(value),  # one letter is an answer as well
    "Sequence[float]": _are_numbers,
    "Sequence[Sequence[float]]": _all_of(_are_numbers),
    "Sequence[Object]": _all_of(_is_object),
}


def total(**lengths: int) -> Callable[[Callable[P, float]], Callable[P, float]]:
    """Makes a reward total: in its declared range for any arguments, at the lowest where one is of another kind.

    Args:
        lengths: parameter -> how many numbers it has.
    """

    def decorate(reward: Callable[P, float]) -> Callable[P, float]:
        signature = inspect.signature(reward)
        names = tuple(signature.parameters)
        checks = [(n, KINDS[str(p.annotation)]) for n, p in signature.parameters.items() if p.annotation in KINDS]
        assert isinstance(reward, FunctionType)
        lowest, highest = RANGES[f"{reward.__module__.rpartition('.')[2]}.{reward.__name__}"]

        @wraps(reward)
        def checked(*args: P.args, **kwargs: P.kwargs) -> float:
            arguments = dict(zip(names, args, strict=False)) | kwargs
            fits = all(name not in arguments or check(arguments[name]) for name, check in checks)
            if not fits or any(name in arguments and len(arguments[name]) != n for name, n in lengths.items()):
                return float(lowest)
            value = reward(*args, **kwargs)
            return value if lowest <= value <= highest else float(lowest)

        return checked

    return decorate
