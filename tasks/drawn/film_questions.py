"""Questions about a drawn clip with options to choose from. The options come from the clip: text cannot decide."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from rewards.intervals import Interval
from tasks.drawn.clips import MOVES, TURNS
from tasks.drawn.film import Stories
from tasks.drawn.screens import COLORS
from tasks.drawn.story import Event, Story
from vlrl.types import Split, Video

Rng = np.random.Generator


@dataclass(frozen=True)
class Question:
    """`options` in order, `answer` the right one's position, `spans` when what decides it is seen (seconds)."""

    kind: str
    text: str
    options: tuple[str, ...]
    answer: int
    spans: tuple[Interval, ...] = ()

    @property
    def letter(self) -> str:
        return chr(ord("A") + self.answer)


def asked(rng: Rng, stories: Stories, split: Split, number: int, kinds: Sequence[str]) -> tuple[Video, Question]:
    """A video, and a question about it of one of the kinds, each that fits with the same chance.

    It is story `number` of the split, or where that allows none of the kinds, a later one that serves no other number.
    """
    while True:
        story = stories.tell(split, number)
        fitting = [question for kind in kinds if (question := KINDS[kind](rng, story))]
        if fitting:
            return story.video, fitting[rng.integers(len(fitting))]
        number += stories.lengths[split]


def _question(rng: Rng, kind: str, text: str, options: Sequence[str], right: str, *events: Event) -> Question:
    mixed = [options[i] for i in rng.permutation(len(options))]
    return Question(kind, text, tuple(mixed), mixed.index(right), tuple(event.span for event in events))


def _first(rng: Rng, story: Story) -> Question | None:
    """By when they begin: no two events begin together."""
    said = [event.said for event in story.events]
    return _question(rng, "first", "What happens first?", said, said[0], story.events[0]) if len(said) > 1 else None


def _last(rng: Rng, story: Story) -> Question | None:
    said = [event.said for event in story.events]
    return _question(rng, "last", "What begins last?", said, said[-1], story.events[-1]) if len(said) > 1 else None


def _next(rng: Rng, story: Story) -> Question | None:
    if len(story.events) < 3:
        return None
    place = int(rng.integers(len(story.events) - 1))
    before, after = story.events[place : place + 2]
    others = [event.said for event in story.events if event is not before]
    return _question(rng, "next", f"What begins next after {before.said}?", others, after.said, before, after)


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
    return _question(rng, "direction", f"Which way does the {event.actor} move?", ways, right, event)


def _color(rng: Rng, story: Story) -> Question | None:
    """Among four colours that are not its own, all as likely."""
    if not (event := _alone(rng, story, TURNS)):
        return None
    right, own = event.action.removeprefix("turns "), event.actor.split()[0]
    others = [color for color in COLORS if color not in (right, own)]
    options = [right, *(others[i] for i in rng.permutation(len(others))[:3])]
    return _question(rng, "color", f"Which color does the {event.actor} turn?", options, right, event)


def _actor(rng: Rng, story: Story) -> Question | None:
    """Which of the shapes does what only one does."""
    only = [e for e in story.events if sum(e.action == other.action for other in story.events) == 1]
    cast = story.facts["cast"].split(", ")
    if not only or len(cast) < 2:
        return None
    event = only[rng.integers(len(only))]
    return _question(rng, "actor", f"What {event.action}?", cast, event.actor, event)


def _count(rng: Rng, story: Story) -> Question:
    """How many shapes do a kind of thing, whether or not any does."""
    name, actions = list(COUNTED.items())[rng.integers(len(COUNTED))]
    doing = [event for event in story.events if event.action in actions]
    most = len(story.facts["cast"].split(", "))
    count = len({event.actor for event in doing})
    return Question("count", f"How many shapes {name}?", tuple(map(str, range(most + 1))), count, ())


COUNTED = {"move": MOVES, "turn another color": TURNS, "hide": ("hides",), "blink": ("blinks",)}
KINDS: dict[str, Callable[[Rng, Story], Question | None]] = {
    "first": _first,
    "last": _last,
    "next": _next,
    "direction": _direction,
    "color": _color,
    "actor": _actor,
    "count": _count,
}
