"""Ticks a second of a simulated robot: a plain loop, workers of `robot.workers`, gymnasium's AsyncVectorEnv.

    python bench/bridge.py simulate                      # the table, about two minutes
    python bench/bridge.py simulate --robot lift         # robosuite's Lift, about six
    python bench/bridge.py simulate --workers 1 2 --ticks 8000 --json simulate.json

Every arm plays the same scenes with the same controls; `pixels` takes a picture of 64 x 64 when a policy would look:
once a chunk, or in gymnasium, which knows no chunks, once a tick. Wall clock, since the arms differ in processes.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import numpy as np

from robot.env import RobotEnv
from robot.types import Robot
from robot.workers import RobotPool, worker_find

EPISODE = 80  # ticks
CHUNK = 8


@dataclass(frozen=True)
class Simulated:
    """A robot's class and options, and those that give it a camera."""

    name: str
    options: Mapping[str, Any]
    camera: Mapping[str, Any]
    ticks: int  # of each arm and repeat

    def made(self, pixels: bool) -> Robot:
        return worker_find(self.name)(**self.chosen(pixels))

    def chosen(self, pixels: bool) -> dict[str, Any]:
        return {**self.options, **(self.camera if pixels else {})}


LIFT = {"task": "Lift", "controller": "OSC_POSITION", "timestep": 0.005}
ROBOTS = {
    "tabletop": Simulated("robot.sim.tabletop:Tabletop", {"job": "push"}, {"camera": [64, 64]}, 1600),
    "lift": Simulated("robot.sim.robosuite:RobosuiteRobot", LIFT, {"cameras": ["agentview"], "size": [64, 64]}, 640),
}


def control_of(robot: Robot, seed: int) -> np.ndarray:
    """float32 [EPISODE, A]: small ones, so that no episode ends early."""
    spread = robot.controls.high / 4
    return np.random.default_rng(seed).uniform(-spread, spread, (EPISODE, len(spread))).astype(np.float32)


def play(environment: object, controls: np.ndarray, chunk: int) -> None:
    environment.reset()
    for start in range(0, EPISODE, chunk):
        step = environment.step(controls[start : start + chunk])
        if step.terminated or step.truncated:
            break
    environment.close()


def plain(chosen: Simulated, pixels: bool, chunk: int) -> Callable[[int], None]:
    """Episodes one after the other, in this process."""
    robot = chosen.made(pixels)
    return lambda seed: play(Kept(robot, seed, ticks=EPISODE + 1), control_of(robot, seed), chunk)


class Kept(RobotEnv):
    """Leaves the robot to the next episode, as a pool does."""

    def close(self) -> None:
        pass


def pooled(chosen: Simulated, pixels: bool, chunk: int, workers: int, seeds: Sequence[int]) -> float:
    """Ticks a second over all workers, their start left out."""
    pool, robot = RobotPool(chosen.name, chosen.chosen(pixels), size=workers), chosen.made(False)

    def one(seed: int) -> None:
        play(pool.environment(seed, ticks=EPISODE + 1), control_of(robot, seed), chunk)

    with ThreadPoolExecutor(workers) as threads:
        warm = [pool.environment(0, ticks=9) for _ in range(workers)]
        list(threads.map(lambda each: each.reset(), warm))
        for each in warm:
            each.close()
        started = time.perf_counter()
        list(threads.map(one, seeds))
        seconds = time.perf_counter() - started
    pool.close()
    return len(seeds) * EPISODE / seconds


def gymnasium_async(chosen: Simulated, pixels: bool, workers: int, seeds: Sequence[int]) -> float:
    """The same robot as a Gymnasium environment in `AsyncVectorEnv` with shared memory."""
    from gymnasium.vector import AsyncVectorEnv
    from simulate_gymnasium import Environment

    make = partial(Environment, chosen.name, chosen.chosen(pixels))
    many = AsyncVectorEnv([make] * workers, shared_memory=True, context="forkserver")
    robot = chosen.made(False)
    many.reset(seed=0)
    started = time.perf_counter()
    for first in range(0, len(seeds), workers):
        many.reset(seed=list(range(first, first + workers)))
        for controls in np.stack([control_of(robot, first + i) for i in range(workers)], axis=1):
            many.step(controls)
    seconds = time.perf_counter() - started
    many.close()
    return len(seeds) * EPISODE / seconds


def timed(episode: Callable[[int], None], seeds: Sequence[int]) -> float:
    episode(0)  # compiles, opens the renderer
    started = time.perf_counter()
    for seed in seeds:
        episode(seed)
    return len(seeds) * EPISODE / (time.perf_counter() - started)


Measure = Callable[[bool], float]  # with pictures or without -> ticks a second


def arms(chosen: Simulated, workers: Sequence[int], seeds: Sequence[int]) -> dict[str, Measure]:
    """What is compared, by name."""
    found: dict[str, Measure] = {
        "plain loop, each tick": lambda pixels: timed(plain(chosen, pixels, 1), seeds),
        f"plain loop, chunks of {CHUNK}": lambda pixels: timed(plain(chosen, pixels, CHUNK), seeds),
    }
    for n in workers:
        found[f"pool of {n}, each tick"] = lambda pixels, n=n: pooled(chosen, pixels, 1, n, seeds)
        found[f"pool of {n}, chunks of {CHUNK}"] = lambda pixels, n=n: pooled(chosen, pixels, CHUNK, n, seeds)
        found[f"AsyncVectorEnv of {n}"] = lambda pixels, n=n: gymnasium_async(chosen, pixels, n, seeds)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--robot", choices=ROBOTS, default="tabletop")
    parser.add_argument("--workers", type=int, nargs="*", default=[1, 2, 4])
    parser.add_argument("--ticks", type=int, help="of each arm and repeat")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json")
    given = parser.parse_args()
    robot = ROBOTS[given.robot]
    chosen = arms(robot, given.workers, range(1, 1 + max(1, (given.ticks or robot.ticks) // EPISODE)))
    rates: dict[tuple[str, str], list[float]] = {}
    for _ in range(given.repeats):  # arms alternate, so that a slow minute hits all of them
        for name, measure in chosen.items():
            for kind in ("state", "pixels"):
                rates.setdefault((name, kind), []).append(measure(kind == "pixels"))
    found = {key: median(values) for key, values in rates.items()}
    print("| arm | state, ticks/s | ratio | pixels, ticks/s | ratio |\n| --- | --- | --- | --- | --- |")
    base = next(iter(chosen))
    for name in chosen:
        cells = (f"{found[name, k]:,.0f} | {found[name, k] / found[base, k]:.2f}x" for k in ("state", "pixels"))
        print(f"| {name} | {' | '.join(cells)} |")
    if given.json:
        with open(given.json, "w", encoding="utf-8") as file:
            json.dump({f"{name}, {kind}": value for (name, kind), value in found.items()}, file, indent=1)


if __name__ == "__main__":
    main()
