"""Commands that train."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from vlrl import api
from vlrl.api import quiet
from vlrl.cli.help import (
    Commands,
    find_first_change,
    read_config,
    run_learner,
    takes_changes,
    takes_resume,
    takes_run,
)
from vlrl.config import CONFIGS, load_as
from vlrl.distributed.world import get_world
from vlrl.system.hub import reach_model
from vlrl.types import UserError

if TYPE_CHECKING:
    from vlrl.config import Config

PREFERENCES = "vlrl.contrib.preferences"

# Learn a robot's task off-policy.


def offpolicy_add(commands: Commands) -> None:
    learn = commands.add_parser("offpolicy", help="learn a robot's task from what was given and played (RLPD, SAC)")
    takes_run(learn, "a YAML file, for example configs/offpolicy_push.yaml")
    learn.set_defaults(run=_offpolicy)


def _offpolicy(options: argparse.Namespace) -> int:
    from vlrl.offpolicy import config as configs

    config = read_config(options, configs.load, "configs/offpolicy_push.yaml")
    quiet()
    from vlrl.offpolicy.learner import OffPolicyLearner

    summary = run_learner(options, OffPolicyLearner(config))
    before, after = summary["before"], summary["after"]
    print(
        f"{summary['metric']} {before['value']:.3f} [{before['low']:.3f}, {before['high']:.3f}] -> "
        f"{after['value']:.3f} [{after['low']:.3f}, {after['high']:.3f}] on {after['n']} held-out samples after "
        f"{summary['ticks']} ticks and {summary['updates']} updates, {summary['wall_s']:.0f} s, "
        f"{summary['cpu_s']:.0f} CPU-s; report: {Path(config.out) / 'report.html'}"
    )
    return 0


# Learn a reward from a judge's preferences, and what states are worth from transitions without actions.


def preferences_add(commands: Commands) -> None:
    learn = commands.add_parser("preferences", help="learn a reward from what a judge (a VLM) prefers (RL-VLM-F)")
    takes_run(learn, "a YAML file, for example configs/preferences_push.yaml")
    learn.set_defaults(run=_preferences)
    prepare = commands.add_parser("pretrain", help="learn values of states, a small CLIP, or a reward model")
    takes_run(prepare, "a YAML file: docs/offpolicy.md")
    prepare.set_defaults(run=_pretrain)


def _preferences(options: argparse.Namespace) -> int:
    from vlrl.plugins import load_object  # by name: nothing imports vlrl.contrib

    load, report_text = (
        load_object(f"{PREFERENCES}.labelling:{name}", "preferences") for name in ("config_load", "report_text")
    )
    config = read_config(options, load, "configs/preferences_push.yaml")
    quiet()
    learner = load_object(f"{PREFERENCES}.command:PreferencesLearner", "preferences")(config)
    run_learner(options, learner)
    print(f"{report_text(learner.reported)}; {config.out}")
    return 0


def _pretrain(options: argparse.Namespace) -> int:
    from vlrl.offpolicy.config import pretrain_config_load

    config = read_config(options, pretrain_config_load, "pretrain.yaml")
    quiet()
    from vlrl.plugins import load_object  # by name: nothing imports vlrl.contrib

    where, name = ("vlrl.offpolicy.value_pretraining", "ValuePretrainingLearner")
    if config.contrast:
        where, name = (f"{PREFERENCES}.reward_model", "ContrastLearner")
    if config.discriminate:
        where, name = (f"{PREFERENCES}.reward_model", "DiscriminatorLearner")
    learner = load_object(f"{where}:{name}", "pretrain")(config)
    summary_text = load_object(f"{where}:summary_text", "pretrain")
    run_learner(options, learner)
    print(f"{summary_text(learner.reported)}; {config.out}")
    return 0


# Put a small learned correction on a frozen robot policy.


def residual_add(commands: Commands) -> None:
    residual = commands.add_parser("residual", help="put a small correction on a frozen robot policy, to be trained")
    residual.add_argument(
        "base", help="a folder, a run folder or a bundled name, of a policy as `vlrl clone` makes them"
    )
    residual.add_argument("--out", required=True, metavar="DIR", help="for `policy.model`")
    residual.add_argument("--scale", type=float, default=0.1, help="of a correction of 1, in halves of the limits' "
                          "width, default %(default)s")  # fmt: skip
    residual.add_argument("--log-std", type=float, default=-1.0, help="of corrections, before the scale, default "
                          "%(default)s")  # fmt: skip
    residual.add_argument("--ticks", type=int, default=1, help="that a correction is held, default %(default)s")
    residual.add_argument("--hidden", type=int, default=256, help="width of a layer, default %(default)s")
    residual.add_argument("--layers", type=int, default=2, help="default %(default)s")
    residual.add_argument("--seed", type=int, default=0)
    residual.set_defaults(run=_residual)


def _residual(options: argparse.Namespace) -> int:
    quiet()
    import torch

    from vlrl.config import PolicySection
    from vlrl.io import hold_folder
    from vlrl.policies.discrete import ControlPolicy
    from vlrl.policies.loading import load
    from vlrl.policies.residual import ResidualPolicy, Size

    out = Path(options.out)
    with hold_folder(out):
        base = load(PolicySection(model=options.base), device="cpu")
        if not isinstance(base, ControlPolicy):
            raise UserError(f"{options.base}: is no policy of the kind that `vlrl clone` makes")
        torch.manual_seed(options.seed)
        try:
            size = Size(options.scale, options.log_std, options.ticks, options.hidden, options.layers)
        except ValueError as error:
            raise UserError(f"residual: {error}") from None
        policy = ResidualPolicy(base, size)
        policy.save(out)
    count = sum(weight.numel() for weight in policy.model.parameters())
    print(f"{count:,} weights that correct {options.base} by {size.scale:g} every {size.ticks} ticks; {out}")
    return 0


# Several stages of training, and a model's own right answers as demonstrations.


def stages_add(commands: Commands) -> None:
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
    from vlrl.tools.stages import format_plan, plan_plan

    planned = plan_plan(options.config, changes)
    from vlrl.tools.stage_runs import chosen

    print(format_plan(planned, chosen(planned, only)), flush=True)
    if not options.dry_run:
        from vlrl.tools.stage_runs import run, table

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
    from vlrl.recipe_checks import load_config

    for name, value in {"samples": options.samples, "tries": options.tries}.items():
        if value is not None and value < 1:
            raise UserError(f"--{name} {value}: at least 1")
    changes = [*options.changes, *([f"policy.model={options.model}"] if options.model else [])]
    config = load_config(options.config, changes)
    quiet()
    api.check_sources(config)
    from vlrl.tools.stage_runs import best_of

    settings = {"samples": options.samples, "tries": options.tries, "keep": options.keep}
    print(f"{best_of(config, out=options.out, **settings)}; {options.out}")
    return 0


# Train, evaluate, and see what a configuration says.


def training_add(commands: Commands) -> None:
    train = commands.add_parser("train", help="train a policy from a YAML")
    train.add_argument(
        "config",
        nargs="?",
        help="a YAML file, a name of `vlrl list configs`, or a data file: its task is guessed, and a YAML written",
    )
    train.add_argument("--gpu-memory", type=float, metavar="GB", help="take the settings that fit, by `vlrl plan`")
    train.add_argument("--imitate", type=int, metavar="STEPS", help="imitate right answers first (tiny models)")
    takes_changes(train)
    takes_resume(train)
    train.set_defaults(run=_train)

    init = commands.add_parser("init", help="write a config for your data: asks, or takes options")
    init.add_argument("--data", metavar="FILE", help="rows, a folder of images, or hf://OWNER/NAME")
    init.add_argument("--test", metavar="FILE", help="held-out rows; default: a fifth of the data, by images")
    init.add_argument("--model", metavar="NAME", help="a hub name or a folder; default: embedded, a tiny one")
    init.add_argument("--gpu-memory", type=float, metavar="GB", help="of the GPU that will train")
    init.add_argument("--task", metavar="NAME", help="see `vlrl list tasks`; default: guessed from the rows")
    init.add_argument("--out", metavar="FILE.yaml", help="default: named after the data, in this folder")
    init.set_defaults(run=_init)

    imported = commands.add_parser("import-config", help="translate a config of TRL, verl or EasyR1 into ours")
    imported.add_argument("file", metavar="FILE", help="their YAML or JSON")
    imported.add_argument("--task", default="visual_reasoning", help="whose rewards are paid, default %(default)s")
    imported.add_argument("--out", metavar="FILE.yaml", help="default: vlrl_FILE.yaml in this folder")
    imported.set_defaults(run=_import_config)

    evaluate = commands.add_parser("eval", help="greedy accuracy of a model on a config's held-out samples")
    evaluate.add_argument("config", help="as for `vlrl train`; with --benchmark a run, a model folder or a hub name")
    takes_changes(evaluate)
    evaluate.add_argument("--model", metavar="DIR", help="a model folder, a run folder or a hub name")
    evaluate.add_argument("--json", action="store_true", help="print one JSON object")
    evaluate.add_argument("--report", metavar="FILE", help="write a page with the answers: an .html file, or a folder")
    evaluate.add_argument("--benchmark", metavar="NAME", help="a task of lmms-eval instead, for example screenspot_v2")
    evaluate.add_argument("--data", metavar="DIR", help="of a benchmark: a folder or file of rows; default: the hub")
    evaluate.add_argument("--strip-tags", action="store_true",
                          help="of a benchmark: its scorer is shown what stands inside <answer> alone")  # fmt: skip
    evaluate.set_defaults(run=_eval)

    warm = commands.add_parser("warmstart", help="build and train a tiny model on gold answers")
    takes_run(warm, "for example configs/models/embedded.yaml")
    warm.set_defaults(run=_warmstart)

    compare = commands.add_parser("compare", help="several recipes over one task at equal cost, with a test")
    compare.add_argument("config", help="for example configs/compare/losses.yaml")
    takes_changes(compare, "further comparisons, and key.path=value for all of them")
    compare.add_argument("--plan", action="store_true", help="only say what is equal and what is not")
    compare.add_argument("--page", metavar="FILE.md", help="also a page with a verdict on every recipe of all of them")
    compare.set_defaults(run=_compare)

    show = commands.add_parser("show", help="the fully resolved config")
    show.add_argument("config", help="as for `vlrl train`")
    takes_changes(show)
    show.add_argument("--explain", action="store_true", help="say above each key what it means")
    show.set_defaults(run=_show)

    demo = commands.add_parser("demo", help="train the embedded model on GUI grounding, evaluate, report")
    takes_changes(demo)
    demo.set_defaults(run=_demo)


def _train(options: argparse.Namespace) -> int:
    if options.imitate is not None and (options.resume or options.imitate < 1):
        raise UserError("--imitate: at least 1 step, and not with --resume, which goes on behind it")
    if options.resume:
        changes = [*find_first_change(options), *options.changes]
        return _train_and_report(lambda: api.resume(options.resume, *changes, allow_changes=options.allow_changes))
    if options.allow_changes:
        raise UserError("--allow-changes goes with --resume")
    if not options.config:
        raise UserError("name a config, for example: vlrl train configs/gui_grounding.yaml")
    from vlrl.tools.start import fit_memory, is_data

    if is_data(options.config):
        options.config = _start_from_data(options)
    config = api.load_config(options.config, *options.changes)
    if options.gpu_memory:
        config, line = fit_memory(config, options.gpu_memory)
        print(line, file=sys.stderr)
    return _run(_imitate(config, options.imitate) if options.imitate else config)


def _imitate(config: Config, steps: int) -> Config:
    """Imitates right answers first, and says what that gave -> the run that goes on from there."""
    from vlrl.tools.start import is_small

    if not is_small(config.policy.model) or get_world().size > 1:
        raise UserError(f"--imitate: of a tiny model, in one process; for {config.policy.model} see docs/stages.md")
    quiet()
    from vlrl.imitation.sft import enlarge, imitate_gold

    config, resize = enlarge(config)
    before = api.evaluate_policy(config).accuracy
    config, after = imitate_gold(config, steps, resize)
    print(
        f"imitation: {before.value:.3f} [{before.low:.3f}, {before.high:.3f}] -> {after['value']:.3f} "
        f"[{after['low']:.3f}, {after['high']:.3f}] on {after['n']} held-out samples, {after['cpu_s']:.0f} CPU-s; "
        f"{config.policy.model}",
        flush=True,
    )
    return config


def _start_from_data(options: argparse.Namespace) -> str:
    """Writes a config for the data that stands in a config's place -> its file."""
    from vlrl.tools.start import StartOptions, write_start

    if get_world().size > 1:
        raise UserError(f"{options.config} is data: write its config first, `vlrl init --data {options.config}`")
    keys = {"data.test": "test", "policy.model": "model", "task": "task", "task.name": "task"}
    changes = (change.partition("=") for change in options.changes)
    settings = {keys[key]: value for key, _, value in changes if key in keys}
    reach_model(settings.get("model", ""))  # before a config is written that the next try would find
    out = _name_config(options.config)
    start = StartOptions(options.config, out, **settings)
    print(*write_start(start, import_module("tasks.data.guess")), sep="\n", file=sys.stderr)
    return str(out)


