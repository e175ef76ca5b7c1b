"""What a GUI agent does in one turn, as it writes it: text in answer tags, or a call of a typed tool.

At the end: the screens that it acts on, in workers. A screen is made where it is to run, and asked over
`vlrl.placement`.
"""

from __future__ import annotations

import inspect
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any, ClassVar, Literal, get_args

from PIL import Image
from pydantic import Field

from rewards import parse
from tasks.base import THINK, answer_markup
from tasks.context import MAX_ERROR, write_call
from tasks.gui_formats import format_numbers
from tasks.rendering.screens import BUTTON, COLUMNS, SIDE, ColorForm, FormOption, draw_form, list_forms, make_form
from tasks.tools import Point, Tool, Toolbox, ToolError
from tasks.web.browser import driver_message
from vlrl.placement.workers import Arrays, Packed, Worker, WorkerPool, WorkerService, pack_images, unpack_images
from vlrl.types import Frame, Role, Split

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


# Screens in workers.


@dataclass(frozen=True)
class Status:
    """Where an episode is: `reward` is the page's own, without its bonus for speed, and counts when `done`."""

    done: bool
    reward: float
    goal: str


class AgentScreen(ABC):
    """One screen, which plays one episode after the other. Made without arguments.

    It may raise whatever it likes where it has died: its worker is then buried.
    """

    NAME: ClassVar[str]  # what it is, in messages
    PAGE: ClassVar[str]  # what an episode is played on, in messages
    SOLVED: ClassVar[tuple[str, ...]]  # pages with a scripted solution
    SERVICE: ClassVar[str]  # its `ScreenService`, as `module:class`

    @staticmethod
    @abstractmethod
    def list_pages() -> tuple[str, ...]:
        """The names of all pages."""

    @staticmethod
    def describe(page: str, seed: str, split: Split) -> str:
        """What is known of an episode before it is begun: its instruction, or the page alone."""
        return f"The page {page}."

    @property
    @abstractmethod
    def pages(self) -> Collection[str]:
        """Those that need not be loaded."""

    @abstractmethod
    def begin(self, page: str, seed: str, split: Split) -> None:
        """Starts the page's episode of that seed."""

    @abstractmethod
    def status(self) -> Status:
        """Where the episode is."""

    @abstractmethod
    def look(self) -> Image.Image:
        """The screen, RGB."""

    @abstractmethod
    def act(self, action: ScreenAction) -> None:
        """What a hand would do; points in pixels of the screen. `done` does nothing."""

    @abstractmethod
    def gold(self) -> ScreenAction | None:
        """The next right action; None where no solution is known."""

    @abstractmethod
    def quit(self) -> None:
        """Ends it and all that it started."""


class ScreenService(WorkerService):
    """A worker's screen, of the kind that `make_screen` makes."""

    make_screen: Callable[[], AgentScreen]

    def __init__(self) -> None:
        self._screen: AgentScreen | None = None

    @property
    def screen(self) -> AgentScreen:
        if self._screen is None:
            raise RuntimeError("a screen is asked for `make` first")
        return self._screen

    def answers(self) -> Mapping[str, Callable[[Mapping, Arrays], Packed]]:
        methods = (self.make, self.begin, self.status, self.look, self.act, self.gold)
        return {method.__name__: method for method in methods}

    def describe_error(self, error: Exception) -> str:
        return driver_message(error)

    def make(self, fields: Mapping, arrays: Arrays) -> Packed:
        self._screen = type(self).make_screen()
        return {}, {}

    def begin(self, fields: Mapping, arrays: Arrays) -> Packed:
        self.screen.begin(fields["page"], fields["seed"], fields["split"])
        return {"pages": list(self.screen.pages)}, {}

    def status(self, fields: Mapping, arrays: Arrays) -> Packed:
        return asdict(self.screen.status()), {}

    def look(self, fields: Mapping, arrays: Arrays) -> Packed:
        return {}, pack_images([self.screen.look()])

    def act(self, fields: Mapping, arrays: Arrays) -> Packed:
        self.screen.act(_action(fields["action"]))
        return {}, {}

    def gold(self, fields: Mapping, arrays: Arrays) -> Packed:
        action = self.screen.gold()
        return {"action": action and asdict(action)}, {}

    def close(self) -> None:
        if self._screen is not None:
            self._screen.quit()


