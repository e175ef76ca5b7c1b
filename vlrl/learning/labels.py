"""Frames of recorded episodes as examples of success and of its absence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from vlrl.learning.dataset import Recorded
from vlrl.types import UserError

NEGATIVE, POSITIVE, UNSURE = 0, 1, -1
LEAST = 6  # successes and, of all, twice as many episodes: to learn from, to set the threshold by, to measure on


@dataclass(frozen=True)
class Spans:
    """Seconds at the end of an episode."""

    near: float  # before the first success that look like it already
    unsure: float  # before those, that are neither
    hard: float  # of a failure, to be learned from more often: it looks like the end, and is none


def labels(episode: Recorded, fps: float, spans: Spans) -> np.ndarray:
    """int64 [T]: POSITIVE, NEGATIVE or UNSURE."""
    marked = np.where(episode.success, POSITIVE, NEGATIVE)
    if episode.won:
        first = int(np.argmax(episode.success))
        near = max(0, first - round(spans.near * fps))
        marked[near:first] = POSITIVE
        marked[max(0, near - round(spans.unsure * fps)) : near] = UNSURE
    return marked


def hard(episode: Recorded, fps: float, spans: Spans) -> np.ndarray:
    """bool [T]: the end of a failure."""
    last = np.arange(len(episode)) >= len(episode) - round(spans.hard * fps)
    return last & (not episode.won)


def split(episodes: Sequence[Recorded], share: float, seed: int) -> tuple[list[int], list[int], list[int]]:
    """Places of the episodes to learn from, to set the threshold by, and to measure on: each with its successes.

    Whole episodes, since the frames of one are much alike.

    Raises:
        UserError: too few.
    """
    rng, parts = np.random.default_rng(seed), ([], [], [])
    won = [episode.won for episode in episodes]
    if sum(won) < LEAST or len(won) < 2 * LEAST:
        raise UserError(f"{sum(won)} successes in {len(won)} episodes: record at least {LEAST} in {2 * LEAST}")
    for kind in (True, False):
        places = rng.permutation([place for place, each in enumerate(won) if each == kind]).astype(int).tolist()
        held = round(share * len(places) / 2) or min(1, len(places) // 3)
        for part, chosen in zip(parts, (places[2 * held :], places[:held], places[held : 2 * held]), strict=True):
            part += chosen
    return parts
