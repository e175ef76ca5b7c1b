"""What a GUI agent does in one turn, as it writes it: text in answer tags, or a call of a typed tool."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, get_args

from pydantic import Field

from rewards import parse
from tasks.base import THINK, answer_markup
from tasks.context import MAX_ERROR, write_call
from tasks.gui_formats import format_numbers
from tasks.tools import Point, Tool, Toolbox, ToolError
from vlrl.types import Frame, Role

Key = Literal[
    "Enter", "Tab", "Escape", "Backspace", "Delete", "Space", "Home", "End", "PageUp", "PageDown",
    "ArrowUp", "ArrowDown", "ArrowLeft", "ArrowRight", "Control+A", "Control+C", "Control+V", "Control+X",
]  # fmt: skip
Direction = Literal["up", "down", "left", "right"]
KEYS, DIRECTIONS = get_args(Key), get_args(Direction)
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
TEXT_PROMPT = """Answer with the next action inside <answer> </answer>, one of ["click", x, y], ["type", "text"], \
["key", "Enter"], ["scroll", x, y, "down"], ["drag", x1, y1, x2, y2], ["wait"], ["done"]."""
CALL_PROMPT = "Act by calling one tool a turn; call done when the task is done."
CALL_THINK = "First think inside <think> </think>, then call."


@dataclass(frozen=True)
class ScreenAction:
    """One action; `points` in pixels of the screen or, as read, in the coordinates of whoever wrote it."""

    kind: str
    points: tuple[tuple[float, float], ...] = ()
    word: str = ""  # text to type, key, or direction

    def moved(self, move) -> ScreenAction:
        """The same action with every point (x, y) mapped by `move`."""
        return replace(self, points=tuple(move(x, y) for x, y in self.points))


def read_agent_action(written: str) -> parse.Parsed:
    """The text inside the answer tags -> ScreenAction in the coordinates of whoever wrote it. Never raises.

    Reasons: those of `parse.literal`; no_action, unknown_action, wrong_arguments, not_finite.
    """
    literal = parse.literal(written)
    if literal.reason:
        return literal
    value = literal.value
    if not (isinstance(value, list) and value and isinstance(value[0], str)):
        return parse.Parsed(reason="no_action")
    if value[0] not in FORMS:
        return parse.Parsed(reason="unknown_action")
    return _checked(value[0], value[1:])


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
    return parse.Parsed(ScreenAction(kind, tuple(tuple(point.value) for point in points), word))


def write_agent_action(action: ScreenAction, frame: Frame) -> str:
    """An action in pixels as a policy of that frame writes it, without tags. The inverse of `read`, up to rounding."""
    numbers = [value for point in action.points for value in _expressible(frame, point)]
    whole = format_numbers(frame, numbers)
    return json.dumps([action.kind, *whole, *([action.word] if action.word else [])], ensure_ascii=False)


def _expressible(frame: Frame, point: tuple[float, float]) -> tuple[float, float]:
    """The point as the frame can write it; where rounding would leave the screen, one step back inside."""
    point_text = frame.from_original(*point)
    pixels, sides = frame.order(frame.to_original(*point_text)), frame.order(frame.original)
    first, second = (v if at < side else v - frame.step for v, at, side in zip(point_text, pixels, sides, strict=True))
    return first, second


def in_pixels(action: ScreenAction, frame: Frame) -> ScreenAction | None:
    """A written action in pixels of the screen; None where a point lies outside of it."""
    return on_screen(action.moved(frame.to_original), frame)


def on_screen(action: ScreenAction, frame: Frame) -> ScreenAction | None:
    """The action; None where a point, in pixels, lies outside of the screen."""
    width, height = frame.original
    return action if all(0 <= x < width and 0 <= y < height for x, y in action.points) else None


# The same actions as tools: each returns what is to be done, in pixels of the screen.


def click(point: Point) -> ScreenAction:
    """Clicks.

    Args:
        point: where, [x, y]
    """
    return ScreenAction("click", (point,))


def type_text(text: Annotated[str, Field(min_length=1, max_length=MAX_TYPED)]) -> ScreenAction:
    """Types into what has the focus.

    Args:
        text: what to type, at most 200 characters
    """
    return ScreenAction("type", (), text)


def press_key(key: Key) -> ScreenAction:
    """Presses a key, or two at once.

    Args:
        key: which
    """
    return ScreenAction("key", (), key)


def scroll(point: Point, direction: Direction) -> ScreenAction:
    """Turns the wheel by 100 pixels.

    Args:
        point: over which point, [x, y]
        direction: up, down, left or right
    """
    return ScreenAction("scroll", (point,), direction)


def drag(start: Point, end: Point) -> ScreenAction:
    """Presses at one point, moves, and lets go at another.

    Args:
        start: where to press, [x, y]
        end: where to let go, [x, y]
    """
    return ScreenAction("drag", (start, end))


def wait() -> ScreenAction:
    """Waits half a second."""
    return ScreenAction("wait")


def done() -> ScreenAction:
    """Ends the episode, when the task is done."""
    return ScreenAction("done")


TOOLS = {
    "click": Tool(click), "type": Tool(type_text), "key": Tool(press_key), "scroll": Tool(scroll), "drag": Tool(drag),
    "wait": Tool(wait), "done": Tool(done),
}  # fmt: skip
TOOLBOX = Toolbox(tuple(TOOLS.values()))


# Both forms: what a completion does, and what the model is told where it does nothing.


@dataclass(frozen=True)
class ActionReading:
    """An action in pixels of the screen; or why there is none, in a word and in a sentence for the model."""

    action: ScreenAction | None
    reason: str | None = None
    error: str = ""


@dataclass(frozen=True)
class ActionForm:
    """`prompt` asks for it, `thoughts` for thoughts before it; messages with `role` answer it; `toolbox` has its tools.

    `read`: completion, thinking, the screen's frame -> ActionReading; never raises. `write` is its inverse.
    """

    prompt: str
    thoughts: str
    role: Role
    toolbox: Toolbox
    read: Callable[[str, bool, Frame], ActionReading]
    write: Callable[[ScreenAction, Frame, bool], str]


ERRORS = {
    "no_answer": "there is no <answer> </answer>", "many_answers": "there is more than one answer",
    "no_think": "there is no <think> </think>", "many_thinks": "there is more than one <think>",
    "think_not_asked": "write no thoughts", "outside_tags": "there is text outside of the tags",
    "too_long": "the answer is too long", "too_deep": "the answer is nested too deeply",
    "not_finite": "numbers must be finite", "not_literal": "the answer is not JSON",
    "no_action": 'an action is a list such as ["click", x, y]', "unknown_action": "there is no such action",
    "wrong_arguments": "the action's arguments are wrong", "outside_image": "the point is beside the screen",
}  # fmt: skip


def _read_text(completion: str, thinking: bool, frame: Frame) -> ActionReading:
    parsed = parse.answer(completion, thinking, read_agent_action)
    return _failure(parsed.reason) if parsed.reason else _placed(in_pixels(parsed.value, frame))


def _write_text(action: ScreenAction, frame: Frame, thinking: bool) -> str:
    return answer_markup(write_agent_action(action, frame), thinking)


def _read_call(completion: str, thinking: bool, frame: Frame) -> ActionReading:
    """Exactly one call, outside of the thoughts."""
    calls = parse.tool_calls(completion)
    if len(calls) != 1:
        reason = "many_calls" if calls else "no_call"
        return ActionReading(None, reason, f"Error: one call of a tool is one turn, not {len(calls)}")
    try:
        bound = TOOLBOX.bind(calls[0], (), (frame,))
    except ToolError as error:
        return ActionReading(None, calls[0].reason or "wrong_call", f"Error: {error}"[:MAX_ERROR])
    return _placed(on_screen(bound.tool.function(**bound.arguments), frame))


def _write_call(action: ScreenAction, frame: Frame, thinking: bool) -> str:
    tool = TOOLS[action.kind]
    points = [format_numbers(frame, _expressible(frame, point)) for point in action.points]
    values = [*points, *([action.word] if action.word else [])]
    arguments = dict(zip(inspect.signature(tool.function).parameters, values, strict=True))
    thought = "<think>I look at the screen.</think>\n" if thinking else ""
    return thought + write_call(tool.name, arguments)


def _failure(reason: str) -> ActionReading:
    return ActionReading(None, reason, f"Error: {ERRORS[reason]}")


def _placed(action: ScreenAction | None) -> ActionReading:
    return ActionReading(action) if action else _failure("outside_image")


ACTION_FORMS = {
    "text": ActionForm(TEXT_PROMPT, THINK, "user", Toolbox(()), _read_text, _write_text),
    "tools": ActionForm(CALL_PROMPT, CALL_THINK, "tool", TOOLBOX, _read_call, _write_call),
}
