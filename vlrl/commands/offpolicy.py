"""Learn a robot's task off-policy."""

from __future__ import annotations

import argparse
from pathlib import Path

from vlrl.commands.base import Commands, find_first_change, quiet, takes_changes, takes_resume
from vlrl.strict import Change
from vlrl.types import UserError


def add(commands: Commands) -> None:
    learn = commands.add_parser("offpolicy", help="learn a robot's task from what was given and played (RLPD, SAC)")
    learn.add_argument("config", nargs="?", help="a YAML file, for example configs/offpolicy_push.yaml")
    takes_changes(learn)
    takes_resume(learn)
    learn.set_defaults(run=_offpolicy)


def _offpolicy(options: argparse.Namespace) -> int:
    from vlrl.offpolicy import config as configs

    own: list[Change] = [{"out": options.resume}, *find_first_change(options)] if options.resume else []
    path = Path(options.resume) / "config.yaml" if options.resume else options.config
    if path is None:
        raise UserError("name a config, for example: vlrl offpolicy configs/offpolicy_push.yaml")
    if options.resume and not path.is_file():
        raise UserError(f"{options.resume} is no run folder: it holds no config.yaml")
    config = configs.load(path, [*own, *options.changes])
    quiet()
    from vlrl.locks import hold_folder
    from vlrl.offpolicy.trainer import OffPolicyTrainer

    with hold_folder(Path(config.out)):
        summary = OffPolicyTrainer(config, bool(options.resume), options.allow_changes).run()
    before, after = summary["before"], summary["after"]
    print(
        f"{summary['metric']} {before['value']:.3f} [{before['low']:.3f}, {before['high']:.3f}] -> "
        f"{after['value']:.3f} [{after['low']:.3f}, {after['high']:.3f}] on {after['n']} held-out samples after "
        f"{summary['ticks']} ticks and {summary['updates']} updates, {summary['wall_s']:.0f} s, "
        f"{summary['cpu_s']:.0f} CPU-s; report: {Path(config.out) / 'report.html'}"
    )
    return 0
