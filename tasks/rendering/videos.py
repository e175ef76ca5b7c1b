"""Synthetic clips and questions about them, and films of several clips."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import ClassVar, Literal

import numpy as np

from tasks.base import check, generator
from tasks.rendering.robot_videos import Story, StoryEvent, StoryQuestion, draw_episode, perception, planning
from tasks.rendering.robot_videos import progress as robot_videos_progress
from tasks.rendering.robot_world import LEVELS
from tasks.rendering.screens import COLORS
from vlrl.types import Split, Video

# Draws short videos of shapes that move, grow, change colour, blink or hide, one after another or at once.
#
# An event may come at any time with the same chance: the best constant answer scores about 0.28 mean IoU, and an eye
# without language cannot tell which of three events is meant.

SHAPES = ("circle", "square", "triangle")
FAR = 0.36  # of the picture's side: the length of a move
RADIUS = (0.13, 0.17)  # of the picture's side
LENGTHS = (0.15, 0.4)  # of the video: how long an event takes
TRIES = 50  # arrangements that are tried for one plot


@dataclass(frozen=True)
class ShapeState:
    """A shape at one time: `x`, `y` its middle and `radius`, in shares of the picture's side."""

    shape: str
    color: tuple[float, float, float]
    x: float
    y: float
    radius: float
    seen: bool = True


Change = Callable[
    [ShapeState, float, float], ShapeState
]  # (look before, progress in (0, 1], seconds since the start) -> look


def _moving(right: float, down: float) -> Change:
    return lambda look, progress, _: replace(look, x=look.x + right * progress, y=look.y + down * progress)


def _sizing(factor: float) -> Change:
    return lambda look, progress, _: replace(look, radius=look.radius * (1 + (factor - 1) * progress))


def _coloring(name: str) -> Change:
    """That colour meanwhile; then its own again."""
    return lambda look, progress, _: replace(look, color=COLORS[name] if progress < 1 else look.color)


def _blinking(look: ShapeState, progress: float, seconds: float) -> ShapeState:
    """Gone every first half of a second."""
    return replace(look, seen=progress >= 1 or seconds % 1 >= 0.5)


def _hiding(look: ShapeState, progress: float, _: float) -> ShapeState:
    return replace(look, seen=progress >= 1)


def _appearing(look: ShapeState, progress: float, _: float) -> ShapeState:
    return replace(look, seen=progress < 1)


APPEARS = "appears"  # to go again: who does is not seen before
ACTIONS: dict[str, Change] = {
    "moves left": _moving(-FAR, 0),
    "moves right": _moving(FAR, 0),
    "moves up": _moving(0, -FAR),
    "moves down": _moving(0, FAR),
    "grows": _sizing(1.7),
    "shrinks": _sizing(0.5),
    "blinks": _blinking,
    "hides": _hiding,
    APPEARS: _appearing,
    **{f"turns {color}": _coloring(color) for color in COLORS},
}
MOVES = tuple(action for action in ACTIONS if action.startswith("moves"))
TURNS = tuple(action for action in ACTIONS if action.startswith("turns"))


def draw(
    rng: np.random.Generator,
    *,
    frames: int,
    size: tuple[int, int],
    duration: float,
    shapes: int,
    events: int,
    actions: Sequence[str],
    step: float,
) -> Story:
    """A video of `frames` frames of `size` (width, height), evenly over `duration` seconds, and its events.

    `shapes` shapes do `events` different things out of `actions`, no shape two at a time; no two begin together. Events
    begin and end at multiples of `step` seconds and take a share `LENGTHS` of the video.
    """
    while True:
        first = _cast(rng, shapes)
        plot = _plot(rng, first, events, actions, duration, step)
        placed = plot and _placed(rng, first, plot)
        if placed:
            break
    times = tuple((i + 0.5) * duration / frames for i in range(frames))
    scenes = [[_at(look, _of(look, plot), time) for look in placed] for time in times]
    video = Video(_render_frames(rng, size, scenes), times, frames / duration, duration)
    cast = ", ".join(map(_name, first))
    return Story(video, tuple(sorted(plot, key=lambda event: event.span)), {"cast": cast})


