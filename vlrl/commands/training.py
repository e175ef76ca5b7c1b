"""Train, evaluate, and see what a configuration says."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from vlrl.commands.base import CHANGES, Commands, quiet
from vlrl.parallel import by_main, here
from vlrl.types import UserError


def add(commands: Commands) -> None:
    train = commands.add_parser("train", help="train a policy from a YAML")
    train.add_argument("config", nargs="?", help="a YAML file, for example configs/gui_grounding.yaml")
    train.add_argument("changes", nargs="*", metavar="CHANGE", help=CHANGES)
    train.add_argument("--resume", metavar="RUN", help="go on with a run folder from its newest checkpoint")
    train.set_defaults(run=_train)

    evaluate = commands.add_parser("eval", help="greedy accuracy of a model on a config's held-out samples")
    evaluate.add_argument("config")
    evaluate.add_argument("changes", nargs="*", metavar="CHANGE", help=CHANGES)
    evaluate.add_argument("--model", metavar="DIR", help="a model folder, a run folder or a hub name")
    evaluate.add_argument("--json", action="store_true", help="print one JSON object")
    evaluate.set_defaults(run=_eval)

    warm = commands.add_parser("warmstart", help="build and train a tiny model on gold answers")
    warm.add_argument("config", help="for example configs/embedded.yaml")
    warm.add_argument("changes", nargs="*", metavar="CHANGE", help=CHANGES)
    warm.set_defaults(run=_warmstart)

    compare = commands.add_parser("compare", help="several recipes over one task at equal cost, with a test")
    compare.add_argument("config", help="for example configs/compare/single_vs_group.yaml")
    compare.add_argument("changes", nargs="*", metavar="CHANGE", help=CHANGES)
    compare.add_argument("--plan", action="store_true", help="only say what is equal and what is not")
    compare.set_defaults(run=_compare)

    show = commands.add_parser("show", help="the fully resolved config")
    show.add_argument("config")
    show.add_argument("changes", nargs="*", metavar="CHANGE", help=CHANGES)
    show.set_defaults(run=_show)

    demo = commands.add_parser("demo", help="train the embedded model on GUI grounding, evaluate, report")
    demo.add_argument("changes", nargs="*", metavar="CHANGE", help=CHANGES)
    demo.set_defaults(run=_demo)


def _train(options: argparse.Namespace) -> int:
    from vlrl import config as configs

    if options.resume:
        if options.config:
            raise UserError("--resume takes the run's own config: name no other")
        path = Path(options.resume) / "config.yaml"
        if not path.is_file():
            raise UserError(f"{options.resume} is no run folder: it holds no config.yaml")
        config = configs.load(path)
    elif options.config:
        config = configs.load(options.config, options.changes)
    else:
        raise UserError("name a config, for example: vlrl train configs/gui_grounding.yaml")
    return _run(config, resume=bool(options.resume))


def _eval(options: argparse.Namespace) -> int:
    from vlrl import config as configs
    from vlrl import registry

    changes = [*options.changes, *([f"policy.model={options.model}"] if options.model else [])]
    config = configs.load(options.config, changes)
    quiet()
    here().join()
    from vlrl.evaluate import evaluate
    from vlrl.policies.load import load

    task = registry.make_task(config)
    policy = load(config.policy, shared_prefix=config.train.shared_prefix, seed=config.seed)
    registry.check_fit(task, policy)
    result = evaluate(policy, task, samples=config.eval.samples, batch=config.eval.batch)
    measured = vars(result.accuracy)
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

    print(configs.dump(configs.load(options.config, options.changes)), end="")
    return 0


def _demo(options: argparse.Namespace) -> int:
    from vlrl import config as configs

    folder = Path(__file__).parents[2] / "configs"
    return _run(configs.load(folder / "gui_grounding.yaml", ["out=runs/demo", *options.changes]))


def _run(config, resume: bool = False) -> int:
    quiet()
    from vlrl.trainer import Trainer

    summary = Trainer(config, resume).run()
    before, after = summary["before"], summary["after"]
    by_main(print)(
        f"{summary['metric']} {before['value']:.3f} [{before['low']:.3f}, {before['high']:.3f}] -> "
        f"{after['value']:.3f} [{after['low']:.3f}, {after['high']:.3f}] on {after['n']} held-out samples, "
        f"{summary['wall_s']:.0f} s, {summary['cpu_s']:.0f} CPU-s; report: {Path(config.out) / 'report.html'}"
    )
    return 0