def _action(fields: Mapping) -> ScreenAction:
    return ScreenAction(fields["kind"], tuple((x, y) for x, y in fields["points"]), fields["word"])


class ScreenWorker:
    """What an `AgentScreen` does, in a worker. Raises WorkerError when that, or its screen, has died."""

    def __init__(self, worker: Worker):
        self.worker = worker

    def begin(self, page: str, seed: str, split: Split) -> None:
        fields, _ = self.worker.ask("begin", {"page": page, "seed": seed, "split": split})
        self.worker.keeps = fields["pages"]

    def status(self) -> Status:
        return Status(**self.worker.ask("status", {})[0])

    def look(self) -> Image.Image:
        return unpack_images(self.worker.ask("look", {})[1])[0]

    def act(self, action: ScreenAction) -> None:
        self.worker.ask("act", {"action": asdict(action)})

    def gold(self) -> ScreenAction | None:
        action = self.worker.ask("gold", {})[0]["action"]
        return action and _action(action)


def screen_pool(screen: type[AgentScreen], size: int) -> WorkerPool:
    """At most so many screens, each in a worker; a worker keeps the pages that its screen has loaded."""
    return WorkerPool(screen.SERVICE, {}, kind="browser", size=size, name=f"{screen.NAME}s")


# A screen that is drawn: it needs no browser.


class DrawnForms(AgentScreen):
    """One form after the other. A click on an option chooses it, a click on the button ends the episode."""

    NAME, PAGE, SOLVED = "drawn screen", "a drawn page", list_forms()
    SERVICE = f"{__name__}:FormService"
    list_pages = staticmethod(list_forms)

    def __init__(self):
        self._form, self._chosen, self._is_over = ColorForm((), ()), [], False

    @staticmethod
    def describe(page: str, seed: str, split: Split) -> str:
        """The instruction."""
        return make_form(page, seed, split).instruction

    @property
    def pages(self) -> Collection[str]:
        return self.SOLVED

    def begin(self, page: str, seed: str, split: Split) -> None:
        self._form = make_form(page, seed, split)
        self._chosen, self._is_over = [None] * len(self._form.colors), False

    def status(self) -> Status:
        is_right = self._is_over and self._form.is_fulfilled(self._chosen)
        return Status(self._is_over, float(is_right), self._form.instruction)

    def look(self) -> Image.Image:
        """The screen, RGB, FORM_SIZE pixels."""
        return draw_form(self._form, self._chosen)

    def act(self, action: ScreenAction) -> None:
        if action.kind != "click" or self._is_over:
            return
        x, y = action.points[0]
        self._is_over = BUTTON[0] <= x <= BUTTON[2] and BUTTON[1] <= y <= BUTTON[3]
        for row in range(len(self._form.colors)):
            for column in range(COLUMNS):
                middle = FormOption(row, column).center
                if max(abs(x - middle[0]), abs(y - middle[1])) <= SIDE / 2:
                    self._chosen[row] = column

    def gold(self) -> ScreenAction:
        """The first row's option that is not as it should be, then the button."""
        for row, (want, have) in enumerate(zip(self._form.target, self._chosen, strict=True)):
            if want is not None and want != have:
                return ScreenAction("click", (FormOption(row, want).center,))
        return ScreenAction("click", (((BUTTON[0] + BUTTON[2]) / 2, (BUTTON[1] + BUTTON[3]) / 2),))

    def quit(self) -> None:
        """Nothing was started."""


class FormService(ScreenService):
    """A worker's forms."""

    make_screen = DrawnForms
