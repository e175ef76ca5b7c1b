"""Several stages of training, and a model's own right answers as demonstrations."""

from __future__ import annotations

import argparse

from vlrl.commands.base import Commands, quiet, takes_changes
from vlrl.types import UserError


def add(commands: Commands) -> None:
    stages = commands.add_parser("stages", help="supervised starts, RL, chosen samples: several stages of one YAML")
    stages.add_argument("config", help="for example configs/stages/lmm_r1.yaml")
    takes_changes(stages, "stages=NAME,NAME to run these alone; key=value of the file; NAME.key.path=value of what a "
                          "stage runs")  # fmt: skip
    stages.add_argument("--dry-run", action="store_true", help="check everything, say what would run")
    stages.set_defaults(run=_stages)

    best = commands.add_parser("best-of", help="answer training samples several times, keep right answers")
    best.add_argument("config", help="as for `vlrl train`")
    takes_changes(best)
    best.add_argument("--model", metavar="DIR", help="a model folder, a run folder or a hub name")
    best.add_argument("--out", required=True, metavar="DIR", help="a new folder, for `lessons: [{episodes: DIR}]`")
    best.add_argument("--samples", type=int, metavar="N", help="drawn at random; default: the whole training split")
    best.add_argument("--tries", type=int, default=8, metavar="N", help="answers to each, default %(default)s")
    best.add_argument("--keep", choices=("shortest", "one", "all"), default="shortest",
                      help="of a sample's right ones, default %(default)s")  # fmt: skip
    best.set_defaults(run=_best_of)


def _stages(options: argparse.Namespace) -> int:
    only, changes = _only(options.changes)
    from vlrl.stages.plan import plan
    from vlrl.stages.told import told

    planned = plan(options.config, changes)
    from vlrl.stages.run import chosen

    print(told(planned, chosen(planned, only)), flush=True)
    if not options.dry_run:
        from vlrl.stages.report import table
        from vlrl.stages.run import run

        print(f"\n{table(run(planned, only))}\n\n{planned.out / 'report.md'}")
    return 0


def _only(changes: list[str]) -> tuple[list[str], list[str]]:
    """The stages that `stages=` names, and the other changes."""
    named = [change for change in changes if change.startswith("stages=")]
    only = [name.strip() for change in named for name in change.removeprefix("stages=").split(",")]
    if named and not all(only):
        raise UserError(f"{named[0]}: write stages=NAME or stages=NAME,NAME")
    return only, [change for change in changes if change not in named]


def _best_of(options: argparse.Namespace) -> int:
    from vlrl import config as configs
    from vlrl.paths import check_paths

    for name in ("samples", "tries"):
        if (given := getattr(options, name)) is not None and given < 1:
            raise UserError(f"--{name} {given}: at least 1")
    changes = [*options.changes, *([f"policy.model={options.model}"] if options.model else [])]
    config = configs.load(options.config, changes)
    quiet()
    check_paths(config)
    from vlrl.stages.best_of import best_of

    wanted = {"samples": options.samples, "tries": options.tries, "keep": options.keep}
    print(f"{best_of(config, out=options.out, **wanted)}; {options.out}")
    return 0
