"""Train, evaluate, and see what a configuration says."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import TYPE_CHECKING

from vlrl import api
from vlrl.bundled import CONFIGS
from vlrl.commands.base import Commands, find_first_change, quiet, takes_changes, takes_resume
from vlrl.parallel import here
from vlrl.types import UserError

if TYPE_CHECKING:
    from vlrl.config import Config


def add(commands: Commands) -> None:
    train = commands.add_parser("train", help="train a policy from a YAML")
    train.add_argument(
        "config", nargs="?", help="a YAML file, or a name of `vlrl list configs`, for example gui_grounding"
    )
    takes_changes(train)
    takes_resume(train)
    train.set_defaults(run=_train)

    evaluate = commands.add_parser("eval", help="greedy accuracy of a model on a config's held-out samples")
    evaluate.add_argument("config", help="as for `vlrl train`")
    takes_changes(evaluate)
    evaluate.add_argument("--model", metavar="DIR", help="a model folder, a run folder or a hub name")
    evaluate.add_argument("--json", action="store_true", help="print one JSON object")
    evaluate.add_argument("--report", metavar="FILE", help="write a page with the answers: an .html file, or a folder")
    evaluate.set_defaults(run=_eval)

    warm = commands.add_parser("warmstart", help="build and train a tiny model on gold answers")
    warm.add_argument("config", help="for example configs/embedded.yaml")
    takes_changes(warm)
    warm.set_defaults(run=_warmstart)

    compare = commands.add_parser("compare", help="several recipes over one task at equal cost, with a test")
    compare.add_argument("config", help="for example configs/compare/single_vs_group.yaml")
    takes_changes(compare)
    compare.add_argument("--plan", action="store_true", help="only say what is equal and what is not")
    compare.set_defaults(run=_compare)

    show = commands.add_parser("show", help="the fully resolved config")
    show.add_argument("config", help="as for `vlrl train`")
    takes_changes(show)
    show.set_defaults(run=_show)

    demo = commands.add_parser("demo", help="train the embedded model on GUI grounding, evaluate, report")
    takes_changes(demo)
    demo.set_defaults(run=_demo)


def _train(options: argparse.Namespace) -> int:
    if options.resume:
        changes = [*find_first_change(options), *options.changes]
        return _told(lambda: api.resume(options.resume, *changes, allow_changes=options.allow_changes))
    if options.allow_changes:
        raise UserError("--allow-changes goes with --resume")
    if not options.config:
        raise UserError("name a config, for example: vlrl train configs/gui_grounding.yaml")
    return _run(api.load_config(options.config, *options.changes))


def _eval(options: argparse.Namespace) -> int:
    changes = [*options.changes, *([f"policy.model={options.model}"] if options.model else [])]
    config = api.load_config(options.config, *changes)
    here().join()
    page = None
    if options.report:
        from vlrl.report.evaluation import target, write_evaluation

        page = target(options.report)  # a mistake in it is said before the work
    result, policy, task = api.evaluated(config)
    measured = vars(result.accuracy)
    if page:
        write_evaluation(page, result, policy, config, bad_rows=len(task.bad_rows))
    if not here().main:
        return 0
    if options.json:
        extra = {"reward": result.reward, "parts": result.parts, "parse_fail": result.parse_fail}
        print(json.dumps({"task": config.task.name, "model": config.policy.model, "metric": "accuracy",
                          **measured, **extra, "bad_rows": len(task.bad_rows), "metrics": result.metrics,
                          **result.facts}))  # fmt: skip
    else:
        print(f"accuracy {measured['value']:.3f} [{measured['low']:.3f}, {measured['high']:.3f}] "
              f"on {measured['n']} samples; reward {result.reward:.3f}")  # fmt: skip
        width = max(map(len, result.metrics), default=0)
        for name, value in result.metrics.items():
            print(f"  {name:{width}}  {value:.3f}")
        if page:
            print(f"report: {page}")
    return 0


def _warmstart(options: argparse.Namespace) -> int:
    quiet()
    from vlrl.warmstart import main as warmstart

    return warmstart(options.config, options.changes)


def _compare(options: argparse.Namespace) -> int:
    from vlrl.compare.plan import plan

    planned = plan(options.config, options.changes)
    print(planned.text(), flush=True)
    if not options.plan:
        quiet()
        from vlrl.compare.command import compare

        compare(planned)
    return 0


def _show(options: argparse.Namespace) -> int:
    from vlrl import config as configs

    print(configs.dump(api.load_config(options.config, *options.changes)), end="")
    return 0


def _demo(options: argparse.Namespace) -> int:
    return _run(api.load_config(CONFIGS / "gui_grounding.yaml", "out=runs/demo", *options.changes))


def _run(config: Config) -> int:
    return _told(lambda: api.train(config))


def _told(train: Callable[[], api.Run]) -> int:
    """Trains, and says in a line what came of it."""
    run = train()
    if not here().main:
        return 0
    summary = run.summary
    before, after = summary["before"], summary["after"]
    print(
        f"{summary['metric']} {before['value']:.3f} [{before['low']:.3f}, {before['high']:.3f}] -> "
        f"{after['value']:.3f} [{after['low']:.3f}, {after['high']:.3f}] on {after['n']} held-out samples, "
        f"{summary['wall_s']:.0f} s, {summary['cpu_s']:.0f} CPU-s; report: {run.folder / 'report.html'}"
    )
    return 0
