"""Learn a reward from a judge's preferences, and what states are worth from transitions without actions."""

from __future__ import annotations

import argparse

from vlrl.commands.base import Commands, quiet, takes_changes


def add(commands: Commands) -> None:
    learn = commands.add_parser("preferences", help="learn a reward from what a judge (a VLM) prefers (RL-VLM-F)")
    learn.add_argument("config", help="a YAML file, for example configs/preferences_push.yaml")
    takes_changes(learn)
    learn.set_defaults(run=_preferences)
    prepare = commands.add_parser("pretrain", help="learn what states lead to, before any reward (ICVF, V-PTR)")
    prepare.add_argument("config", help="a YAML file: docs/offpolicy.md")
    takes_changes(prepare)
    prepare.set_defaults(run=_pretrain)


def _preferences(options: argparse.Namespace) -> int:
    from vlrl.preferences import config as configs

    config = configs.load(options.config, options.changes)
    quiet()
    from vlrl.preferences.command import main

    return main(config)


def _pretrain(options: argparse.Namespace) -> int:
    from vlrl.offpolicy import pretrain_config as configs

    config = configs.load(options.config, options.changes)
    quiet()
    from vlrl.offpolicy.pretrain import main

    return main(config)