def _name_config(data: str) -> Path:
    return Path(f"{Path(data.rstrip('/')).stem or 'data'}.yaml")


def _init(options: argparse.Namespace) -> int:
    from vlrl.tools.start import StartOptions, write_start

    if sys.stdin.isatty():
        options.data = options.data or input("data (a file of rows, a folder of images, or hf://OWNER/NAME): ").strip()
        options.model = options.model or input("model (a hub name or a folder) [embedded]: ").strip()
        if options.gpu_memory is None and (memory := input("GPU memory in GB [none: train as it is]: ").strip()):
            try:
                options.gpu_memory = float(memory)
            except ValueError:
                raise UserError(f"GPU memory {memory!r}: should be a number of GB, for example 24") from None
    if not options.data:
        raise UserError("name your data: vlrl init --data FILE")
    out = Path(options.out) if options.out else _name_config(options.data)
    start = StartOptions(options.data, out, options.model or "embedded", options.task, options.test, options.gpu_memory)
    print(*write_start(start, import_module("tasks.data.guess")), f"next: vlrl train {out}", sep="\n")
    return 0


def _import_config(options: argparse.Namespace) -> int:
    from vlrl.tools.start import import_config

    file = Path(options.file)
    out = Path(options.out or f"vlrl_{file.stem}.yaml")
    print(*import_config(file, out, options.task), sep="\n")
    return 0