def _cast(rng: np.random.Generator, count: int) -> list[ShapeState]:
    """Different shapes; two may share their form or their colour."""
    pairs = [(shape, color) for shape in SHAPES for color in COLORS]
    return [
        ShapeState(pairs[i][0], COLORS[pairs[i][1]], 0.5, 0.5, rng.uniform(*RADIUS))
        for i in rng.choice(len(pairs), count, replace=False)
    ]


def _name(look: ShapeState) -> str:
    return f"{next(name for name, rgb in COLORS.items() if rgb == look.color)} {look.shape}"


def _plot(
    rng: np.random.Generator,
    cast: Sequence[ShapeState],
    count: int,
    actions: Sequence[str],
    duration: float,
    step: float,
) -> tuple[StoryEvent, ...] | None:
    """`count` events at random times; None where they do not go together."""
    events = []
    for _ in range(count):
        length = max(1, round(rng.uniform(*LENGTHS) * duration / step))
        start = int(rng.integers(round(duration / step) - length + 1))
        actor, action = _name(cast[int(rng.integers(len(cast)))]), actions[int(rng.integers(len(actions)))]
        events.append(StoryEvent(actor, action, (start * step, (start + length) * step)))
    return tuple(events) if _together(events) else None


def _together(events: Sequence[StoryEvent]) -> bool:
    """No two begin or read alike, no shape does two things at a time, or any before it appears, or turns what it is."""
    pairs = [(a, b) for i, a in enumerate(events) for b in events[:i]]
    starts = all(a.span[0] != b.span[0] and a.description != b.description for a, b in pairs)
    apart = all(a.span[1] <= b.span[0] or b.span[1] <= a.span[0] for a, b in pairs if a.actor == b.actor)
    visible = all(a.actor != b.actor or APPEARS not in (a.action, b.action) for a, b in pairs)
    return starts and apart and visible and all(event.action != f"turns {event.actor.split()[0]}" for event in events)


def _of(look: ShapeState, plot: Sequence[StoryEvent]) -> list[StoryEvent]:
    return sorted((event for event in plot if event.actor == _name(look)), key=lambda event: event.span)


def _at(look: ShapeState, events: Sequence[StoryEvent], time: float) -> ShapeState:
    """The look after all that it did by then."""
    look = replace(look, seen=all(event.action != APPEARS for event in events))
    for event in events:
        start, end = event.span
        if time > start:
            look = ACTIONS[event.action](look, min(1.0, (time - start) / (end - start)), time - start)
    return look


def _placed(
    rng: np.random.Generator, cast: Sequence[ShapeState], plot: Sequence[StoryEvent]
) -> list[ShapeState] | None:
    """The cast at places from which all stay in the picture and apart; None where none is found."""
    ends = sorted({time for event in plot for time in event.span} | {0.0})
    # [shape, time, (x, y, radius)], as if all began in the middle
    courses = np.array([[_spot(_at(look, _of(look, plot), time + 1e-6)) for time in ends] for look in cast])
    low = (courses[..., 2:] - courses[..., :2]).max(1)
    high = (1 - courses[..., :2] - courses[..., 2:]).min(1)
    if (low > high).any():
        return None
    for _ in range(TRIES):
        shift = rng.uniform(low, high)
        spots = courses[..., :2] + shift[:, None]
        if all(
            _are_separate(spots[i], spots[j], courses[i, :, 2] + courses[j, :, 2])
            for i in range(len(cast))
            for j in range(i)
        ):
            return [replace(look, x=look.x + dx, y=look.y + dy) for look, (dx, dy) in zip(cast, shift, strict=True)]
    return None


def _spot(look: ShapeState) -> tuple[float, float, float]:
    return look.x, look.y, look.radius


def _are_separate(first: np.ndarray, second: np.ndarray, least: np.ndarray) -> bool:
    return bool((np.hypot(*(first - second).T) > least).all())


