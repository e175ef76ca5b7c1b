"""Data and rewards: record, select, score, prove a task, capture web pages."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from vlrl.commands.base import Commands, quiet, takes_changes
from vlrl.types import UserError


def add(commands: Commands) -> None:
    record = commands.add_parser("record", help="play episodes and keep them, to train on them offline")
    record.add_argument("config", help="as for `vlrl train`")
    takes_changes(record)
    record.add_argument("--episodes", type=int, required=True, metavar="N")
    record.add_argument("--out", required=True, metavar="DIR", help="a new folder; see `rollouts: offline_first`")
    record.add_argument("--by", choices=("policy", "gold"), default="policy", help="who acts, default %(default)s")
    record.add_argument("--noise", type=float, default=0.0, metavar="P",
                        help="with --by gold: the share of turns that the policy takes instead, default 0")  # fmt: skip
    record.add_argument("--split", choices=("train", "test"), default="train", help="default %(default)s")
    record.set_defaults(run=_record)

    select = commands.add_parser("select", help="find the training samples that a model's answers disagree on, or, of "
                                 "a run, those that were learned as the average was")  # fmt: skip
    select.add_argument("config", help="a YAML, or the folder of a run with `sampler: limr`")
    takes_changes(select)
    select.add_argument("--model", metavar="DIR", help="a model folder, a run folder or a hub name")
    select.add_argument("--out", required=True, metavar="FILE.jsonl", help="a new file; see `sampler: listed`")
    select.add_argument("--samples", type=int, metavar="N", help="drawn at random; default: the whole training split")
    select.add_argument("--repeats", type=int, default=8, metavar="N", help="answers to each, default %(default)s")
    limit = select.add_mutually_exclusive_group()
    limit.add_argument("--keep", type=float, default=0.25, metavar="P", help="the share to keep, default %(default)s")
    limit.add_argument("--least-variance", type=float, metavar="X", help="instead: all whose rewards vary by X or more")
    limit.add_argument("--least-alignment", type=float, metavar="X", help="of a run: those of X or more; default: its "
                       "sampler's score")  # fmt: skip
    select.set_defaults(run=_select)

    score = commands.add_parser("score", help="score saved completions offline, one JSON line out per line in")
    score.add_argument("name", metavar="TASK_OR_REWARD", help="see `vlrl list`")
    score.add_argument("rows", metavar="ROWS.jsonl", help="one JSON object a line: completion, answer, image_size")
    score.set_defaults(run=_score)

    check = commands.add_parser("check-task", help="prove that a task's samples, gold answers and rewards fit together")
    check.add_argument("name", nargs="?", metavar="TASK", help="see `vlrl list tasks`, or my_module:MyTask")
    check.add_argument("--all", action="store_true", help="every built-in task")
    check.add_argument("--table", action="store_true",
                       help="print what answers earn that do not look at their sample, instead of proofs")  # fmt: skip
    check.add_argument("--data", metavar="PATH", help="the file or folder of training data; default: the task's own")
    check.set_defaults(run=_check_task)

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
    capture.set_defaults(run=_capture)


def _record(options: argparse.Namespace) -> int:
    from vlrl import config as configs
    from vlrl.paths import check_paths

    config = configs.load(options.config, options.changes)
    if options.episodes < 1:
        raise UserError(f"--episodes {options.episodes}: at least 1")
    if not 0 <= options.noise <= 1:
        raise UserError(f"--noise {options.noise:g}: a share between 0 and 1")
    if options.noise and options.by != "gold":
        raise UserError("--noise goes with --by gold: the policy's own episodes are its own in every turn")
    quiet()
    check_paths(config)
    from vlrl.record import record

    wanted = {"by": options.by, "noise": options.noise, "split": options.split}
    tally = record(config, episodes=options.episodes, out=options.out, **wanted)
    print(f"{tally.episodes} episodes by {options.by}: {tally}; {options.out}")
    return 0


def _select(options: argparse.Namespace) -> int:
    from vlrl import config as configs
    from vlrl.paths import check_paths

    if Path(options.config).is_dir():
        return _select_learned(options)
    if options.least_alignment is not None:
        raise UserError("--least-alignment goes with the folder of a run with `sampler: limr`")
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
    quiet()
    check_paths(config)
    from vlrl.select import select

    wanted = {"samples": options.samples, "repeats": options.repeats, "keep": options.keep}
    print(f"{select(config, out=options.out, least_variance=options.least_variance, **wanted)}; {options.out}")
    return 0


def _select_learned(options: argparse.Namespace) -> int:
    if options.changes or options.model or options.samples is not None or options.least_variance is not None:
        raise UserError(f"{options.config} is a run, of which only --out and --least-alignment say anything")
    quiet()
    from vlrl.select_run import learned

    print(f"{learned(options.config, out=options.out, least=options.least_alignment)}; {options.out}")
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

    if bool(options.name) == options.all:
        raise UserError("check-task: name one TASK, or --all")
    if options.all and options.data:
        raise UserError("check-task: --data goes with one TASK")
    report = import_module("tasks.check_payoffs").print_row if options.table else _print_findings
    passed = True
    for number, name in enumerate(registry.task_names() if options.all else [options.name]):
        chosen = argparse.Namespace(task=Component(name=name), data=DataSection(train=options.data))
        if options.all and not options.table:
            print(f"{name}:")
        passed &= report(name, registry.make_task(chosen), first=number == 0)
    return 0 if passed else 2


def _print_findings(name: str, task: Any, first: bool) -> bool:
    from importlib import import_module

    findings = import_module("tasks.check").prove(task)
    for finding in findings:
        print(f"FAILED  {finding.claim}: {finding.problem}" if finding.problem else f"ok      {finding.claim}")
    return not any(finding.problem for finding in findings)


def _capture(options: argparse.Namespace) -> int:
    from importlib import import_module

    return import_module("tasks.web.capture").main(options)
