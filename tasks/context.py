"""Episodes as conversations with tools, and what of a long one a policy is shown: all, the newest images, or a summary.

Where a strategy changes what was shown before, the conversation begins anew in mid-episode (`Observation.restart`):
the policy gets the whole prompt again, and what it writes from there on is a training sequence of its own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from PIL.Image import Image
from pydantic import Field

from rewards import parse
from tasks.base import check
from tasks.tools import SECONDS, BoundCall, Toolbox, ToolError, ToolFaultError
from vlrl.types import Environment, Episode, Frame, Message, Observation, Step, Video

if TYPE_CHECKING:
    import numpy as np

# Episodes as conversations: the policy writes, tools answer, until it gives its answer.

MAX_ERROR = 300  # characters of a refusal, which may repeat what the model wrote


class ToolEnvironment(Environment):
    """Shows the messages; runs the calls that the policy writes and shows what they return, one `tool` message each.

    What has no call is the answer and ends the episode. A call that cannot be read or carried out is answered with
    `Error: ...`. After `turns` turns without an answer the episode is truncated. A tool that fails, takes longer than
    `seconds` or returns too much makes it void (`Step.fault`).
    `frames` are those of all images and videos of the conversation so far. `script`: the right thing to write, by turn.
    `Step.info`: `tool_calls` and `malformed_calls` of the turn.
    """

    def __init__(
        self,
        prompt: Observation,
        toolbox: Toolbox,
        turns: int,
        seconds: float = SECONDS,
        script: Sequence[Callable[[Sequence[Frame]], str]] = (),
    ):
        self._shown, self._toolbox, self._turns, self._seconds, self._script = prompt, toolbox, turns, seconds, script
        self._media: list[Image | Video] = []
        self._turn: int | None = None

    def reset(self) -> Observation:
        if self._turn is not None:
            raise RuntimeError("an environment is made for one episode: make a new one")
        self._turn, self._is_open = 0, True
        self._see(self._shown)
        return self._shown

    def step(self, action: str | np.ndarray, frames: Sequence[Frame] = ()) -> Step:
        if self._turn is None or not self._is_open:
            raise RuntimeError("a step comes after a reset and before the episode's end")
        self._turn += 1
        calls = parse.tool_calls(str(action))
        self._is_open = bool(calls) and self._turn < self._turns
        if not calls:
            return Step(self._shown, terminated=True, info=_counts(0, 0))
        try:
            answers = [self._answer(call, frames) for call in calls]
        except ToolFaultError as error:
            self._is_open = False
            return Step(self._shown, truncated=True, fault=str(error))
        malformed = sum(is_malformed for _, is_malformed in answers)
        self._shown = Observation.from_messages([message for message, _ in answers])
        self._see(self._shown)
        return Step(self._shown, truncated=not self._is_open, info=_counts(len(calls), malformed))

    def gold(self, frames: Sequence[Frame]) -> str | None:
        """What the script says of this turn; None where there is none."""
        turn = self._turn or 0
        return self._script[turn](frames) if turn < len(self._script) else None

    def _see(self, shown: Observation) -> None:
        self._media += shown.media

    def _answer(self, call: parse.Parsed, frames: Sequence[Frame]) -> tuple[Message, bool]:
        """The message that answers a call, and whether the call was malformed."""
        bound: BoundCall | None = None
        pictures = [
            (medium, frame) for medium, frame in zip(self._media, frames, strict=False) if isinstance(medium, Image)
        ]
        try:
            bound = self._toolbox.bind(call, [image for image, _ in pictures], [frame for _, frame in pictures])
            return Message("tool", bound.run(self._seconds)), False
        except ToolError as error:
            return Message("tool", (f"Error: {error}"[:MAX_ERROR],)), bound is None


def _counts(calls: int, malformed: int) -> Mapping[str, float]:
    return {"tool_calls": float(calls), "malformed_calls": float(malformed)}


def tool_metrics(episodes: Sequence[Episode]) -> dict[str, float]:
    """Share of episodes that called tools, calls per episode, share of calls that were malformed, turns, share cut."""
    calls = [sum(turn.step.info.get("tool_calls", 0.0) for turn in episode.turns) for episode in episodes]
    malformed = sum(turn.step.info.get("malformed_calls", 0.0) for episode in episodes for turn in episode.turns)
    count = max(1, len(episodes))
    return {
        "called_tools": sum(number > 0 for number in calls) / count,
        "tool_calls": sum(calls) / count,
        "malformed_calls": malformed / max(1.0, sum(calls)),
        "turns": sum(len(episode.turns) for episode in episodes) / count,
        "truncated": sum(episode.turns[-1].step.truncated for episode in episodes) / count,
    }


def write_call(name: str, arguments: Mapping[str, object]) -> str:
    """A call as `rewards.parse.tool_calls` reads it."""
    return f"{parse.CALL}{json.dumps({'name': name, 'arguments': arguments}, ensure_ascii=False)}{parse.CALL_END}"


HIDDEN = "[image {} is no longer shown]"
NUMBERED = "[image {}]"
SUMMARISE = (
    "Before you go on, summarise what you have done and found so far, and what is left to do. "
    "Only this summary and the latest result stay in view."
)


@dataclass(frozen=True, kw_only=True)
class ShownContext:
    """`thoughts: strip` leaves the thoughts of earlier turns out, up to each one's `</think>`."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    thoughts: Literal["keep", "strip"] = "keep"

    def num_hidden(self, count: int, newest: int) -> int:
        """How many of `count` images, from the oldest on, are hidden; the last `newest` are those of this turn."""
        return 0


