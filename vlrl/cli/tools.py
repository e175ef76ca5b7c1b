"""Commands beside training: data, listing, planning, export."""

from __future__ import annotations

import argparse
import json
import math
import shutil
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from vlrl.api import check_sources, quiet
from vlrl.cli.help import Commands, explain_code, print_styled, takes_changes
from vlrl.system.hub import reach_model
from vlrl.types import UserError

# Data and rewards: record, select, score, prove a task, capture web pages.


def data_add(commands: Commands) -> None:
    record = commands.add_parser("record", help="play episodes and keep them, to train on them offline")
    record.add_argument("config", help="as for `vlrl train`")
    takes_changes(record)
    record.add_argument("--episodes", type=int, required=True, metavar="N")
    record.add_argument(
        "--out", required=True, metavar="DIR", help="a new folder; see `rollout_strategy: offline_first`"
    )
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
    from vlrl.recipe_checks import load_config

    config = load_config(options.config, options.changes)
    if options.episodes < 1:
        raise UserError(f"--episodes {options.episodes}: at least 1")
    if not 0 <= options.noise <= 1:
        raise UserError(f"--noise {options.noise:g}: a share between 0 and 1")
    if options.noise and options.by != "gold":
        raise UserError("--noise goes with --by gold: the policy's own episodes are its own in every turn")
    quiet()
    check_sources(config)
    from vlrl.evaluation.record import record

    options_of = {"by": options.by, "noise": options.noise, "split": options.split}
    tally = record(config, episodes=options.episodes, out=options.out, **options_of)
    print(f"{tally.episodes} episodes by {options.by}: {tally}; {options.out}")
    return 0


def _select(options: argparse.Namespace) -> int:
    from vlrl.recipe_checks import load_config

    if Path(options.config).is_dir():
        return _select_learned(options)
    if options.least_alignment is not None:
        raise UserError("--least-alignment goes with the folder of a run with `sampler: limr`")
    changes = [*options.changes, *([f"policy.model={options.model}"] if options.model else [])]
    config = load_config(options.config, changes)
    if options.samples is not None and options.samples < 1:
        raise UserError(f"--samples {options.samples}: at least 1")
    if options.repeats < 2:
        raise UserError(f"--repeats {options.repeats}: at least 2, for answers to disagree")
    if not 0 < options.keep <= 1:
        raise UserError(f"--keep {options.keep:g}: a share above 0, at most 1")
    if options.least_variance is not None and not options.least_variance >= 0:
        raise UserError(f"--least-variance {options.least_variance:g}: at least 0")
    quiet()
    check_sources(config)
    from vlrl.evaluation.data_selection import select

    settings = {"samples": options.samples, "repeats": options.repeats, "keep": options.keep}
    print(f"{select(config, out=options.out, least_variance=options.least_variance, **settings)}; {options.out}")
    return 0


def _select_learned(options: argparse.Namespace) -> int:
    if options.changes or options.model or options.samples is not None or options.least_variance is not None:
        raise UserError(f"{options.config} is a run, of which only --out and --least-alignment say anything")
    quiet()
    from vlrl.evaluation.data_selection import learned

    print(f"{learned(options.config, out=options.out, least=options.least_alignment)}; {options.out}")
    return 0


def _score(options: argparse.Namespace) -> int:
    from vlrl.evaluation.score import score_file

    for row in score_file(options.name, options.rows):
        print(json.dumps(row))
    return 0


def _check_task(options: argparse.Namespace) -> int:
    from importlib import import_module

    from vlrl import registry
    from vlrl.config import Component, DataSection

    if bool(options.name) == options.all:
        raise UserError("check-task: name one TASK, or --all")
    if options.all and options.data:
        raise UserError("check-task: --data goes with one TASK")
    report = import_module("tasks.check").print_row if options.table else _print_findings
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


# What there is, and what this machine can do.


