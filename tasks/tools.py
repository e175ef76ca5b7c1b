"""Tools that a model calls: typed Python functions, their schemas, strict checks of calls, limits on what they do.

A tool is a function with type hints and a docstring in Google's style; what it returns is what the model sees next:

    def zoom(image: Image, box: Box) -> Image:
        \"\"\"Enlarges a part of an image.

        Args:
            image: the image
            box: the part, [x1, y1, x2, y2]
        \"\"\"

The model names an image by its number, from 1 in the order shown, and writes a `Box` or a `Point` in its own
coordinates of that image (of the latest one, where a tool takes none); the function gets the image and pixels.
"""

from __future__ import annotations

import importlib
import inspect
import json
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from threading import Thread
from types import UnionType
from typing import Annotated, Any

from PIL.Image import Image
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from rewards.parse import Parsed
from vlrl import plugins
from vlrl.io import OverdueError, deadline
from vlrl.types import Frame, UserError, one_line, plain, suggest

Point = Annotated[tuple[float, float], "point"]
Box = Annotated[tuple[float, float, float, float], "box"]
SECONDS = 10.0  # that a call may take
GRACE = 1.0  # more seconds, for a tool that is told to end
MAX_BYTES = 100_000_000  # of what a call returns: text as it is, images as RGB
SHIPPED = "tasks.image_tools"  # the module of the tools with a short name
MALFORMED = {
    "too_long": "the call is too long",
    "too_deep": "the call is nested too deeply",
    "not_finite": "numbers must be finite",
    "not_json": "the call is not valid JSON",
    "not_a_call": 'a call is {"name": "...", "arguments": {...}}',
    "unclosed_call": "</tool_call> is missing",
    "unopened_call": "<tool_call> is missing",
    "too_many_calls": "too many calls at once",
}  # reason of `rewards.parse.tool_calls` -> what the model is told


class ToolError(Exception):
    """A tool refuses: the model sees the message and may go on."""


class ToolFaultError(Exception):
    """A tool failed, which is no fault of the model's: the episode is void."""


Content = tuple[str | Image, ...]


@dataclass(frozen=True)
class BoundCall:
    """A call that fits its tool: `arguments` as the function takes them, images and pixels for what the model wrote."""

    tool: Tool
    arguments: Mapping[str, Any]

    def run(self, seconds: float = SECONDS) -> Content:
        """What the tool returns, for the model to see.

        Raises:
            ToolError: the tool refuses.
            ToolFaultError: it raised something else, took longer than `seconds`, or returned nothing that can be shown.
        """
        return _format_result(self.tool.name, _within(seconds, self.tool, self.arguments))


class Tool:
    """A function that a model may call, by the function's own name.

    Raises:
        UserError: a parameter without a type hint, or of a type that JSON has not; no docstring.
    """

    def __init__(self, function: Callable[..., Any]):
        self.function, self.name = function, getattr(function, "__name__", "tool")
        try:
            hints = typing.get_type_hints(function, include_extras=True)
            parameters = inspect.signature(function).parameters.values()
            kinds = {each.name: hints[each.name] for each in parameters}
            self._images = [name for name, kind in kinds.items() if kind is Image]
            self._places = {name: place for name, kind in kinds.items() if (place := _coordinate_kind(kind))}
            fields: dict[str, Any] = {each.name: _field(kinds[each.name], each.default) for each in parameters}
            self._model: type[BaseModel] = create_model(
                self.name, __config__=ConfigDict(extra="forbid", strict=True, allow_inf_nan=False), **fields
            )
        except KeyError as error:
            raise UserError(f"tool {self.name!r}: its parameter {error.args[0]} has no type hint") from None
        except Exception as error:  # whatever hints may hold
            raise UserError(f"tool {self.name!r}: {one_line(error)}") from None
        if not inspect.getdoc(function):
            raise UserError(f"tool {self.name!r}: has no docstring, which tells the model what it does")

    def __reduce__(self):  # its model is made here and has no place to be imported from
        return Tool, (self.function,)

    @cached_property
    def schema(self) -> Mapping[str, Any]:
        """What a chat template takes: `{"type": "function", "function": {name, description, parameters}}`."""
        from transformers.utils import get_json_schema

        try:
            schema = get_json_schema(self.function)
        except Exception as error:  # transformers has no common class for them
            raise UserError(f"tool {self.name!r}: {one_line(error)}") from None
        schema["function"].pop("return", None)  # models are not trained with it
        parameters = schema["function"]["parameters"]
        for name in self._images:
            parameters["properties"][name]["type"] = "integer"
            parameters["properties"][name]["description"] += " (its number, from 1; 1 if left out)"
            parameters["required"].remove(name)
        return schema

    def bind(self, arguments: Mapping[str, Any], images: Sequence[Image], frames: Sequence[Frame]) -> BoundCall:
        """The call with these arguments; `frames` are those of `images`, the ones shown so far.

        Raises:
            ToolError: the arguments do not fit, or there is no such image.
        """
        try:
            model = self._model.model_validate_json(json.dumps(dict(arguments)))
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(map(str, ("arguments", *first["loc"])))
            raise ToolError(f"{where}: {first['msg']}") from None
        values = dict(model)
        count = min(len(images), len(frames))
        numbers = {name: values[name] for name in self._images}
        for name, number in numbers.items():
            if not 1 <= number <= count:
                raise ToolError(f"arguments.{name}: there is no image {number}, but {count}")
            values[name] = images[number - 1]
        place = next(iter(numbers.values()), len(frames))
        for name, kind in self._places.items():
            if values[name] is not None:
                if not frames:
                    raise ToolError(f"arguments.{name}: there is no image to point at")
                values[name] = _in_pixels(values[name], frames[place - 1], f"arguments.{name}", kind)
        return BoundCall(self, values)


