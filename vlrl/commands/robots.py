"""Robots: demonstrations, imitation, simulation."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from vlrl.commands.base import Commands, quiet, takes_changes
from vlrl.types import UserError


def add(commands: Commands) -> None:
    demos = commands.add_parser("demos", help="record demonstrations of a robot's script, for lerobot")
    demos.add_argument("config", help="one whose task is `manipulation`")
    takes_changes(demos)
    demos.add_argument("--episodes", type=int, required=True, metavar="N", help="to keep")
    demos.add_argument("--out", required=True, metavar="DIR", help="a new folder: a LeRobotDataset v3")
    demos.add_argument("--noise", type=float, default=0.0, metavar="X", help="on controls, in halves of the limits' "
                       "width, default 0")  # fmt: skip
    demos.add_argument("--part", choices=("train", "validation", "test"), default="train", help="default %(default)s")
    demos.add_argument("--keep", choices=("success", "all"), default="success", help="default %(default)s")
    demos.add_argument("--seed", type=int, default=0, help="of the noise")
    demos.set_defaults(run=_demos)

    clone = commands.add_parser("clone", help="make a small robot policy that imitates a task's script")
    clone.add_argument("config", help="for example configs/embedded_push.yaml")
    takes_changes(clone)
    clone.set_defaults(run=_clone)

    simulate = commands.add_parser("simulate", help="play a robot policy beside control arms on the same scenes")
    simulate.add_argument("config", help="one whose task is `manipulation`")
    takes_changes(simulate)
    simulate.add_argument("--policy", metavar="DIR", help="a folder, a run folder or a bundled name; default: the "
                          "config's policy.model")  # fmt: skip
    simulate.add_argument("--against", nargs="+", default=[], metavar="ARM", help="expert (the robot's script), "
                          "random, start (the config's policy.model) or another policy's folder")  # fmt: skip
    simulate.add_argument("--episodes", type=int, metavar="N", help="held-out scenes, from the first; default: all")
    simulate.add_argument("--video", metavar="DIR", help="write MP4s of each arm's first episodes there")
    simulate.add_argument("--videos", type=int, metavar="M", help="how many, default 4")
    simulate.add_argument("--out", metavar="DIR", help="for result.json and report.html, default runs/simulate_CONFIG")
    simulate.add_argument("--json", action="store_true", help="print one JSON object, without the episodes")
    simulate.set_defaults(run=_simulate)


def _demos(options: argparse.Namespace) -> int:
    from importlib import import_module

    from vlrl import config as configs
    from vlrl import registry

    config = configs.load(options.config, options.changes)
    task = registry.make_task(config)
    if not hasattr(task, "robot"):
        raise UserError(f"task.name: {config.task.name!r} has no robot: demonstrations are of the task `manipulation`")
    chosen = {name: getattr(options, name) for name in ("episodes", "out", "part", "noise", "keep", "seed")}
    print(f"{import_module('robot.demos').record(task.robot, task.options, ticks=task.ticks, **chosen)}; {options.out}")
    return 0


def _clone(options: argparse.Namespace) -> int:
    quiet()
    from vlrl.clone import main as clone

    return clone(options.config, options.changes)


def _simulate(options: argparse.Namespace) -> int:
    from vlrl import config as configs

    config = configs.load(options.config, options.changes)
    quiet()
    from vlrl.simulation.run import Plan, simulate
    from vlrl.simulation.table import text

    out = Path(options.out or f"runs/simulate_{Path(options.config).stem}")
    video = Path(options.video) if options.video else None
    chosen = {name: getattr(options, name) for name in ("policy", "against", "episodes", "videos")}
    result = simulate(config, Plan(out, video=video, **chosen))
    if options.json:
        print(json.dumps({name: value for name, value in result.items() if name != "episodes"}, allow_nan=False))
    else:
        print(f"{text(result)}\n\n{out / 'report.html'}, {out / 'result.json'}")
    return 0
