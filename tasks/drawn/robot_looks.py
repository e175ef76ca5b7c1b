"""Environments of the robot's videos: training's own, and held-out ones that share no colour and no camera with them.

Three levels as SEED-Bench-R1 has them (2503.24376): L1 is like training; L2 has held-out cameras, surfaces, light,
colours of the arm and of the objects; L3 has those and tasks that training never shows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tasks.drawn.robot_world import Look

RGB = tuple[float, float, float]
LEVELS = ("L1", "L2", "L3")


@dataclass(frozen=True)
class Environment:
    """What looks are drawn from: (low, high) of numbers, and the colours that there are."""

    azimuth: tuple[float, float]  # degrees; the arm stands at 180 and looks to 0
    elevation: tuple[float, float]  # degrees
    surfaces: tuple[str, ...]  # of robot_world.SURFACES
    tables: tuple[RGB, ...]
    floors: tuple[RGB, ...]
    arms: tuple[RGB, ...]
    targets: tuple[RGB, ...]
    lamp_side: int  # of y: -1 or 1
    brightness: tuple[float, float]
    objects: tuple[tuple[str, RGB], ...]  # name of a colour, colour


TRAINED = Environment(
    azimuth=(105, 160),
    elevation=(-48, -36),
    surfaces=("plain", "dotted"),
    tables=((0.72, 0.55, 0.38), (0.55, 0.57, 0.6), (0.4, 0.3, 0.22)),
    floors=((0.35, 0.36, 0.4), (0.6, 0.58, 0.52)),
    arms=((0.92, 0.92, 0.94), (0.95, 0.55, 0.15)),
    targets=((0.95, 0.95, 0.9), (0.25, 0.25, 0.28)),
    lamp_side=1,
    brightness=(0.6, 0.75),
    objects=(("red", (0.85, 0.1, 0.1)), ("blue", (0.1, 0.2, 0.9)), ("green", (0.1, 0.62, 0.15)),
             ("yellow", (0.97, 0.85, 0.1))),
)  # fmt: skip
HELD_OUT = Environment(
    azimuth=(200, 255),
    elevation=(-62, -52),
    surfaces=("checked",),
    tables=((0.3, 0.42, 0.36), (0.75, 0.72, 0.78), (0.28, 0.3, 0.42)),
    floors=((0.5, 0.35, 0.3), (0.2, 0.28, 0.25)),
    arms=((0.3, 0.5, 0.75), (0.55, 0.75, 0.35)),
    targets=((0.85, 0.6, 0.3), (0.4, 0.25, 0.2)),
    lamp_side=-1,
    brightness=(0.8, 1.0),
    objects=(("purple", (0.5, 0.12, 0.65)), ("pink", (0.98, 0.5, 0.7)), ("cyan", (0.1, 0.85, 0.9)),
             ("white", (0.97, 0.97, 0.97))),
)  # fmt: skip
ENVIRONMENTS = {"L1": TRAINED, "L2": HELD_OUT, "L3": HELD_OUT}


def draw(rng: np.random.Generator, environment: Environment) -> Look:
    """A camera, light and surfaces of that environment."""

    def one(options):
        return options[int(rng.integers(len(options)))]

    lamp = (rng.uniform(-1, 1), environment.lamp_side * rng.uniform(0.3, 1.2), rng.uniform(*environment.brightness))
    return Look(
        azimuth=rng.uniform(*environment.azimuth),
        elevation=rng.uniform(*environment.elevation),
        distance=rng.uniform(0.95, 1.05),
        table=(one(environment.surfaces), one(environment.tables)),
        floor=(one(environment.surfaces), one(environment.floors)),
        arm=one(environment.arms),
        target=one(environment.targets),
        lamp=lamp,
    )