@dataclass(frozen=True, kw_only=True)
class Full(ShownContext):
    """Everything."""

    name: Literal["full"] = "full"


@dataclass(frozen=True, kw_only=True)
class LastImages(ShownContext):
    """The newest `images` images, and all that come in one turn; a line of text stands for each older one."""

    name: Literal["last_images"] = "last_images"
    images: int = 4

    def __post_init__(self):
        check(self.images > 0, "context.images", self.images, "at least 1")

    def num_hidden(self, count: int, newest: int) -> int:
        return max(0, count - max(self.images, newest))


@dataclass(frozen=True, kw_only=True)
class SummaryContext(ShownContext):
    """What the episode began with, and of the rest a summary, which the policy writes every `every` turns.

    It does so in a turn of its own (`Step.info["summary"]` is 1), which is trained like any other. The latest messages
    stay.
    """

    name: Literal["summary"] = "summary"
    every: int = 5

    def __post_init__(self):
        check(self.every > 0, "context.every", self.every, "at least 1 turn")


ContextStrategy = Annotated[Full | LastImages | SummaryContext, Field(discriminator="name")]
FULL = Full()


@dataclass(frozen=True)
class _Entry:
    """A message, and the numbers of its images, from 0 in the order of the episode."""

    message: Message
    numbers: tuple[int, ...] = ()


def with_context(environment: Environment, context: ShownContext) -> Environment:
    """The environment, shown by this strategy."""
    return environment if context == FULL else ContextEnvironment(environment, context)


