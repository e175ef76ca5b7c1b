"""What there is, and what this machine can do."""

from __future__ import annotations

import argparse

from vlrl.commands.base import Commands


def add(commands: Commands) -> None:
    listing = commands.add_parser("list", help="tasks, rewards, methods, policies, robots")
    listing.add_argument("kind", nargs="?", help="show one kind only")
    listing.set_defaults(run=_list)

    doctor = commands.add_parser("doctor", help="versions, devices, what is missing and how to get it")
    doctor.add_argument("--json", action="store_true")
    doctor.set_defaults(run=_doctor)


def _list(options: argparse.Namespace) -> int:
    from vlrl.listing import listing

    print(listing(options.kind))
    return 0


def _doctor(options: argparse.Namespace) -> int:
    from vlrl.doctor import main as doctor

    return doctor(json=options.json)