def looking_add(commands: Commands) -> None:
    listing = commands.add_parser("list", help="what can be named: tasks, rewards, methods, policies, robots, "
                                  "configs, keys")  # fmt: skip
    listing.add_argument("kind", nargs="?", help="a line for each of one kind, or of one group of a kind")
    listing.add_argument("--search", nargs="+", metavar="WORD", help="all that has these words, also TRL's and verl's")
    listing.set_defaults(run=_list)

    explain = commands.add_parser("explain", help="what the code of an error means, and what to do")
    explain.add_argument("code", nargs="?", help="as behind the message, in brackets; default: all, a line for each")
    explain.set_defaults(run=_explain)

    view = commands.add_parser("view", help="runs side by side in a browser, live while they train")
    view.add_argument("runs", nargs="+", metavar="RUN", type=Path, help="a run folder, or a folder of runs")
    view.add_argument("--port", type=int, default=8300, help="on 127.0.0.1, default 8300; 0: any free one")
    view.add_argument("--chat", action="store_true", help="of one run: also a page to ask its newest checkpoint")
    view.add_argument("--write", action="store_true", help="only write each RUN/report.html again")
    view.set_defaults(run=_view)

    advise = commands.add_parser("advise", help="what a run shows, and what helped against it where it was measured")
    advise.add_argument("folder", metavar="RUN", type=Path, help="a run folder of `vlrl train`, ended or under way")
    advise.add_argument("--json", action="store_true", help="print one JSON object")
    advise.set_defaults(run=_advise)

    doctor = commands.add_parser("doctor", help="versions, devices, what is missing and how to get it")
    doctor.add_argument("--json", action="store_true")
    doctor.add_argument("--model", metavar="NAME", help="a folder or hub name: what it is, how it is forwarded, what "
                        "it answers")  # fmt: skip
    doctor.add_argument("--task", default="gui_grounding", help="with --model: whose samples it answers; a name, or a "
                        "configuration's file, of whose steps memory is planned")  # fmt: skip
    takes_changes(doctor, "with --model: key.path=value, such as policy.frame=rel1 or policy.trust_remote_code=true")
    doctor.add_argument("--models", nargs="*", metavar="TYPE", help="what becomes of tiny random models of the types "
                        "that transformers maps; default: all")  # fmt: skip
    doctor.add_argument("--speed", action="store_true", help="with --models: beside the plain path, half a minute each")
    doctor.set_defaults(run=_doctor)


def _list(options: argparse.Namespace) -> int:
    from vlrl.tools.option_help import listing, search

    if options.kind and options.search:
        raise UserError("list: name a kind, or --search words of every kind")
    width = shutil.get_terminal_size().columns
    text = search(" ".join(options.search)) if options.search else listing(options.kind, width)
    cut = sys.stdout.isatty() and not options.search
    text = "\n".join(_cut(line, width) for line in text.splitlines()) if cut else text
    print_styled(
        text, sys.stdout, {"bold": r"^[A-Z]+ \(\d+\)$", "green": r"^ \w+$", "cyan": r"^(?:  )?[a-z]\S*(?= |$)"}
    )
    return 0


def _cut(line: str, width: int) -> str:
    """The line as wide as the terminal; a pipe and a file have it whole."""
    return line if len(line) <= width else f"{line[: width - 3]}..."


def _explain(options: argparse.Namespace) -> int:
    print(explain_code(options.code))
    return 0


def _view(options: argparse.Namespace) -> int:
    from vlrl.report.html import write_report
    from vlrl.report.server import view, watched

    runs = [run.folder for run in watched(options.runs)]
    if options.write:
        print("\n".join(str(write_report(run)) for run in runs))
        return 0
    if options.chat and len(runs) > 1:
        raise UserError(f"--chat: of one run, not of {len(runs)}: name one")
    with _open_chat(runs[0]) if options.chat else nullcontext("") as chat:
        return view(options.runs, options.port, lambda said: print(said, flush=True), chat)


def _open_chat(run: Path) -> AbstractContextManager[str]:
    """Serves the run's newest checkpoint as `vlrl serve-model` does, for images as large as the run's."""
    quiet()
    from vlrl.config import PolicySection, is_training_config
    from vlrl.engines.model_server import open_server
    from vlrl.recipe_checks import load_config

    file = run / "config.yaml"
    policy = load_config(file).policy if is_training_config(file) else PolicySection()
    return open_server(argparse.Namespace(
        model=str(run), name=run.name, host="127.0.0.1", port=0, token_env=None, weights_folder=None, max_tokens=4096,
        max_batch=8, min_pixels=policy.min_pixels, max_pixels=policy.max_pixels, dtype="auto",
    ))  # fmt: skip


def _advise(options: argparse.Namespace) -> int:
    from vlrl.evaluation.advise import advise, format_advice

    advice = advise(options.folder)
    print(json.dumps(advice) if options.json else format_advice(advice))
    return 0


