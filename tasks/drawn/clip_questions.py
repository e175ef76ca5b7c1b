"""Questions about a drawn clip with options to choose from. The options come from the clip: text cannot decide."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tasks.drawn.clips import MOVES, TURNS
from tasks.drawn.screens import COLORS
from tasks.drawn.story import Event, Question, Story

Rng = np.random.Generator


def _question(
    rng: Rng, story: Story, kind: str, text: str, options: Sequence[str], right: str, *events: Event
) -> Question:
    mixed = [options[i] for i in rng.permutation(len(options))]
    spans = tuple(event.span for event in events)
    return Question(kind, text, tuple(mixed), mixed.index(right), spans, story.video)


def _first(rng: Rng, story: Story) -> Question | None:
    """By when they begin: no two events begin together."""
    said = [event.said for event in story.events]
    return (
        _question(rng, story, "first", "What happens first?", said, said[0], story.events[0]) if len(said) > 1 else None
    )


def _last(rng: Rng, story: Story) -> Question | None:
    said = [event.said for event in story.events]
    return (
        _question(rng, story, "last", "What begins last?", said, said[-1], story.events[-1]) if len(said) > 1 else None
    )


def _next(rng: Rng, story: Story) -> Question | None:
    if len(story.events) < 3:
        return None
    place = int(rng.integers(len(story.events) - 1))
    before, after = story.events[place : place + 2]
    others = [event.said for event in story.events if event is not before]
    return _question(rng, story, "next", f"What begins next after {before.said}?", others, after.said, before, after)


def _alone(rng: Rng, story: Story, actions: Sequence[str]) -> Event | None:
    """An event of these actions, the only one of its actor."""
    found = [e for e in story.events if e.action in actions]
    alone = [e for e in found if sum(e.actor == other.actor for other in found) == 1]
    return alone[rng.integers(len(alone))] if alone else None


def _direction(rng: Rng, story: Story) -> Question | None:
    if not (event := _alone(rng, story, MOVES)):
        return None
    ways = [move.removeprefix("moves ") for move in MOVES]
    right = event.action.removeprefix("moves ")
    return _question(rng, story, "direction", f"Which way does the {event.actor} move?", ways, right, event)


def _color(rng: Rng, story: Story) -> Question | None:
    """Among all colours, as likely but for its own."""
    if not (event := _alone(rng, story, TURNS)):
        return None
    right = event.action.removeprefix("turns ")
    return _question(rng, story, "color", f"Which color does the {event.actor} turn?", list(COLORS), right, event)


def _colors(story: Story) -> list[str]:
    """Of all shapes; none where two share theirs."""
    colors = [name.split()[0] for name in story.facts["cast"].split(", ")]
    return colors if len(set(colors)) == len(colors) > 1 else []


def _order(rng: Rng, story: Story, kind: str, place: int) -> Question | None:
    """The color of what begins at a place in the order, where no shape does two things."""
    colors, doing = _colors(story), [event.actor.split()[0] for event in story.events]
    if not colors or len(set(doing)) < max(2, len(doing)):
        return None
    text = ORDER[kind].format(before=doing[place - 1])
    return _question(rng, story, kind, text, colors, doing[place], story.events[place])


def _earliest(rng: Rng, story: Story) -> Question | None:
    return _order(rng, story, "earliest", 0)


def _latest(rng: Rng, story: Story) -> Question | None:
    return _order(rng, story, "latest", -1)


def _after(rng: Rng, story: Story) -> Question | None:
    place = 1 + int(rng.integers(max(1, len(story.events) - 1)))
    return _order(rng, story, "after", place) if place < len(story.events) else None


def _actor(rng: Rng, story: Story) -> Question | None:
    """Which of the shapes does what only one does."""
    only = [e for e in story.events if sum(e.action == other.action for other in story.events) == 1]
    cast = story.facts["cast"].split(", ")
    if not only or len(cast) < 2:
        return None
    event = only[rng.integers(len(only))]
    return _question(rng, story, "actor", f"What {event.action}?", cast, event.actor, event)


def _when(rng: Rng, story: Story) -> Question | None:
    """Among the spans of all that happens, so that to know when something happens is not enough."""
    if len(story.events) < 2:
        return None
    event = story.events[rng.integers(len(story.events))]
    spans = [_written(other) for other in story.events]
    return _question(rng, story, "when", f"When: {event.said}?", spans, _written(event), event)


def _written(event: Event) -> str:
    return f"{event.span[0]:g} to {event.span[1]:g}"


def _count(rng: Rng, story: Story) -> Question:
    """How many shapes do a kind of thing, whether or not any does."""
    name, actions = list(COUNTED.items())[rng.integers(len(COUNTED))]
    doing = [event for event in story.events if event.action in actions]
    most = len(story.facts["cast"].split(", "))
    count = len({event.actor for event in doing})
    return Question("count", f"How many shapes {name}?", tuple(map(str, range(most + 1))), count, video=story.video)


ORDER = {
    "earliest": "Which color comes first?",
    "latest": "Which color comes last?",
    "after": "Which color comes next after {before}?",
}
COUNTED = {"move": MOVES, "turn another color": TURNS, "hide": ("hides",), "blink": ("blinks",)}
KINDS: dict[str, Callable[[Rng, Story], Question | None]] = {
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
