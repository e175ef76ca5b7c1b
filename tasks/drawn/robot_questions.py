"""Questions about the robot's videos: what it did and when, and what it should do next to reach its goal.

Text alone cannot decide: the options of one question are of one kind, all of its own scene and goal, and each is right
with the same chance. Planning questions are put as SEED-Bench-R1 puts them (2503.24376): a goal, a video of the
progress so far, an image of what is seen now. Their options are events of the same episode: whoever always chooses the
kind of action or the position that is right most often is right in a quarter of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from PIL import Image

from rewards.intervals import Interval
from tasks.drawn.story import Event, Question, Story

OPTIONS = 4
ORDINALS = ("first", "second", "third")
NEXT = "Considering the progress shown in the video and what the image shows now, what should the robot do next?"
Rng = np.random.Generator


def perception(rng: Rng, story: Story, kinds: Sequence[str] = ("first", "order", "when")) -> Question:
    """What was done, in which order, or when, in a whole episode (`robot_episodes.draw`); each kind as often."""
    return PERCEPTION[kinds[int(rng.integers(len(kinds)))]](rng, story)


def planning(rng: Rng, story: Story) -> Question:
    """What comes next after a video that ends as an event begins (`robot_episodes.progress`).

    The right option is the next event, the wrong ones are others of the same episode. There is no video where nothing
    has been done yet. ValueError: nothing comes next.
    """
    now = story.video.times[-1]
    done, ahead = begun(story, now)
    if not ahead:
        raise ValueError(f"nothing comes after {now} s: planning questions are about videos that end before an event")
    others = [event.bare for event in story.events if event is not ahead[0]]
    text = f"Goal: {story.facts['goal']} {NEXT}"
    asked = _chosen(rng, story, "planning", text, ahead[0].bare, others, (ahead[0].span,))
    return replace(asked, video=story.video if done else None, image=Image.fromarray(story.video.frames[-1]))


def begun(story: Story, now: float) -> tuple[tuple[Event, ...], tuple[Event, ...]]:
    """The events that began before a time in seconds, and those that did not."""
    done = tuple(event for event in story.events if event.span[0] < now)
    return done, story.events[len(done) :]


def _first(rng: Rng, story: Story) -> Question:
    """Which object the first reach is for: among all on the table."""
    event = story.events[0]
    others = [f"reach for the {name}" for name in _objects(story)]
    others.remove(event.bare)
    return _chosen(rng, story, "first", "What does the robot do first?", event.bare, others, (event.span,))


def _order(rng: Rng, story: Story) -> Question:
    """Which object was lifted, or grasped, at which place in the order."""
    verb = str(rng.choice(("lifts", "grasps")))
    found = [event for event in story.events if event.action.startswith(verb)]
    place = int(rng.integers(len(found)))
    right = found[place].action.removeprefix(f"{verb} the ")
    others = [name for name in _objects(story) if name != right]
    text = f"Which object does the robot {verb.removesuffix('s')} {ORDINALS[place]}?"
    return _chosen(rng, story, "order", text, right, others, (found[place].span,))


def _when(rng: Rng, story: Story) -> Question:
    event = story.events[int(rng.integers(len(story.events)))]
    text, level = f"When does the robot {event.bare}?", story.facts["level"]
    return Question("when", text, spans=(event.span,), video=story.video, level=level)


def _objects(story: Story) -> list[str]:
    return story.facts["objects"].split(", ")


def _chosen(
    rng: Rng, story: Story, kind: str, text: str, right: str, others: Sequence[str], spans: tuple[Interval, ...]
) -> Question:
    """The right option at any place among OPTIONS - 1 of the others."""
    listed = [right, *(others[i] for i in rng.permutation(len(others))[: OPTIONS - 1])]
    mixed = tuple(listed[i] for i in rng.permutation(len(listed)))
    return Question(kind, text, mixed, mixed.index(right), spans, story.video, level=story.facts["level"])


PERCEPTION: dict[str, Callable[[Rng, Story], Question]] = {"first": _first, "order": _order, "when": _when}
