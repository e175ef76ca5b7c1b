"""Scenes that begin alike, found by their states: what a baseline can be shared by."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from robot.pool import Pool


def buckets_of(pool: Pool, seeds: Sequence[int], count: int) -> list[int]:
    """The bucket, 0 to count - 1, of each scene: k-means over the states at home, each number divided by its spread.

    The same on every machine for the same scenes; scenes that are added may move others.
    """
    from sklearn.cluster import KMeans

    states = np.stack([_home(pool, seed) for seed in seeds]).astype(np.float64)
    spread = states.std(0)
    moves = spread > 1e-6  # what is the same in all scenes tells nothing apart
    normal = (states[:, moves] - states[:, moves].mean(0)) / spread[moves]
    return KMeans(count, n_init=4, random_state=0).fit_predict(normal).tolist()


def _home(pool: Pool, seed: int) -> np.ndarray:
    play = pool.environment(seed, ticks=1)
    try:
        return play.reset().state
    finally:
        play.close()
