"""Robots that are deployed: the server, the loop, the emulator, trials, and learning from what was recorded."""

from __future__ import annotations

import argparse
from importlib import import_module
from pathlib import Path

from vlrl.commands.base import Commands, quiet, takes_changes

EXITS = """exit codes; the robot is left safe on all of them:
  0    done
  2    a mistake that you can mend, named in one line
  3    the governor stopped the robot
  4    the robot or its bus was lost
  5    the policy server was lost
  6    emergency stop
  7    the motion process died
  129, 130, 143   SIGHUP, Ctrl-C, SIGTERM: the run ends in order, with its report. Ctrl-C makes the data set first;
       after the others the next run does. A signal while the data set is made ends that; recordings are kept.
       A second signal during the run ends it at once, with the first one's code and without a report
"""


def add(commands: Commands) -> None:
    for subject in (_add_serve, _add_deploy, _add_emulate, _add_trial, _add_learning):
        subject(commands)


def _add_serve(commands: Commands) -> None:
    serve = commands.add_parser("serve", help="put a robot policy behind a port")
    serve.add_argument("--policy", metavar="DIR", help="a folder, a run folder, a bundled name or a hub name")
    serve.add_argument("--config", metavar="YAML", help="what the policy was trained with; default: its run folder's")
    serve.add_argument("--hz", type=float, metavar="HZ", help="actions a second; default: as the policy's folder says")
    serve.add_argument("--host", default="127.0.0.1", help="default %(default)s; others need a token")
    serve.add_argument("--port", type=int, default=8765, help="default %(default)s; 0: any that is free")
    serve.add_argument("--token-file", metavar="FILE", help="the token that clients must show")
    serve.add_argument("--new-token", metavar="FILE", help="write a new token there, and end")
    serve.add_argument("--tls-cert", metavar="FILE")
    serve.add_argument("--tls-key", metavar="FILE")
    serve.add_argument("--watch", action="store_true", help="load newer weights of the folder when they appear")
    serve.add_argument("--max-clients", type=int, metavar="N")
    serve.add_argument("--max-batch", type=int, metavar="N", help="observations of one inference")
    serve.add_argument("--openpi-key", action="append", metavar="PART=KEY", help="what openpi's clients call it")
    serve.set_defaults(run=_serve)


def _add_deploy(commands: Commands) -> None:
    deploy = commands.add_parser("deploy", help="run a served policy on a robot", epilog=EXITS,
                                 formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    deploy.add_argument("config", help="for example configs/deploy/so101.yaml")
    takes_changes(deploy)
    deploy.add_argument("--dry-run", action="store_true", help="open and check everything, send nothing")
    deploy.add_argument("--out", metavar="DIR", help="for result.json and report.html, default runs/deploy_CONFIG")
    deploy.set_defaults(run=_robot("deploy.command"))

    replay = commands.add_parser("replay", help="play a recorded episode's actions on a robot")
    replay.add_argument("dataset", help="a LeRobotDataset v3, as `vlrl deploy` records")
    replay.add_argument("config", help="as for `vlrl deploy`")
    takes_changes(replay)
    replay.add_argument("--episode", type=int, default=0, metavar="N", help="from 0, default %(default)s")
    replay.add_argument("--json", action="store_true", help="print one JSON object")
    replay.set_defaults(run=_robot("deploy.command", "replay_main"))


def _add_emulate(commands: Commands) -> None:
    emulate = commands.add_parser("emulate", help="an emulated arm that lerobot's own driver talks to")
    emulate.add_argument("robot", choices=("so101",))
    emulate.add_argument("--camera", action="append", default=[], metavar="NAME=WxH[:PORT]",
                         help="a camera, front or top, for example front=640x480:5555; may be given again")  # fmt: skip
    emulate.add_argument("--fps", type=float, default=30.0, help="pictures a second of each camera")
    emulate.add_argument("--job", default="touch", help="what the scene is for, default %(default)s")
    emulate.add_argument("--seed", type=int, default=0, help="of the first scene")
    emulate.add_argument("--link", type=Path, metavar="DIR", help="a folder for links to both ports")
    emulate.add_argument("--calibration", type=Path, metavar="DIR", help="a folder for lerobot's calibration files")
    emulate.add_argument("--id", default="emulated", help="their name: ID.json, and ID_leader.json")
    emulate.add_argument("--uncalibrated", action="store_true", help="servos as they left the factory")
    emulate.set_defaults(run=_robot("emulator.command"))


def _add_trial(commands: Commands) -> None:
    trial = commands.add_parser("trial", help="compare policies on a robot: random order, blind, sequential test")
    trial.add_argument("config", nargs="?", help="see docs/trial.md")
    takes_changes(trial)
    trial.add_argument("--manual", action="store_true", help="only say which policy's turn it is, under blind names")
    trial.add_argument("--resume", metavar="DIR", help="go on with a trial")
    trial.set_defaults(run=_robot("trial.command"))


def _add_learning(commands: Commands) -> None:
    learn = commands.add_parser("learn", help="go on learning from episodes and corrections as they are recorded")
    learn.add_argument("config", help="see docs/hil.md")
    takes_changes(learn)
    learn.set_defaults(run=_learn)

    reward = commands.add_parser("reward-model", help="make a success classifier from recorded episodes")
    reward.add_argument("config", help="for example configs/reward_so101.yaml")
    takes_changes(reward)
    reward.set_defaults(run=_reward_model)


def _robot(module: str, function: str = "main"):
    """A command that the package `robot` has itself: it loads neither the trainer nor torch."""
    return lambda options: getattr(import_module(f"robot.{module}"), function)(options)


def _serve(options: argparse.Namespace) -> int:
    quiet()
    return import_module("vlrl.serve").main(options)


def _learn(options: argparse.Namespace) -> int:
    quiet()
    return import_module("vlrl.learning.command").main(options.config, options.changes)


def _reward_model(options: argparse.Namespace) -> int:
    quiet()
    return import_module("vlrl.learning.reward_command").main(options.config, options.changes)