def _benchmark(options: argparse.Namespace) -> int:
    if options.report:
        raise UserError("--report goes without --benchmark")
    if get_world().size > 1:
        raise UserError("--benchmark runs in one process")
    quiet()
    from vlrl.evaluation.benchmarks import evaluate_benchmark, format_benchmark, read_settings

    source = options.model or options.config
    settings = read_settings(source, options.changes)
    read_video = import_module("tasks.data.video").read_clip_frames
    extra = {"data": options.data, "strip_tags": options.strip_tags}
    result = evaluate_benchmark(options.benchmark, source, settings, read_video, **extra)
    print(json.dumps(result) if options.json else format_benchmark(result))
    return 0


def _eval(options: argparse.Namespace) -> int:
    if options.benchmark:
        return _benchmark(options)
    if options.data or options.strip_tags:
        raise UserError("--data and --strip-tags go with --benchmark; a config's own data is data.test=FILE")
    changes = [*options.changes, *([f"policy.model={options.model}"] if options.model else [])]
    config = api.load_config(options.config, *changes)
    get_world().join()
    page = None
    if options.report:
        from vlrl.report.evaluation import target, write_evaluation

        page = target(options.report)  # a mistake in it is said before the work
    result, policy, task = api.evaluated(config)
    measured = vars(result.accuracy)
    if page:
        write_evaluation(page, result, policy, config, bad_rows=len(task.bad_rows))
    if not get_world().is_rank_zero:
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
    from vlrl.imitation.configs import WarmstartConfig

    config = read_config(options, partial(load_as, WarmstartConfig), "configs/models/embedded.yaml")
    reach_model(config.start or "")
    quiet()
    from vlrl.imitation.sft import SFTLearner, summary_text

    print(summary_text(run_learner(options, SFTLearner(config))))
    return 0