def _doctor(options: argparse.Namespace) -> int:
    if options.models is not None:
        quiet()
        from vlrl.tools.model_doctor import print_trials as models

        return models(options.models, options.speed)
    if options.model:
        quiet()
        reach_model(options.model)
        from vlrl.tools.model_doctor import main as model

        return model(options.model, options.task, options.changes, options.json)
    from vlrl.tools.doctor import main as doctor

    styles = {"green": r"^ok\b", "yellow": r"^(?:warn|missing)\b", "bold red": r"^error\b", "cyan": r"  -> .*$"}
    return doctor(options.json, print if options.json else lambda text: print_styled(text, sys.stdout, styles))


# What a run needs, before it is started.


def planning_add(commands: Commands) -> None:
    plan = commands.add_parser("plan", help="a run's memory and seconds a step before anything is loaded")
    plan.add_argument("config", help="for example configs/gui_grounding.yaml")
    takes_changes(plan)
    plan.add_argument("--gpu", metavar="NAME", help="h100, a100-80, 4090, ...; a memory, 24GB; cpu")
    plan.add_argument("--gpus", type=_count, default=1, metavar="N", help="how many, sharded (FSDP)")
    plan.add_argument("--slices", type=_count, default=1, metavar="N", help="how many of them share each sequence")
    plan.add_argument("--mfu", type=_positive, default=0.4, help="share of the peak that is reached (default: 0.4)")
    plan.add_argument("--tflops", type=_positive, metavar="N", help="the device's peak, 1e12 FLOPs a second")
    plan.add_argument("--memory", type=_positive, metavar="GB", help="the device's memory")
    plan.add_argument("--visual", type=_natural, metavar="N", help="visual tokens of a prompt; default: the task's")
    plan.add_argument("--text", type=_natural, metavar="N", help="text tokens of a prompt; default: the task's")
    plan.add_argument("--tokens", type=_count, metavar="N", help="of a completion; default: policy.max_tokens")
    plan.add_argument("--json", action="store_true", help="print one JSON object")
    plan.set_defaults(run=_plan)

    again = commands.add_parser("reproduce", help="a paper's run: download, evaluate, train, compare with its number")
    again.add_argument("name", nargs="?", help="of `configs/published`, or a file with a section `published`")
    takes_changes(again)
    again.add_argument("--plan", action="store_true", help="only the memory that it takes on 24 GB, 80 GB, 8 x 80 GB; "
                       "without a name, of all")  # fmt: skip
    again.add_argument("--dry-run", action="store_true", help="only say what would be fetched, under which licence")
    again.add_argument("--model", metavar="FOLDER", help="the model, in place of a download")
    again.add_argument("--data", metavar="FOLDER", help="the data files, in place of data/NAME")
    again.add_argument("--out", metavar="RUN", help="the run folder; one that is there is resumed, or compared")
    again.set_defaults(run=_reproduce)

    accept = commands.add_parser(
        "accept", help="what a checkpoint does here in one page: parity, frame, memory, 20 steps"
    )
    accept.add_argument("model", metavar="MODEL", help="a folder or hub name")
    takes_changes(accept)
    accept.add_argument("--data", required=True, metavar="FILE", help="rows to train on, as for `data.train`")
    accept.add_argument("--test", metavar="FILE", help="held-out rows; default: the same")
    accept.add_argument("--task", default="gui_grounding", help="a task's name or a configuration's file")
    accept.add_argument("--out", default="runs/accept", metavar="RUN", help="default %(default)s")
    accept.set_defaults(run=_accept)


def _accept(options: argparse.Namespace) -> int:
    quiet()
    reach_model(options.model)
    from vlrl.tools.acceptance import accept

    return accept(options.model, options.task, options.data, options.test, options.out, options.changes)


def _reproduce(options: argparse.Namespace) -> int:
    quiet()
    from vlrl.tools import published

    if options.plan or not options.name:
        if not options.plan:
            raise UserError(f"reproduce: name one of {', '.join(published.find_names())}")
        print("\n".join(published.format_plan([options.name] if options.name else published.find_names())))
        return 0
    config = published.load(options.name, options.changes)
    config = published.use_folders(config, options.name, options.model, options.data, options.out)
    print("\n".join(published.describe(config)), flush=True)
    if not options.dry_run:
        print(published.reproduce(options.name, config).text)
    return 0


def _plan(options: argparse.Namespace) -> int:
    quiet()
    from vlrl.performance import profiling
    from vlrl.recipe_checks import load_config
    from vlrl.tools.memory_planner import PlanOptions, described, plan_plan, text

    plan_options = PlanOptions(
        profiling.find_device(options.gpu, options.tflops, options.memory) if options.gpu else None,
        options.gpus,
        options.slices,
        options.mfu,
        options.visual,
        options.text,
        options.tokens,
    )
    plan = plan_plan(load_config(options.config, options.changes), plan_options)
    print(json.dumps(described(plan)) if options.json else text(plan))
    return 0