def _render_frames(
    rng: np.random.Generator, size: tuple[int, int], scenes: Sequence[Sequence[ShapeState]]
) -> np.ndarray:
    """uint8 [T, height, width, 3]: the scenes before a plain ground that is darker on one side, and a little noise."""
    width, height = size
    x, y = np.meshgrid((np.arange(width) + 0.5) / width, (np.arange(height) + 0.5) / height)
    slope = rng.uniform(-40, 40, 2)
    ground = rng.uniform(70, 210) + slope[0] * (x - 0.5) + slope[1] * (y - 0.5) + rng.normal(0, 4, x.shape)
    pixels = np.empty((len(scenes), height, width, 3), np.float32)
    pixels[:] = ground[None, ..., None]
    for frame, scene in zip(pixels, scenes, strict=True):
        for look in scene:
            if look.seen:
                frame[_mask(look, x, y)] = look.color
    return pixels.clip(0, 255).astype(np.uint8)


def _mask(look: ShapeState, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    right, down = (x - look.x) / look.radius, (y - look.y) / look.radius
    if look.shape == "circle":
        return right**2 + down**2 <= 1
    if look.shape == "square":
        return np.maximum(abs(right), abs(down)) <= 0.88
    return (down <= 0.8) & (2 * abs(right) <= down + 1)


# Questions about a drawn clip with options to choose from. The options come from the clip: text cannot decide.

Rng = np.random.Generator


def _question(
    rng: Rng, story: Story, kind: str, text: str, options: Sequence[str], right: str, *events: StoryEvent
) -> StoryQuestion:
    mixed = [options[i] for i in rng.permutation(len(options))]
    spans = tuple(event.span for event in events)
    return StoryQuestion(kind, text, tuple(mixed), mixed.index(right), spans, story.video)


def _first(rng: Rng, story: Story) -> StoryQuestion | None:
    """By when they begin: no two events begin together."""
    descriptions = [event.description for event in story.events]
    return (
        _question(rng, story, "first", "What happens first?", descriptions, descriptions[0], story.events[0])
        if len(descriptions) > 1
        else None
    )


def _last(rng: Rng, story: Story) -> StoryQuestion | None:
    descriptions = [event.description for event in story.events]
    return (
        _question(rng, story, "last", "What begins last?", descriptions, descriptions[-1], story.events[-1])
        if len(descriptions) > 1
        else None
    )


def _next(rng: Rng, story: Story) -> StoryQuestion | None:
    if len(story.events) < 3:
        return None
    place = int(rng.integers(len(story.events) - 1))
    before, after = story.events[place : place + 2]
    others = [event.description for event in story.events if event is not before]
    return _question(
        rng, story, "next", f"What begins next after {before.description}?", others, after.description, before, after
    )


def _alone(rng: Rng, story: Story, actions: Sequence[str]) -> StoryEvent | None:
    """An event of these actions, the only one of its actor."""
    events = [e for e in story.events if e.action in actions]
    alone = [e for e in events if sum(e.actor == other.actor for other in events) == 1]
    return alone[rng.integers(len(alone))] if alone else None


def _direction(rng: Rng, story: Story) -> StoryQuestion | None:
    if not (event := _alone(rng, story, MOVES)):
        return None
    ways = [move.removeprefix("moves ") for move in MOVES]
    right = event.action.removeprefix("moves ")
    return _question(rng, story, "direction", f"Which way does the {event.actor} move?", ways, right, event)


def _color(rng: Rng, story: Story) -> StoryQuestion | None:
    """Among all colours, as likely but for its own."""
    if not (event := _alone(rng, story, TURNS)):
        return None
    right = event.action.removeprefix("turns ")
    return _question(rng, story, "color", f"Which color does the {event.actor} turn?", list(COLORS), right, event)


def _colors(story: Story) -> list[str]:
    """Of all shapes; none where two share theirs."""
    colors = [name.split()[0] for name in story.facts["cast"].split(", ")]
    return colors if len(set(colors)) == len(colors) > 1 else []


def _order(rng: Rng, story: Story, kind: str, place: int) -> StoryQuestion | None:
    """The color of what begins at a place in the order, where no shape does two things."""
    colors, doing = _colors(story), [event.actor.split()[0] for event in story.events]
    if not colors or len(set(doing)) < max(2, len(doing)):
        return None
    text = ORDER[kind].format(before=doing[place - 1])
    return _question(rng, story, kind, text, colors, doing[place], story.events[place])


def _earliest(rng: Rng, story: Story) -> StoryQuestion | None:
    return _order(rng, story, "earliest", 0)


def _latest(rng: Rng, story: Story) -> StoryQuestion | None:
    return _order(rng, story, "latest", -1)


def _after(rng: Rng, story: Story) -> StoryQuestion | None:
    place = 1 + int(rng.integers(max(1, len(story.events) - 1)))
    return _order(rng, story, "after", place) if place < len(story.events) else None


def _actor(rng: Rng, story: Story) -> StoryQuestion | None:
    """Which of the shapes does what only one does."""
    only = [e for e in story.events if sum(e.action == other.action for other in story.events) == 1]
    cast = story.facts["cast"].split(", ")
    if not only or len(cast) < 2:
        return None
    event = only[rng.integers(len(only))]
    return _question(rng, story, "actor", f"What {event.action}?", cast, event.actor, event)


def _when(rng: Rng, story: Story) -> StoryQuestion | None:
    """Among the spans of all that happens, so that to know when something happens is not enough."""
    if len(story.events) < 2:
        return None
    event = story.events[rng.integers(len(story.events))]
    spans = [_format_span(other) for other in story.events]
    return _question(rng, story, "when", f"When: {event.description}?", spans, _format_span(event), event)


def _format_span(event: StoryEvent) -> str:
    return f"{event.span[0]:g} to {event.span[1]:g}"


def _count(rng: Rng, story: Story) -> StoryQuestion:
    """How many shapes do a kind of thing, whether or not any does."""
    name, actions = list(COUNTED.items())[rng.integers(len(COUNTED))]
    doing = [event for event in story.events if event.action in actions]
    most = len(story.facts["cast"].split(", "))
    count = len({event.actor for event in doing})
    return StoryQuestion(
        "count", f"How many shapes {name}?", tuple(map(str, range(most + 1))), count, video=story.video
    )


ORDER = {
    "earliest": "Which color comes first?",
    "latest": "Which color comes last?",
    "after": "Which color comes next after {before}?",
}
COUNTED = {"move": MOVES, "turn another color": TURNS, "hide": ("hides",), "blink": ("blinks",)}
CLIP_QUESTIONS_KINDS: dict[str, Callable[[Rng, Story], StoryQuestion | None]] = {
    "first": _first,
    "last": _last,
    "next": _next,
    "direction": _direction,
    "color": _color,
    "actor": _actor,
    "when": _when,
    "earliest": _earliest,
    "latest": _latest,
    "after": _after,
    "count": _count,
}


# The videos of a task that names no file, and questions about them: how they are made, one after another.

KEPT = 256  # stories that are kept for the next question about them
FILM_KINDS: Mapping[str, tuple[str, ...]] = {  # of questions with options, by source
    "clips": tuple(CLIP_QUESTIONS_KINDS),
    "robot": ("planning", "first", "order"),
}


@dataclass(frozen=True)
class VideoOptions:
    """Options `task.film.*`. `pool` questions to train on, `held_out` others to test on.

    `frames` frames of `size` (width, height) pixels, evenly over `duration` seconds. Of the source `clips`: `shapes`
    shapes do `events` different things out of `actions`, from one multiple of `step` seconds to another. Of the source
    `robot`, MuJoCo's: the test split takes turns between `levels`, training has L1 only (robot_episodes). `words` of
    questions and answers are said otherwise: {red: crimson}.

    Raises:
        UserError: options out of range.
    """

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    source: Literal["clips", "robot"] = "clips"
    pool: int = 100_000
    held_out: int = 512
    size: tuple[int, int] = (64, 64)
    frames: int = 16
    duration: float = 8.0
    shapes: int = 3
    events: int = 3
    actions: tuple[str, ...] = tuple(ACTIONS)
    step: float = 1.0
    levels: tuple[str, ...] = ("L1",)
    words: Mapping[str, str] = field(default_factory=dict, compare=False)  # stories do not depend on it

    def __post_init__(self):
        check(self.pool > 0, "film.pool", self.pool, "at least 1")
        check(self.held_out > 0, "film.held_out", self.held_out, "at least 1")
        check(min(self.size) >= 32, "film.size", self.size, "at least 32 x 32 pixels")
        check(2 <= self.frames <= 768, "film.frames", self.frames, "2 to 768")
        check(self.step > 0, "film.step", self.step, "above 0 seconds")
        check(self.duration >= 4 * self.step, "film.duration", self.duration, "at least four times the step")
        check(1 <= self.shapes <= 4, "film.shapes", self.shapes, "1 to 4")
        check(1 <= self.events <= 6, "film.events", self.events, "1 to 6")
        known = set(self.actions) <= set(ACTIONS) and self.actions
        check(bool(known), "film.actions", self.actions, f"some of {', '.join(ACTIONS)}")
        known = set(self.levels) <= set(LEVELS) and self.levels
        check(bool(known), "film.levels", self.levels, f"some of {', '.join(LEVELS)}")

    def say(self, text: str) -> str:
        """A text about a story in this film's words."""
        return re.sub(r"[a-z]+", lambda word: self.words.get(word[0], word[0]), text) if self.words else text

    def level(self, split: Split, number: int) -> str:
        return "L1" if split == "train" else self.levels[number % len(self.levels)]


FILM = VideoOptions()


@dataclass(frozen=True)
class Stories:
    """The stories of a seed, by number."""

    film: VideoOptions
    seed: int

    @property
    def lengths(self) -> dict[Split, int]:
        return {"train": self.film.pool, "test": self.film.held_out}

    def tell(self, split: Split, number: int) -> Story:
        """The latest are kept: several questions may ask about one."""
        return _draw_story(self.film, self.seed, split, number)

    def ask(self, rng: np.random.Generator, split: Split, number: int, kinds: Sequence[str]) -> StoryQuestion:
        """A question with options, of one of the kinds, each that fits with the same chance, in the film's words.

        It asks about story `number`, or where that allows none of the kinds, about a later one that has no number of
        its own.
        """
        question_answer = self._ask(rng, split, number, kinds)
        return replace(
            question_answer,
            text=self.film.say(question_answer.text),
            options=tuple(map(self.film.say, question_answer.options)),
        )

    def _ask(self, rng: np.random.Generator, split: Split, number: int, kinds: Sequence[str]) -> StoryQuestion:
        if self.film.source == "robot":
            kind = kinds[int(rng.integers(len(kinds)))]
            if kind == "planning":
                return planning(rng, _progressed(self.film, self.seed, split, number))
            return perception(rng, self.tell(split, number), (kind,))
        while True:
            story = self.tell(split, number)
            fitting = [candidate for kind in kinds if (candidate := CLIP_QUESTIONS_KINDS[kind](rng, story))]
            if fitting:
                return fitting[rng.integers(len(fitting))]
            number += self.lengths[split]


@lru_cache(maxsize=KEPT)
def _draw_story(film: VideoOptions, seed: int, split: Split, number: int) -> Story:
    rng, size = generator(seed, split, number), (film.size[0], film.size[1])
    frames, duration = film.frames, film.duration
    if film.source == "robot":
        level = film.level(split, number)
        return draw_episode(rng, split, frames=frames, size=size, duration=duration, level=level)
    return draw(
        rng,
        frames=frames,
        size=size,
        duration=duration,
        shapes=film.shapes,
        events=film.events,
        actions=tuple(film.actions),
        step=film.step,
    )


@lru_cache(maxsize=KEPT)
def _progressed(film: VideoOptions, seed: int, split: Split, number: int) -> Story:
    rng, level = generator(seed, split, number), film.level(split, number)
    return robot_videos_progress(rng, split, frames=film.frames, size=tuple(film.size), level=level)
