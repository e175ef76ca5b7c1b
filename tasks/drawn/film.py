"""The videos of a task that names no file: how they are made, and one story after another."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Literal

import numpy as np

from tasks.base import check, generator
from tasks.drawn import clips
from tasks.drawn.story import Story
from vlrl.types import Split

KEPT = 256  # stories that are kept for the next question about them


@dataclass(frozen=True)
class Film:
    """Options `task.film.*`. `pool` questions to train on, `held_out` others to test on.

    `frames` frames of `size` (width, height) pixels, evenly over `duration` seconds. Of the source `clips`: `shapes`
    shapes do `events` different things out of `actions`, from one multiple of `step` seconds to another.

    Raises:
        UserError: options out of range.
    """

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    source: Literal["clips"] = "clips"
    pool: int = 100_000
    held_out: int = 512
    size: tuple[int, int] = (64, 64)
    frames: int = 16
    duration: float = 8.0
    shapes: int = 3
    events: int = 3
    actions: tuple[str, ...] = tuple(clips.ACTIONS)
    step: float = 1.0

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

    def draw(self, rng: np.random.Generator) -> Story:
        """One of its videos."""
        return clips.draw(
            rng, frames=self.frames, size=tuple(self.size), duration=self.duration, shapes=self.shapes,
            events=self.events, actions=tuple(self.actions), step=self.step,
        )  # fmt: skip


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


@lru_cache(maxsize=KEPT)
def _told(film: Film, seed: int, split: Split, number: int) -> Story:
    return film.draw(generator(seed, split, number))
