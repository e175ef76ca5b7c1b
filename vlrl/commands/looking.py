"""What there is, and what this machine can do."""

from __future__ import annotations

import argparse
from pathlib import Path

from vlrl.commands.base import Commands


def add(commands: Commands) -> None:
    listing = commands.add_parser("list", help="tasks, rewards, methods, policies, robots, configs")
    listing.add_argument("kind", nargs="?", help="show one kind only")
    listing.set_defaults(run=_list)

    view = commands.add_parser("view", help="runs side by side in a browser, live while they train")
    view.add_argument("runs", nargs="+", metavar="RUN", type=Path, help="a run folder, or a folder of runs")
    view.add_argument("--port", type=int, default=8300, help="on 127.0.0.1, default 8300; 0: any free one")
    view.set_defaults(run=_view)

    doctor = commands.add_parser("doctor", help="versions, devices, what is missing and how to get it")
    doctor.add_argument("--json", action="store_true")
    doctor.set_defaults(run=_doctor)


def _list(options: argparse.Namespace) -> int:
    from vlrl.listing import listing

    print(listing(options.kind))
    return 0


def _view(options: argparse.Namespace) -> int:
    from vlrl.report.serve import view

    return view(options.runs, options.port, lambda said: print(said, flush=True))


def _doctor(options: argparse.Namespace) -> int:
    from vlrl.doctor import main as doctor

    return doctor(json=options.json)
