"""The scenes of the simulated SO-101: how the arm begins, where the disc lies. Pure functions of the seed."""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass

import numpy as np

from robot.so101_model import DISC_TOP

JOBS = {"touch": "Touch the disc."}
HOME = (0.0, -35.0, 20.0, 55.0, 0.0, 5.0)  # degrees, and percent of the gripper's opening
SPREAD = (6.0, 4.0, 4.0, 4.0, 4.0, 3.0)  # how far from HOME the arm begins, at most
NEAR, FAR, ASIDE = 0.2, 0.31, 50.0  # metres from the shoulder's axis, degrees to either side: where the disc may lie
AXIS = 0.02  # metres ahead of the base's middle: the shoulder's axis


@dataclass(frozen=True)
class Scene:
    seed: int
    start: tuple[float, ...]  # degrees and percent [6]
    goal: tuple[float, float, float]  # metres: the middle of the disc's top
    instruction: str


def scene(job: str, seed: int) -> Scene:
    """The same on every machine, for any seed of at least 0."""
    rng = np.random.default_rng([seed, zlib.crc32(job.encode())])
    start = np.array(HOME) + rng.uniform(-1, 1, 6) * SPREAD
    reach = math.sqrt(rng.uniform(NEAR**2, FAR**2))  # uniform over the area
    angle = math.radians(rng.uniform(-ASIDE, ASIDE))
    place = (AXIS + reach * math.cos(angle), reach * math.sin(angle), DISC_TOP)
    return Scene(seed, tuple(start.tolist()), place, JOBS[job])
