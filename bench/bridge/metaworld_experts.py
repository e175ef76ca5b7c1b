"""Meta-World's scripts on held-out scenes: how often they succeed, and what a tick costs. Tables of docs/simulators.md.

python bench/bridge.py metaworld_experts [--episodes 20] [--ticks 500] [--tasks reach-v3 ...] # pip install 'vlrl[sims]'
"""

from __future__ import annotations

import argparse
import time
from statistics import median

from robot.demos import checksum, seeds
from robot.env import RobotEnv
from robot.sim.metaworld import INSTRUCTIONS, MetaWorldRobot


def episode(robot: MetaWorldRobot, seed: int, limit: int) -> tuple[bool, int]:
    """Whether the script did the job, and after how many ticks."""
    play, ticks = RobotEnv(robot, seed, ticks=limit), 0
    play.reset()
    while True:
        step, ticks = play.step(robot.expert()), ticks + 1
        if step.terminated or step.truncated:
            return bool(step.info.get("success")), ticks


def row(task: str, episodes: int, limit: int) -> str:
    robot, scenes = MetaWorldRobot(task=task), seeds("test", episodes)
    begun = time.perf_counter()
    played = [episode(robot, seed, limit) for seed in scenes]
    spent = time.perf_counter() - begun
    ended = [ticks for won, ticks in played if won] or [0]
    rate = sum(ticks for _, ticks in played) / spent
    return (
        f"| {task} | {sum(won for won, _ in played)}/{episodes} | {median(ended):g} ({max(ended)}) "
        f"| {rate:.0f} | {checksum(robot, scenes)} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=20)
    parser.add_argument("--ticks", type=int, default=500)
    parser.add_argument("--tasks", nargs="+", default=list(INSTRUCTIONS))
    given = parser.parse_args()
    print("| task | success | ticks, median (most) | ticks/s, script and looking included | scenes |")
    print("| --- | --- | --- | --- | --- |")
    for task in given.tasks:
        print(row(task, given.episodes, given.ticks), flush=True)


if __name__ == "__main__":
    main()