def _compare(options: argparse.Namespace) -> int:
    from vlrl.evaluation.compare import plan_plan

    files = [options.config, *(each for each in options.changes if "=" not in each)]
    changes = [each for each in options.changes if "=" in each]
    plans = {file: plan_plan(file, changes) for file in files}
    for file, planned in plans.items():
        print(f"{file}\n{planned.text()}", flush=True)
    if not options.plan:
        for arm in (arm for planned in plans.values() for arm in planned.arms):
            api.check_sources(arm.config)
        quiet()
        from vlrl.evaluation.compare_runs import check_page, compare, write_page

        if options.page:
            check_page(Path(options.page))  # a mistake in it is said before the work
        results = {file: compare(planned) for file, planned in plans.items()}
        if options.page:
            write_page(results, Path(options.page), changes)
    return 0


def _show(options: argparse.Namespace) -> int:
    from vlrl.config import dump

    config = api.load_config(options.config, *options.changes)
    if options.explain:
        from vlrl.tools.option_help import explain

        print(explain(config))
    else:
        print(dump(config), end="")
    return 0


def _demo(options: argparse.Namespace) -> int:
    return _run(api.load_config(CONFIGS / "gui_grounding.yaml", "out=runs/demo", *options.changes))


def _run(config: Config) -> int:
    return _train_and_report(lambda: api.train(config))


def _train_and_report(train: Callable[[], api.Run]) -> int:
    """Trains, and says in a line what came of it."""
    run = train()
    if not get_world().is_rank_zero:
        return 0
    summary = run.summary
    before, after = summary["before"], summary["after"]
    print(
        f"{summary['metric']} {before['value']:.3f} [{before['low']:.3f}, {before['high']:.3f}] -> "
        f"{after['value']:.3f} [{after['low']:.3f}, {after['high']:.3f}] on {after['n']} held-out samples, "
        f"{summary['wall_s']:.0f} s, {summary['cpu_s']:.0f} CPU-s; report: {run.folder / 'report.html'}"
    )
    return 0
