"""The command line. Imports nothing heavy until a command needs it: help and mistakes are answered at once."""

from __future__ import annotations

import argparse
import errno
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from vlrl.types import UserError

CHANGES = "key.path=value overrides and recipe files, applied in order"


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="vlrl", description="Reinforcement learning for vision-language models.")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")

    train = commands.add_parser("train", help="train a policy from a YAML")
    train.add_argument("config", nargs="?", help="a YAML file, for example configs/gui_grounding.yaml")
    train.add_argument("changes", nargs="*", metavar="CHANGE", help=CHANGES)
    train.add_argument("--resume", metavar="RUN", help="go on with a run folder from its newest checkpoint")

    evaluate = commands.add_parser("eval", help="greedy accuracy of a model on a config's held-out samples")
    evaluate.add_argument("config")
    evaluate.add_argument("changes", nargs="*", metavar="CHANGE", help=CHANGES)
    evaluate.add_argument("--model", metavar="DIR", help="a model folder, a run folder or a hub name")
    evaluate.add_argument("--json", action="store_true", help="print one JSON object")

    record = commands.add_parser("record", help="play episodes and keep them, to train on them offline")
    record.add_argument("config")
    record.add_argument("changes", nargs="*", metavar="CHANGE", help=CHANGES)
    record.add_argument("--episodes", type=int, required=True, metavar="N")
    record.add_argument("--out", required=True, metavar="DIR", help="a new folder; see `rollouts: offline_first`")
    record.add_argument("--by", choices=("policy", "gold"), default="policy", help="who acts, default %(default)s")
    record.add_argument("--noise", type=float, default=0.0, metavar="P",
                        help="with --by gold: the share of turns that the policy takes instead, default 0")  # fmt: skip
    record.add_argument("--split", choices=("train", "test"), default="train", help="default %(default)s")

    select = commands.add_parser("select", help="find the training samples that a model's answers disagree on")
    select.add_argument("config")
    select.add_argument("changes", nargs="*", metavar="CHANGE", help=CHANGES)
    select.add_argument("--model", metavar="DIR", help="a model folder, a run folder or a hub name")
    select.add_argument("--out", required=True, metavar="FILE.jsonl", help="a new file; see `sampler: listed`")
    select.add_argument("--samples", type=int, metavar="N", help="drawn at random; default: the whole training split")
    select.add_argument("--repeats", type=int, default=8, metavar="N", help="answers to each, default %(default)s")
    limit = select.add_mutually_exclusive_group()
    limit.add_argument("--keep", type=float, default=0.25, metavar="P", help="the share to keep, default %(default)s")
    limit.add_argument("--least-variance", type=float, metavar="X", help="instead: all whose rewards vary by X or more")

    score = commands.add_parser("score", help="score saved completions offline, one JSON line out per line in")
    score.add_argument("name", metavar="TASK_OR_REWARD", help="see `vlrl list`")
    score.add_argument("rows", metavar="ROWS.jsonl", help="one JSON object a line: completion, answer, image_size")

    check = commands.add_parser("check-task", help="prove that a task's samples, gold answers and rewards fit together")
    check.add_argument("name", metavar="TASK", help="see `vlrl list tasks`, or my_module:MyTask")
    check.add_argument("--data", metavar="PATH", help="the file or folder of training data; default: the task's own")

    capture = commands.add_parser("capture", help="make GUI grounding data of web pages: screenshots and boxes")
    capture.add_argument("pages", nargs="*", metavar="PAGE", help="an .html file, a folder, an address or the name of "
                         "a bundled page; default: all bundled pages")  # fmt: skip
    capture.add_argument("--out", required=True, metavar="DIR", help="a new folder: train.jsonl, test.jsonl, images/")
    capture.add_argument("--train", type=int, default=2000, metavar="N", help="questions, default %(default)s")
    capture.add_argument("--test", type=int, default=512, metavar="N", help="questions, default %(default)s")
    capture.add_argument("--held-out", nargs="+", metavar="PAGE", help="pages that only testing shows")
    capture.add_argument("--viewport", nargs="+", default=["1280x800"], metavar="WxH", help="default %(default)s")
    capture.add_argument("--scale", type=float, default=1.0, metavar="S", help="pixels to a CSS pixel, default 1")
    capture.add_argument("--languages", nargs="+", metavar="L", help="of bundled pages, such as en ar; default: all")
    capture.add_argument("--kinds", nargs="+", metavar="KIND", help="what to ask for: icon, button, ...; default: all")
    capture.add_argument("--per-screen", type=int, metavar="N", help="exactly N questions a screenshot; default: all")
    capture.add_argument("--seed", type=int, default=0)

    commands.add_parser("list", help="tasks, rewards, methods, policies, robots").add_argument(
        "kind", nargs="?", help="show one kind only"
    )

    show = commands.add_parser("show", help="the fully resolved config")
    show.add_argument("config")
    show.add_argument("changes", nargs="*", metavar="CHANGE", help=CHANGES)

    commands.add_parser("doctor", help="versions, devices, what is missing and how to get it").add_argument(
        "--json", action="store_true"
    )

    warm = commands.add_parser("warmstart", help="build and train a tiny model on gold answers")
    warm.add_argument("config", help="for example configs/embedded.yaml")
    warm.add_argument("changes", nargs="*", metavar="CHANGE", help=CHANGES)

    demos = commands.add_parser("demos", help="record demonstrations of a robot's script, for lerobot")
    demos.add_argument("config", help="one whose task is `manipulation`")
    demos.add_argument("changes", nargs="*", metavar="CHANGE", help=CHANGES)
    demos.add_argument("--episodes", type=int, required=True, metavar="N", help="to keep")
    demos.add_argument("--out", required=True, metavar="DIR", help="a new folder: a LeRobotDataset v3")
    demos.add_argument("--noise", type=float, default=0.0, metavar="X", help="on controls, in halves of the limits' "
                       "width, default 0")  # fmt: skip
    demos.add_argument("--part", choices=("train", "validation", "test"), default="train", help="default %(default)s")
    demos.add_argument("--keep", choices=("success", "all"), default="success", help="default %(default)s")
    demos.add_argument("--seed", type=int, default=0, help="of the noise")

    clone = commands.add_parser("clone", help="make a small robot policy that imitates a task's script")
    clone.add_argument("config", help="for example configs/embedded_push.yaml")
    clone.add_argument("changes", nargs="*", metavar="CHANGE", help=CHANGES)

    simulate = commands.add_parser("simulate", help="play a robot policy beside control arms on the same scenes")
    simulate.add_argument("config", help="one whose task is `manipulation`")
    simulate.add_argument("changes", nargs="*", metavar="CHANGE", help=CHANGES)
    simulate.add_argument("--policy", metavar="DIR", help="a folder, a run folder or a bundled name; default: the "
                          "config's policy.model")  # fmt: skip
    simulate.add_argument("--against", nargs="+", default=[], metavar="ARM", help="expert (the robot's script), "
                          "random, start (the config's policy.model) or another policy's folder")  # fmt: skip
    simulate.add_argument("--episodes", type=int, metavar="N", help="held-out scenes, from the first; default: all")
    simulate.add_argument("--video", metavar="DIR", help="write MP4s of each arm's first episodes there")
    simulate.add_argument("--videos", type=int, metavar="M", help="how many, default 4")
    simulate.add_argument("--out", metavar="DIR", help="for result.json and report.html, default runs/simulate_CONFIG")
    simulate.add_argument("--json", action="store_true", help="print one JSON object, without the episodes")

    demo = commands.add_parser("demo", help="train the embedded model on GUI grounding, evaluate, report")
    demo.add_argument("changes", nargs="*", metavar="CHANGE", help=CHANGES)
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command. Exit codes: 0 done, 1 training stopped by itself, 2 something the user can mend, 130 Ctrl-C."""
    options, extra = parser().parse_known_args(arguments)
    if hasattr(options, "changes"):  # argparse takes them before options only
        options.changes = [*options.changes, *(text for text in extra if not text.startswith("-"))]
        extra = [text for text in extra if text.startswith("-")]
    if extra:
        parser().error(f"unknown option {extra[0]!r}")
    sys.path.insert(0, str(Path.cwd()))  # a user's own `my_module:thing`
    try:
        return globals()[f"_{options.command.replace('-', '_')}"](options)
    except UserError as error:
        print(f"vlrl: {error}", file=sys.stderr)
        return getattr(error, "exit_code", 2)
    except BrokenPipeError:  # the reader, `head` for example, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EDQUOT, errno.EFBIG):
            raise
        print(f"vlrl: cannot write {error.filename or 'a file'}: {error.strerror}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("vlrl: interrupted", file=sys.stderr)
        return 130


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


def _run(config, resume: bool = False) -> int:
    _quiet()
    from vlrl.trainer import Trainer

    summary = Trainer(config, resume).run()
    before, after = summary["before"], summary["after"]
    print(
        f"{summary['metric']} {before['value']:.3f} [{before['low']:.3f}, {before['high']:.3f}] -> "
        f"{after['value']:.3f} [{after['low']:.3f}, {after['high']:.3f}] on {after['n']} held-out samples, "
        f"{summary['wall_s']:.0f} s, {summary['cpu_s']:.0f} CPU-s; report: {Path(config.out) / 'report.html'}"
    )
    return 0


def _demo(options: argparse.Namespace) -> int:
    from vlrl import config as configs

    folder = Path(__file__).parents[1] / "configs"
    return _run(configs.load(folder / "gui_grounding.yaml", ["out=runs/demo", *options.changes]))


def _eval(options: argparse.Namespace) -> int:
    from vlrl import config as configs
    from vlrl import registry

    changes = [*options.changes, *([f"policy.model={options.model}"] if options.model else [])]
    config = configs.load(options.config, changes)
    _quiet()
    from vlrl.evaluate import evaluate
    from vlrl.policies.load import load

    task = registry.make_task(config)
    policy = load(config.policy, shared_prefix=config.train.shared_prefix, seed=config.seed)
    registry.check_fit(task, policy)
    result = evaluate(policy, task, samples=config.eval.samples, batch=config.eval.batch)
    measured = vars(result.accuracy)
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


def _record(options: argparse.Namespace) -> int:
    from vlrl import config as configs

    config = configs.load(options.config, options.changes)
    if options.episodes < 1:
        raise UserError(f"--episodes {options.episodes}: at least 1")
    if not 0 <= options.noise <= 1:
        raise UserError(f"--noise {options.noise:g}: a share between 0 and 1")
    if options.noise and options.by != "gold":
        raise UserError("--noise goes with --by gold: the policy's own episodes are its own in every turn")
    _quiet()
    from vlrl.record import record

    wanted = {"by": options.by, "noise": options.noise, "split": options.split}
    tally = record(config, episodes=options.episodes, out=options.out, **wanted)
    print(f"{tally.episodes} episodes by {options.by}: {tally}; {options.out}")
    return 0


def _select(options: argparse.Namespace) -> int:
    from vlrl import config as configs

    changes = [*options.changes, *([f"policy.model={options.model}"] if options.model else [])]
    config = configs.load(options.config, changes)
    if options.samples is not None and options.samples < 1:
        raise UserError(f"--samples {options.samples}: at least 1")
    if options.repeats < 2:
        raise UserError(f"--repeats {options.repeats}: at least 2, for answers to disagree")
    if not 0 < options.keep <= 1:
        raise UserError(f"--keep {options.keep:g}: a share above 0, at most 1")
    if options.least_variance is not None and not options.least_variance >= 0:
        raise UserError(f"--least-variance {options.least_variance:g}: at least 0")
    _quiet()
    from vlrl.select import select

    wanted = {"samples": options.samples, "repeats": options.repeats, "keep": options.keep}
    print(f"{select(config, out=options.out, least_variance=options.least_variance, **wanted)}; {options.out}")
    return 0


def _score(options: argparse.Namespace) -> int:
    from vlrl.score import score_file

    for row in score_file(options.name, options.rows):
        print(json.dumps(row))
    return 0


def _check_task(options: argparse.Namespace) -> int:
    from importlib import import_module

    from vlrl import registry
    from vlrl.config import DataSection
    from vlrl.strict import Component

    chosen = argparse.Namespace(task=Component(name=options.name), data=DataSection(train=options.data))
    findings = import_module("tasks.check").prove(registry.make_task(chosen))
    for finding in findings:
        print(f"FAILED  {finding.claim}: {finding.problem}" if finding.problem else f"ok      {finding.claim}")
    return 2 if any(finding.problem for finding in findings) else 0


def _capture(options: argparse.Namespace) -> int:
    from importlib import import_module

    return import_module("tasks.web.capture").main(options)


def _list(options: argparse.Namespace) -> int:
    from vlrl.listing import listing

    print(listing(options.kind))
    return 0


def _show(options: argparse.Namespace) -> int:
    from vlrl import config as configs

    print(configs.dump(configs.load(options.config, options.changes)), end="")
    return 0


def _doctor(options: argparse.Namespace) -> int:
    from vlrl.doctor import main as doctor

    return doctor(json=options.json)


def _warmstart(options: argparse.Namespace) -> int:
    _quiet()
    from vlrl.warmstart import main as warmstart

    return warmstart(options.config, options.changes)


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


def _simulate(options: argparse.Namespace) -> int:
    from vlrl import config as configs

    config = configs.load(options.config, options.changes)
    _quiet()
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


def _clone(options: argparse.Namespace) -> int:
    _quiet()
    from vlrl.clone import main as clone

    return clone(options.config, options.changes)


def _quiet() -> None:
    """Libraries' progress bars and notes would bury our own line."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


if __name__ == "__main__":
    sys.exit(main())
