"""Ticks a second of the simulated table: a plain loop, workers of `robot.pool`, gymnasium's AsyncVectorEnv.

    python bench/simulate.py                      # a Markdown table, about a minute
    python bench/simulate.py --workers 1 2 4 --ticks 8000 --json simulate.json

Every arm plays the same scenes with the same controls; `pixels` takes a picture of 64 x 64 when a policy would look:
once a chunk, or in gymnasium, which knows no chunks, once a tick. Wall clock, since the arms differ in processes.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from statistics import median

import numpy as np

from robot.play import Play
from robot.pool import Pool
from robot.tabletop import Tabletop

EPISODE = 80  # ticks
CHUNK = 8
JOB = "push"


def control_of(robot: Tabletop, seed: int) -> np.ndarray:
    """float32 [EPISODE, A]: of small speeds, so that no episode ends early."""
    spread = robot.controls.high / 4
    return np.random.default_rng(seed).uniform(-spread, spread, (EPISODE, len(spread))).astype(np.float32)


def play(environment: object, controls: np.ndarray, chunk: int) -> None:
    environment.reset()
    for start in range(0, EPISODE, chunk):
        step = environment.step(controls[start : start + chunk])
        if step.done or step.cut:
            break
    environment.close()


def plain(camera: tuple[int, int] | None, chunk: int) -> Callable[[int], None]:
    """Episodes one after the other, in this process."""
    robot = Tabletop(job=JOB, camera=camera)
    return lambda seed: play(Kept(robot, seed, ticks=EPISODE + 1), control_of(robot, seed), chunk)


class Kept(Play):
    """Leaves the robot to the next episode, as a pool does."""

    def close(self) -> None:
        pass


def pooled(camera: tuple[int, int] | None, chunk: int, workers: int, seeds: Sequence[int]) -> float:
    """Ticks a second over all workers, their start left out."""
    pool, robot = Pool("robot.tabletop:Tabletop", {"job": JOB, "camera": camera}, size=workers), Tabletop(job=JOB)

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


def gymnasium_async(camera: tuple[int, int] | None, workers: int, seeds: Sequence[int]) -> float:
    """The same table as a Gymnasium environment in `AsyncVectorEnv` with shared memory."""
    from gymnasium.vector import AsyncVectorEnv

    from bench.simulate_gymnasium import Table

    many = AsyncVectorEnv([lambda: Table(JOB, camera)] * workers, shared_memory=True, context="forkserver")
    robot = Tabletop(job=JOB)
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


def arms(workers: Sequence[int], seeds: Sequence[int]) -> dict[str, Callable[[tuple[int, int] | None], float]]:
    """Name of an arm -> its ticks a second, with a camera or without."""
    found = {
        "plain loop, each tick": lambda camera: timed(plain(camera, 1), seeds),
        f"plain loop, chunks of {CHUNK}": lambda camera: timed(plain(camera, CHUNK), seeds),
    }
    for n in workers:
        found[f"pool of {n}, each tick"] = lambda camera, n=n: pooled(camera, 1, n, seeds)
        found[f"pool of {n}, chunks of {CHUNK}"] = lambda camera, n=n: pooled(camera, CHUNK, n, seeds)
        found[f"AsyncVectorEnv of {n}"] = lambda camera, n=n: gymnasium_async(camera, n, seeds)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--ticks", type=int, default=1600, help="of each arm and repeat")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json")
    given = parser.parse_args()
    chosen = arms(given.workers, range(1, 1 + max(1, given.ticks // EPISODE)))
    rates: dict[tuple[str, str], list[float]] = {}
    for _ in range(given.repeats):  # arms alternate, so that a slow minute hits all of them
        for name, measure in chosen.items():
            for kind, camera in (("state", None), ("pixels", (64, 64))):
                rates.setdefault((name, kind), []).append(measure(camera))
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
