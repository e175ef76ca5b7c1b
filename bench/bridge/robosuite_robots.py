"""robosuite's robots: how often the scripted experts succeed, and what a tick costs. The tables of docs/robosuite.md.

python bench/bridge.py robosuite_robots [--episodes 20]        # needs pip install 'vlrl[sim]'
"""

from __future__ import annotations

import argparse
import time
from statistics import median

import numpy as np

from robot.env import RobotEnv, noisy
from robot.sim.robosuite import RobosuiteRobot, adapted, expert

LIMITS = {"Lift": 100, "Stack": 200, "PickPlaceCan": 250}  # ticks
FIRST = 10_000  # scene: of the validation range
CHUNK = 8


def episode(robot: RobosuiteRobot, task: str, seed: int, noise: float, rng: np.random.Generator) -> tuple[bool, int]:
    """Whether the expert did the job, and after how many ticks."""
    act, play = expert(task, robot.names), RobotEnv(robot, seed, ticks=LIMITS[task])
    shown, ticks = play.reset(), 0
    while True:
        step = play.step(noisy(rng, robot.controls, adapted(robot.controls, act(shown.state)), noise))
        shown, ticks = step.observation, ticks + 1
        if step.terminated or step.truncated:
            return bool(step.info.get("success")), ticks


def experts(episodes: int) -> None:
    print("| task | noise | success | ticks, median (most) | seconds an episode |\n| --- | --- | --- | --- | --- |")
    for task in LIMITS:
        robot = RobosuiteRobot(task=task)
        robot.reset(0)
        robot.send_action(np.zeros(len(robot.controls)))  # the first tick on a machine compiles for half a minute
        for noise in (0.0, 0.2):
            rng, begun = np.random.default_rng(0), time.perf_counter()
            played = [episode(robot, task, FIRST + i, noise, rng) for i in range(episodes)]
            spent, ticks = (time.perf_counter() - begun) / episodes, [n for won, n in played if won] or [0]
            won = sum(won for won, _ in played)
            print(
                f"| {task} | {noise:g} | {won}/{episodes} | {median(ticks):g} ({max(ticks)}) | {spent:.2f} |",
                flush=True,
            )
        robot.close()


def speed(timestep: float, cameras: list[str]) -> float:
    """Ticks a second of Lift in chunks, looked at once a chunk."""
    robot, rng = RobosuiteRobot(task="Lift", timestep=timestep, cameras=cameras), np.random.default_rng(0)
    spent, ticks = 0.0, 0
    for seed in range(5):
        robot.reset(seed)
        robot.get_observation()  # the first picture makes the renderer
        for _ in range(CHUNK):
            controls = rng.uniform(robot.controls.low, robot.controls.high, (CHUNK, len(robot.controls)))
            begun = time.perf_counter()
            robot.get_observation()
            for control in controls:
                robot.send_action(control)
                robot.status()
            spent, ticks = spent + time.perf_counter() - begun, ticks + CHUNK
    robot.close()
    return ticks / spent


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--episodes", type=int, default=20)
    experts(arguments.parse_args().episodes)
    print("\n| physics step | state alone, ticks/s | with a 64x64 picture a chunk |\n| --- | --- | --- |")
    for timestep in (0.002, 0.005):
        print(f"| {timestep} s | {speed(timestep, []):.0f} | {speed(timestep, ['agentview']):.0f} |", flush=True)


if __name__ == "__main__":
    main()
