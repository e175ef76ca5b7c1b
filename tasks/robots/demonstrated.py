"""A robot's script as a teacher: what it would do, from states that noise led to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from robot.pool import Pool
from robot.pooled import PooledPlay
from vlrl.types import Observation

Demonstrated = tuple[Observation, np.ndarray]  # what was shown, and the script's chunk float32 [K, A] from there


def demonstrated(
    pool: Pool, seeds: Sequence[int], ticks: int, chunk: int, *, count: int, noise: float, seed: int
) -> Iterator[list[Demonstrated]]:
    """`count` episodes, won or not, decision by decision; scenes in order, from the first again when they are used up.

    Raises:
        UserError: the robot has no script.
    """
    rng, controls = np.random.default_rng(seed), pool.about.controls
    spread = noise * (controls.high - controls.low) / 2
    for index in range(count):
        play = pool.environment(seeds[index % len(seeds)], ticks=ticks)
        try:
            yield _episode(play, chunk, spread, rng)
        finally:
            play.close()


def _episode(play: PooledPlay, chunk: int, spread: np.ndarray, rng: np.random.Generator) -> list[Demonstrated]:
    pairs, shown, over = [], play.reset(), False
    while not over:
        plan = play.plan(chunk)
        pairs.append((shown, plan))
        step = play.step(plan + (spread * rng.standard_normal(plan.shape)).astype(np.float32))
        shown, over = step.observation, step.done or step.cut
    return pairs
