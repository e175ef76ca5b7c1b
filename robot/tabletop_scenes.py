"""The scenes of `robot.tabletop`: where things begin, what is wanted, how it looks. Pure functions of the seed."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np

JOBS = {"reach": "point", "touch": "disc", "push": "disc", "pick": "point"}  # job -> the mark that shows where
ASKED = {  # in whose words -> job -> what is asked for
    "plain": {
        "reach": "Move the hand to the {goal} point.",
        "touch": "Touch the {color} {kind}.",
        "push": "Push the {cube} cube onto the {goal} disc.",
        "pick": "Pick up the {cube} cube and bring it to the {goal} point.",
    },
    "other": {
        "reach": "Go up to the {goal} ball.",
        "touch": "Tap on the {color} {other}.",
        "push": "Shove the {cube} block over the {goal} plate.",
        "pick": "Carry the {cube} block to the {goal} ball.",
    },
}
OTHER = {"disc": "plate", "cube": "block"}
COLORS = {
    "red": (0.85, 0.15, 0.12),
    "green": (0.15, 0.65, 0.2),
    "blue": (0.12, 0.3, 0.85),
    "yellow": (0.95, 0.8, 0.1),
    "purple": (0.55, 0.2, 0.7),
}
APART = {"reach": 0.08, "touch": 0.1, "push": 0.1, "pick": 0.1}  # metres from where it starts to the goal, at least
TOUCHED = {"disc": 0.025, "cube": 0.05}  # metres: height of the fingers' tips that touch it


@dataclass(frozen=True)
class Scene:
    seed: int
    hand: tuple[float, float, float]  # metres
    cube: tuple[float, float]  # metres
    turn: float  # of the cube, radians
    goal: tuple[float, float, float]  # metres
    mark: str  # `disc` or `point`, which shows the goal; with `touch` the disc is there, whatever is asked for
    marked: tuple[float, float, float]  # metres: where it is
    colors: tuple[tuple[float, float, float], tuple[float, float, float]]  # of the goal's mark and the cube, RGB
    lamp: tuple[float, float]  # metres
    instruction: str


def scene(job: str, seed: int, words: str = "plain") -> Scene:
    """The same on every machine, for any seed of at least 0; `words` change the instruction alone."""
    rng = np.random.default_rng([seed, zlib.crc32(job.encode())])
    hand = (*rng.uniform(-0.1, 0.1, 2), rng.uniform(0.12, 0.2))
    cube = rng.uniform(-0.14, 0.14, 2)
    turn = rng.uniform(-0.25, 0.25) if job == "pick" else rng.uniform(-np.pi / 4, np.pi / 4)
    goal = _goal(rng, job, np.array(hand if job == "reach" else (*cube, 0.0)))
    names = rng.choice(list(COLORS), 2, replace=False).tolist()
    marked, kind = goal, "disc"
    if job == "touch":
        kind = rng.choice(list(TOUCHED)).item()
        place = {"disc": goal[:2], "cube": tuple(map(float, cube))}[kind]
        goal = (*place, TOUCHED[kind])
    told = {"goal": names[0], "cube": names[1], "color": names[kind == "cube"], "kind": kind, "other": OTHER[kind]}
    return Scene(
        seed,
        tuple(map(float, hand)),
        tuple(map(float, cube)),
        float(turn),
        goal,
        JOBS[job],
        marked,
        (COLORS[names[0]], COLORS[names[1]]),
        tuple(rng.uniform(-0.6, 0.6, 2).tolist()),
        ASKED[words][job].format(**told),
    )


def _goal(rng: np.random.Generator, job: str, start: np.ndarray) -> tuple[float, float, float]:
    low, high = {
        "reach": ((-0.2, -0.2, 0.08), (0.2, 0.2, 0.22)),
        "touch": ((-0.18, -0.18, 0.0), (0.18, 0.18, 0.0)),
        "push": ((-0.18, -0.18, 0.0), (0.18, 0.18, 0.0)),
        "pick": ((-0.15, -0.15, 0.1), (0.15, 0.15, 0.18)),
    }[job]
    while True:  # most of the room is far enough away
        goal = rng.uniform(low, high)
        if np.linalg.norm(goal - start) >= APART[job]:
            return tuple(goal.tolist())
