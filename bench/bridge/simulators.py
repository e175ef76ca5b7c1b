"""Ticks a second of the simulated robots, one thread, in chunks of 8. The table of docs/simulators.md.

python bench/bridge.py simulators [--seconds 4] [--only robosuite] # needs pip install 'vlrl[sims]'; those that are
missing are left out, robosuite 1.4 is installed into an environment of its own
"""

from __future__ import annotations

import argparse
import sys
import time
from importlib import import_module
from typing import Any

import numpy as np
import robosuite14

from robot.registry import resolve
from vlrl.types import UserError

CHUNK = 8
ANT = {"id": "Ant-v5", "max_episode_steps": -1}
ARMS = {  # name -> robot, its options, and those that add one picture of 64 x 64, or two
    "tabletop push": ("tabletop", {"job": "push"}, {"camera": (64, 64)}),
    "pusht pose": ("pusht", {}, {"camera": (64, 64)}),
    "aloha transfer_cube": ("aloha", {}, {"cameras": ["top"]}),
    "hil pick_cube": ("hil", {}, {"camera": (64, 64)}),
    "metaworld reach-v3": ("metaworld", {}, {"cameras": ["corner2"]}),
    "metaworld pick-place-v3": ("metaworld", {"task": "pick-place-v3"}, {"cameras": ["corner2"]}),
    "robosuite Lift": ("robosuite", {}, {"cameras": ["agentview"]}),
    "gym Ant-v5": (
        "gym",
        {"id": "Ant-v5", "success": None},
        {"images": ["render"], "options": {"width": 64, "height": 64}},
    ),
    "remote gym Ant-v5": (
        "remote",
        {"python": sys.executable, "make": "gymnasium:make", "options": ANT, "success": None},
        {"images": ["render"], "options": {**ANT, "width": 64, "height": 64, "render_mode": "rgb_array"}},
    ),
    "remote robosuite 1.4 Lift": (
        "remote",
        {"python": "robosuite14", "make": f"{robosuite14.__file__}:make", "state": robosuite14.STATE},
        {"images": ["render"]},
    ),
}


def measure(robot: Any, seconds: float) -> tuple[float, float]:
    """Seconds of a home, and ticks a second with one look a chunk of random controls."""
    rng, homes, spent, ticks, seed = np.random.default_rng(0), [], 0.0, 0, 0
    while spent < seconds:
        begun = time.perf_counter()
        robot.reset(seed)
        homes.append(time.perf_counter() - begun)
        robot.get_observation()  # the first picture makes the renderer
        for _ in range(CHUNK):
            controls = rng.uniform(robot.controls.low, robot.controls.high, (CHUNK, len(robot.controls)))
            begun = time.perf_counter()
            robot.get_observation()
            for control in controls:
                robot.send_action(control)
                robot.status()
            spent, ticks = spent + time.perf_counter() - begun, ticks + CHUNK
            if spent >= seconds:
                break
        seed += 1
    robot.close()
    return float(np.median(homes)), ticks / spent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each measurement")
    parser.add_argument("--only", default="", help="those with this word in their name")
    chosen = parser.parse_args()
    print("| simulator | home, ms | state alone, ticks/s | with a 64x64 picture a chunk |\n| --- | --- | --- | --- |")
    for name, (short, options, pictures) in ARMS.items():
        if chosen.only not in name:
            continue
        if options.get("python") == "robosuite14":
            options = {**options, "python": robosuite14.python()}
        module, _, attribute = resolve(short).partition(":")
        make = getattr(import_module(module), attribute)
        try:
            home, state = measure(make(**options), chosen.seconds)
            drawn = measure(make(**{**options, **pictures}), chosen.seconds)[1]
            print(f"| {name} | {1000 * home:.1f} | {state:,.0f} | {drawn:,.0f} |", flush=True)
        except UserError as error:
            print(f"| {name} | {error} | | |")


if __name__ == "__main__":
    main()
