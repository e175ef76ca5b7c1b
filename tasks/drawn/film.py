"""The videos of a task that names no file, and questions about them: how they are made, one after another."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import ClassVar, Literal

import numpy as np

from tasks.base import check, generator
from tasks.drawn import clip_questions, clips, robot_episodes, robot_questions
from tasks.drawn.robot_looks import LEVELS
from tasks.drawn.story import Question, Story
from vlrl.types import Split

KEPT = 256  # stories that are kept for the next question about them
KINDS: Mapping[str, tuple[str, ...]] = {  # of questions with options, by source
    "clips": tuple(clip_questions.KINDS),
    "robot": ("planning", "first", "order"),
}


@dataclass(frozen=True)
class Film:
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
    actions: tuple[str, ...] = tuple(clips.ACTIONS)
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
        known = set(self.actions) <= set(clips.ACTIONS) and self.actions
        check(bool(known), "film.actions", self.actions, f"some of {', '.join(clips.ACTIONS)}")
        known = set(self.levels) <= set(LEVELS) and self.levels
        check(bool(known), "film.levels", self.levels, f"some of {', '.join(LEVELS)}")

    def say(self, text: str) -> str:
        """A text about a story in this film's words."""
        return re.sub(r"[a-z]+", lambda word: self.words.get(word[0], word[0]), text) if self.words else text

    def level(self, split: Split, number: int) -> str:
        return "L1" if split == "train" else self.levels[number % len(self.levels)]


FILM = Film()


@dataclass(frozen=True)
class Stories:
    """The stories of a seed, by number."""

    film: Film
    seed: int

    @property
    def lengths(self) -> dict[Split, int]:
        return {"train": self.film.pool, "test": self.film.held_out}

    def tell(self, split: Split, number: int) -> Story:
        """The latest are kept: several questions may ask about one."""
        return _told(self.film, self.seed, split, number)

    def ask(self, rng: np.random.Generator, split: Split, number: int, kinds: Sequence[str]) -> Question:
        """A question with options, of one of the kinds, each that fits with the same chance, in the film's words.

        It asks about story `number`, or where that allows none of the kinds, about a later one that has no number of
        its own.
        """
        asked = self._ask(rng, split, number, kinds)
        return replace(asked, text=self.film.say(asked.text), options=tuple(map(self.film.say, asked.options)))

    def _ask(self, rng: np.random.Generator, split: Split, number: int, kinds: Sequence[str]) -> Question:
        if self.film.source == "robot":
            kind = kinds[rng.integers(len(kinds))]
            if kind == "planning":
                return robot_questions.planning(rng, _progressed(self.film, self.seed, split, number))
            return robot_questions.perception(rng, self.tell(split, number), (kind,))
        while True:
            story = self.tell(split, number)
            fitting = [asked for kind in kinds if (asked := clip_questions.KINDS[kind](rng, story))]
            if fitting:
                return fitting[rng.integers(len(fitting))]
            number += self.lengths[split]


@lru_cache(maxsize=KEPT)
def _told(film: Film, seed: int, split: Split, number: int) -> Story:
    rng, shown = generator(seed, split, number), {"frames": film.frames, "size": tuple(film.size)}
    if film.source == "robot":
        return robot_episodes.draw(rng, split, **shown, duration=film.duration, level=film.level(split, number))
    drawn = {"shapes": film.shapes, "events": film.events, "actions": tuple(film.actions), "step": film.step}
    return clips.draw(rng, **shown, duration=film.duration, **drawn)


@lru_cache(maxsize=KEPT)
def _progressed(film: Film, seed: int, split: Split, number: int) -> Story:
    rng, level = generator(seed, split, number), film.level(split, number)
    return robot_episodes.progress(rng, split, frames=film.frames, size=tuple(film.size), level=level)
