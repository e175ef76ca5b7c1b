"""What the robot is told to do: a goal in words, the scene for it, and the moves that reach it.

Training puts one to three objects on a plate or a tray, one after another. Held out for L3: objects into a bin, objects
on top of each other, cubes in the order of their sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tasks.drawn import robot_looks
from tasks.drawn.robot_model import SLOTS
from tasks.drawn.robot_world import FORMS, Scene, Thing

HALVES = (0.03, 0.038)  # metres: half an object's height
SIZES = (0.022, 0.028, 0.035, 0.042)  # metres: half the edges of cubes that are told apart by size
APART = 0.135  # metres between two objects: room for the fingers
TARGET_SIDE = 0.2  # metres from the middle of the table
SPOTS = (0.1, 0.0, -0.1)  # metres from the target's middle, along its length


@dataclass(frozen=True)
class Move:
    """The robot takes thing `what` and puts it on the target at `spot`, or on thing `onto`."""

    what: int
    spot: tuple[float, float] = (0.0, 0.0)  # metres on the table
    onto: int | None = None


@dataclass(frozen=True)
class Job:
    name: str
    goal: str
    scene: Scene
    moves: tuple[Move, ...]


def draw(rng: np.random.Generator, level: str) -> Job:
    """A job of that level; every object of its scene has another colour."""
    jobs = JOBS["L3" if level == "L3" else "L1"]
    names = list(jobs)
    name = names[int(rng.integers(len(names)))]
    return jobs[name](rng, name, robot_looks.ENVIRONMENTS[level])


def _placing(rng: np.random.Generator, name: str, environment: robot_looks.Environment) -> Job:
    """Some of the objects go onto the target, in the order said."""
    side = float(rng.choice((-1.0, 1.0)))
    things = _things(rng, environment, side, [rng.choice(list(FORMS)) for _ in range(SLOTS)])
    order = [int(i) for i in rng.permutation(SLOTS)[: rng.integers(1, 4)]]
    scene = _scene(rng, environment, things, name, side)
    where = f"{'in' if name == 'bin' else 'on'} the {name}"
    rest = "".join(f", then the {things[i].name}" for i in order[1:])
    return Job(name, f"Put the {things[order[0]].name} {where}{rest}.", scene, _rows(scene, order))


def _sizes(rng: np.random.Generator, name: str, environment: robot_looks.Environment) -> Job:
    """Three of four cubes go onto the target by size; the words name none of them."""
    side, word = float(rng.choice((-1.0, 1.0))), str(rng.choice(("smallest", "largest")))
    things = _things(rng, environment, side, ["cube"] * SLOTS, rng.permutation(SIZES).tolist())
    order = sorted(range(SLOTS), key=lambda i: things[i].half, reverse=word == "largest")[:3]
    scene = _scene(rng, environment, things, str(rng.choice(("plate", "tray"))), side)
    return Job(name, f"Put the three {word} cubes on the {scene.target}, the {word} first.", scene, _rows(scene, order))


def _stacking(rng: np.random.Generator, name: str, environment: robot_looks.Environment) -> Job:
    """One or two cubes go on top of another."""
    things = _things(rng, environment, float(rng.choice((-1.0, 1.0))), ["cube"] * SLOTS)
    moves = [Move(i + 1, onto=i) for i in range(int(rng.integers(1, 3)))]
    said = [f"the {things[move.what].name} on the {things[move.onto].name}" for move in moves]
    return Job(name, f"Stack {', then '.join(said)}.", _scene(rng, environment, things, None, 1.0), tuple(moves))


JOBS: dict[str, dict[str, Callable[..., Job]]] = {
    "L1": {"plate": _placing, "tray": _placing},  # L2 has the same
    "L3": {"bin": _placing, "stack": _stacking, "sizes": _sizes},
}


def _scene(
    rng: np.random.Generator, environment: robot_looks.Environment, things: tuple[Thing, ...], target: str | None,
    side: float,
) -> Scene:  # fmt: skip
    return Scene(things, target, (0.02, side * TARGET_SIDE), robot_looks.draw(rng, environment))


def _rows(scene: Scene, order: Sequence[int]) -> tuple[Move, ...]:
    """Side by side on the target, the first at either end."""
    x, y = scene.spot
    return tuple(Move(what, (x + along, y)) for what, along in zip(order, SPOTS, strict=False))


def _things(
    rng: np.random.Generator, environment: robot_looks.Environment, side: float, forms: Sequence[str],
    halves: Sequence[float] | None = None,
) -> tuple[Thing, ...]:  # fmt: skip
    """Objects on the part of the table that the target leaves free, far enough from each other."""
    halves = rng.uniform(*HALVES, len(forms)) if halves is None else halves
    colors = [environment.objects[i] for i in rng.permutation(len(environment.objects))[: len(forms)]]
    spots: list[tuple[float, float]] = []
    while len(spots) < len(forms):
        spot = rng.uniform(-0.14, 0.2), -side * rng.uniform(-0.02, 0.27)
        if all(np.hypot(spot[0] - x, spot[1] - y) > APART for x, y in spots):
            spots.append(spot)
        elif rng.random() < 0.02:  # no room left for the last one
            spots.clear()
    return tuple(
        Thing(str(form), *color, float(half), float(x), float(y), float(rng.uniform(0, 2 * np.pi)))
        for form, color, half, (x, y) in zip(forms, colors, halves, spots, strict=True)
    )