def _positive(text: str) -> float:
    number = float(text)
    if not (math.isfinite(number) and number > 0):
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return number


def _count(text: str) -> int:
    number = _natural(text)
    if number == 0:
        raise argparse.ArgumentTypeError("at least 1")
    return number


def _natural(text: str) -> int:
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"{text} is below 0")
    return number


# Give a model away: a folder that other programs load_config, its card, the hub.

WEIGHTS = ("float32", "bfloat16")


def sharing_add(commands: Commands) -> None:
    card = commands.add_parser("card", help="write a model card into a run's model folder: results, config, licences")
    _add_source(card)
    card.set_defaults(run=_card)

    export = commands.add_parser("export", help="a folder of the model alone, for transformers, vLLM, SGLang; or "
                                 "the episodes that a run kept, for other programs")  # fmt: skip
    _add_source(export)
    _form(export)
    export.add_argument("--traces", metavar="FORMAT", help="instead of the model the episodes that a run, or a folder "
                        "of `vlrl record` keeps: messages, inspect, trackio, wandb; rerun (robots; also of a "
                        "LeRobotDataset)")  # fmt: skip
    export.add_argument("--out", required=True, metavar="DIR", help="a new folder")
    export.set_defaults(run=_export)

    average = commands.add_parser("average", help="one model of the mean of several models' weights")
    average.add_argument("models", nargs="+", metavar="RUN", help="run folders or models' folders of one architecture")
    average.add_argument("--shares", nargs="+", type=float, metavar="SHARE", help="of each, together 1; default: equal")
    average.add_argument("--out", required=True, metavar="DIR", help="a new folder")
    average.set_defaults(run=_average)

    push = commands.add_parser("push", help="upload a model with its card to the Hugging Face hub")
    _add_source(push)
    _form(push)
    push.add_argument("--to", required=True, metavar="OWNER/NAME", help="made if it is not there")
    push.add_argument("--private", action="store_true", help="for you and those you name; default: for all to see")
    push.set_defaults(run=_push)


def _add_source(command: argparse.ArgumentParser) -> None:
    command.add_argument("source", metavar="RUN", help="a run folder (its newest checkpoint), or a model's folder")
    command.add_argument("--license", metavar="ID", help="of this model, as the hub spells it (apache-2.0); default: "
                         "not stated")  # fmt: skip


def _form(command: argparse.ArgumentParser) -> None:
    command.add_argument("--merged", action="store_true", help="an adapter becomes part of its base's weights")
    command.add_argument("--dtype", choices=WEIGHTS, help="of the weights, default: as they were saved")


def _average(options: argparse.Namespace) -> int:
    quiet()
    from contextlib import ExitStack

    from vlrl.tools.hub_export import average, open_source

    with ExitStack() as opened:
        models = [opened.enter_context(open_source(model)) for model in options.models]
        average(models, Path(options.out), options.shares)
    print(options.out)
    return 0


def _card(options: argparse.Namespace) -> int:
    from vlrl.tools.hub_export import card_write, open_source

    with open_source(options.source) as source:
        print(card_write(source, source.folder, licence=options.license))
    return 0


def _export(options: argparse.Namespace) -> int:
    if options.traces:
        return _export_traces(options)
    quiet()
    from vlrl.tools import hub_export
    from vlrl.tools.hub_export import card_write

    out = Path(options.out)
    with hub_export.open_source(options.source) as source:
        hub_export.export(source, out, merged=options.merged, dtype=options.dtype)
        card_write(source, out, licence=options.license)
    print(out)
    return 0


def _export_traces(options: argparse.Namespace) -> int:
    if options.license or options.merged or options.dtype:
        raise UserError("--license, --merged and --dtype are of models: they do not go with --traces")
    from vlrl.tools.trace_export import export_traces

    count = export_traces(Path(options.source), Path(options.out), options.traces)
    print(f"{count} {'episode' if count == 1 else 'episodes'}; {options.out}")
    return 0


def _push(options: argparse.Namespace) -> int:
    quiet()
    from vlrl.tools.hub_export import open_source, push

    form = {"merged": options.merged, "dtype": options.dtype, "licence": options.license}
    with open_source(options.source) as source:
        print(push(source, options.to, private=options.private, **form))
    return 0
