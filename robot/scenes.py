"""Scenes by seed: which ones are trained on and which are held out, and a checksum that says what they were."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import Literal

import numpy as np

from robot.robot import Robot
from vlrl.types import Observation, UserError

Part = Literal["train", "validation", "test"]
SEEDS: dict[Part, range] = {
    "train": range(0, 10_000),
    "validation": range(10_000, 20_000),
    "test": range(20_000, 30_000),
}


def seeds(part: Part, count: int) -> range:
    """The first `count` scenes of a part. No scene is in two parts.

    Raises:
        UserError: the part has fewer.
    """
    if part not in SEEDS:
        raise UserError(f"scenes: {part!r}: must be one of {', '.join(SEEDS)}")
    if not 0 < count <= len(SEEDS[part]):
        raise UserError(f"scenes: {count} of {part}: must be 1 to {len(SEEDS[part])}")
    return SEEDS[part][:count]


def checksum(robot: Robot, chosen: Iterable[int]) -> str:
    """SHA-256 (16 hex digits) of the scenes: seed, state and instruction at home, without images.

    Two results with one checksum were measured on the same scenes: it changes with the seeds, with their order and with
    what the simulator makes of them. Images are left out because renderers differ in single bits between machines.
    """

    def homes() -> Iterator[tuple[int, Observation]]:
        for seed in chosen:
            robot.home(seed)
            yield seed, robot.observe()

    return checksum_of(homes())


def checksum_of(shown: Iterable[tuple[int, Observation]]) -> str:
    """`checksum` of scenes whose beginnings were seen: seed and first observation of each."""
    digest = hashlib.sha256()
    for seed, start in shown:
        state = np.zeros(0, np.float32) if start.state is None else start.state
        digest.update(f"{seed} {start.text} {state.astype('<f4').tobytes().hex()}\n".encode())
    return digest.hexdigest()[:16]