class ContextEnvironment(Environment):
    """A conversation of which a policy is shown what `context` says.

    `frames` are those of the images that are shown; the environment inside gets those of all images of the episode.
    """

    def __init__(self, environment: Environment, context: ShownContext):
        self._environment, self._context = environment, context
        self._start: list[_Entry] = []  # what the episode began with
        self._later: list[_Entry] = []  # what followed, what the policy wrote as well; since the last summary
        self._newest: list[_Entry] = []
        self._prompt: list[Message] = []  # as shown last, and what the policy wrote then
        self._tools: tuple[Mapping[str, Any], ...] = ()
        self._visible: tuple[int, ...] = ()  # the images that are shown
        self._frames: dict[int, Frame] = {}
        self._count = 0  # images of the episode
        self._turns = 0  # since the last summary
        self._is_summary_due = False

    def reset(self) -> Observation:
        observation = self._environment.reset()
        self._start = self._newest = self._number(observation.messages)
        self._tools = observation.tools
        self._show()
        return observation

    def step(self, action: str | np.ndarray, frames: Sequence[Frame] = ()) -> Step:
        everywhere, reply = self._all_frames(frames), Message("assistant", (str(action),))
        if self._is_summary_due:
            self._later = [_Entry(reply), *map(_label, self._newest)]
            self._turns, self._is_summary_due = 0, False
            return Step(self._show(), info={"summary": 1.0})
        step = self._environment.step(action, everywhere)
        if step.terminated or step.truncated or step.fault:
            return step
        self._prompt.append(reply)
        self._newest = self._number(step.observation.messages)
        if step.observation.restart:
            self._start, self._later, self._turns = self._newest, [], 0
        else:
            self._later += [_Entry(reply), *self._newest]
            self._turns += 1
        if isinstance(self._context, SummaryContext) and self._turns == self._context.every:
            self._is_summary_due = True
            self._later.append(_Entry(Message("user", (SUMMARISE,))))
        return replace(step, observation=self._show())

    def gold(self, frames: Sequence[Frame]) -> str | None:
        """The environment's own; a summary says again what was asked."""
        everywhere = self._all_frames(frames)
        if not self._is_summary_due:
            return self._environment.gold(everywhere)
        texts = (part for each in self._start for part in each.message.content if isinstance(part, str))
        return f"The task: {' '.join(texts)}"

    def close(self) -> None:
        self._environment.close()

    def _number(self, messages: Sequence[Message]) -> list[_Entry]:
        """New messages, their images numbered behind those before."""
        entries = []
        for message in messages:
            count = sum(not isinstance(part, str) for part in message.content)
            entries.append(_Entry(message, tuple(range(self._count, self._count + count))))
            self._count += count
        return entries

    def _show(self) -> Observation:
        """What is to be appended to what was shown and written; where that has changed, the whole anew."""
        entries = [*self._start, *self._later]
        numbers = [number for entry in entries for number in entry.numbers]
        newest = sum(len(entry.numbers) for entry in self._newest)
        hidden = self._context.num_hidden(len(numbers), newest)
        self._visible = tuple(numbers[hidden:])
        views, before = [self._view(entry) for entry in entries], self._prompt
        self._prompt = views
        if before and views[: len(before)] == before:
            return Observation.from_messages(views[len(before) :])
        return Observation.from_messages(views, self._tools, restart=bool(before))

    def _view(self, entry: _Entry) -> Message:
        """A message as shown: a line of text for a hidden image; perhaps without thoughts."""
        message, numbers = entry.message, iter(entry.numbers)
        content = tuple(
            part if isinstance(part, str) or (number := next(numbers)) in self._visible else HIDDEN.format(number + 1)
            for part in message.content
        )
        if message.role == "assistant" and self._context.thoughts == "strip":
            content = tuple(str(part).rpartition("</think>")[2].lstrip() for part in content)
        return message if content == message.content else replace(message, content=content)

    def _all_frames(self, frames: Sequence[Frame]) -> tuple[Frame, ...]:
        """Those of all images of the episode, each of which was shown once; `frames` are of the visible ones."""
        self._frames |= dict(zip(self._visible, frames, strict=False))
        return tuple(self._frames[i] for i in range(self._count) if i in self._frames)


def _label(entry: _Entry) -> _Entry:
    """The entry with its number before each image, which is no longer its place among those shown."""
    content, numbers = [], iter(entry.numbers)
    for part in entry.message.content:
        content += [part] if isinstance(part, str) else [NUMBERED.format(next(numbers) + 1), part]
    return _Entry(replace(entry.message, content=tuple(content)), entry.numbers)