class Toolbox:
    """The tools of a task, by name."""

    def __init__(self, tools: Sequence[Tool]):
        self.tools = {tool.name: tool for tool in tools}
        if len(self.tools) < len(tools):
            raise UserError("task.tools: two tools have one name")

    @cached_property
    def schemas(self) -> tuple[Mapping[str, Any], ...]:
        return tuple(tool.schema for tool in self.tools.values())

    def bind(self, call: Parsed, images: Sequence[Image], frames: Sequence[Frame]) -> BoundCall:
        """A call as `rewards.parse.tool_calls` read it.

        Raises:
            ToolError: it could not be read, there is no such tool, or the arguments do not fit.
        """
        if call.reason:
            raise ToolError(MALFORMED[call.reason])
        name, arguments = call.value
        if name not in self.tools:
            raise ToolError(f"there is no tool {name[:40]!r}{suggest(name[:40], list(self.tools))}")
        return self.tools[name].bind(arguments, images, frames)


def load_tools(names: Sequence[str], path: str = "task.tools") -> Toolbox:
    """The tools of these names: of `tasks/image_tools.py`, or `my_module:function`.

    Raises:
        UserError: there is none of that name; it is no tool; the package that it needs is not installed.
    """
    tools = []
    for i, name in enumerate(names):
        place = f"{path}.{i}"
        if ":" in name:
            tools.append(Tool(plugins.load_plugin("tool", name, place)))
            continue
        shipped = importlib.import_module(SHIPPED)
        if name not in shipped.TOOLS:
            raise UserError(f"{place}: unknown tool {name!r}{suggest(name, list(shipped.TOOLS))}")
        shipped.prepare(name)
        tools.append(Tool(shipped.TOOLS[name]))
    return Toolbox(tools)


def _field(kind: Any, default: Any) -> tuple[Any, Any]:
    """A parameter as pydantic takes it; an image is its number."""
    if kind is Image:
        return int, Field(default=1, ge=1)
    return kind, ... if default is inspect.Parameter.empty else default


def _coordinate_kind(kind: Any) -> str | None:
    """Whether a parameter is a `point` or a `box`, perhaps one that may be left out."""
    kinds = typing.get_args(kind) if isinstance(kind, UnionType) or typing.get_origin(kind) is typing.Union else (kind,)
    marks = [mark for each in kinds if typing.get_origin(each) is Annotated for mark in each.__metadata__]
    return next((mark for mark in marks if mark in ("point", "box")), None)


def _in_pixels(numbers: tuple[float, ...], frame: Frame, where: str, kind: str) -> tuple[float, ...]:
    """Coordinates of a frame -> pixels of its image, clipped to it.

    Raises:
        ToolError: a point beside the image; a box that is empty or beside it.
    """
    (width, height), pairs = frame.original, [numbers[i : i + 2] for i in range(0, len(numbers), 2)]
    try:
        corners = [frame.to_original(*pair) for pair in pairs]
    except OverflowError:
        raise ToolError(f"{where}: beside the image") from None
    if kind == "point":
        x, y = corners[0]
        if not (0 <= x <= width and 0 <= y <= height):
            raise ToolError(f"{where}: beside the image")
        return x, y
    (x1, y1), (x2, y2) = corners
    if not (x1 < x2 and y1 < y2):
        raise ToolError(f"{where}: must be [x1, y1, x2, y2] with x1 < x2 and y1 < y2")
    x1, y1, x2, y2 = max(0.0, x1), max(0.0, y1), min(float(width), x2), min(float(height), y2)
    if not (x1 < x2 and y1 < y2):
        raise ToolError(f"{where}: beside the image")
    return x1, y1, x2, y2


def _within(seconds: float, tool: Tool, arguments: Mapping[str, Any]) -> Any:
    """What the function returns, in a thread of its own: one that cannot be interrupted is left behind."""
    outcome: list[tuple[Any, BaseException | None]] = []

    def work() -> None:
        try:
            with deadline(seconds):
                outcome.append((tool.function(**arguments), None))
        except BaseException as error:
            outcome.append((None, error))

    thread = Thread(target=work, name=f"tool {tool.name}", daemon=True)
    thread.start()
    thread.join(seconds + GRACE)
    result, error = outcome[0] if outcome else (None, OverdueError())
    if error is None:
        return result
    if isinstance(error, ToolError | UserError):
        raise error
    took = f"took longer than {seconds:g} s" if isinstance(error, OverdueError) else one_line(error)
    raise ToolFaultError(f"tool {tool.name}: {took}") from error


def _format_result(name: str, result: Any) -> Content:
    """A result as parts of a message: texts and RGB images as they are, everything else as JSON."""
    parts = result if isinstance(result, tuple | list) and any(isinstance(e, Image) for e in result) else (result,)
    content: list[str | Image] = []
    size = 0
    for part in parts:
        if isinstance(part, Image):
            size += 3 * part.width * part.height
            if not size:
                raise ToolFaultError(f"tool {name}: returned an empty image")
        elif not isinstance(part, str):
            try:
                part = "Done." if part is None else json.dumps(plain(part), ensure_ascii=False)
            except (TypeError, ValueError, RecursionError) as error:
                raise ToolFaultError(f"tool {name}: returned what cannot be shown: {one_line(error)}") from error
        size += len(part) if isinstance(part, str) else 0
        if size > MAX_BYTES:
            raise ToolFaultError(f"tool {name}: returned more than {MAX_BYTES // 1_000_000} MB")
        content.append(part.convert("RGB") if isinstance(part, Image) else part)
    return tuple(content)
