"""Stages of a training plan: configuration, steps, measurement."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BeforeValidator, Field

from vlrl import config as configs
from vlrl.config import Count, Section, config_file, load_as
from vlrl.decoders import load_json
from vlrl.evaluation.compare import find_file
from vlrl.imitation.configs import WarmstartConfig
from vlrl.recipe_checks import load_config
from vlrl.types import UserError, suggest

STATE = "state.json"  # beside a step's folder: with which settings it began, and what it spent

# The file of `vlrl stages` as typed, strict data. Loads no torch.

Name = Annotated[str, Field(pattern=r"^[A-Za-z][\w-]*$")]
Share = Annotated[float, Field(gt=0, le=1)]
Bound = Annotated[float, Field(ge=0, le=1)]
PassRate = Annotated[list[Bound], Field(min_length=2, max_length=2)]


class Entry(Section):
    """What stages have in common.

    Args:
        name: of its folder and log; others refer to it.
        config: YAML of what it runs, from this file's folder or from where the command runs.
        files: recipes that lie over it.
        changes: `key.path=value`, applied last.
        start: the model that it starts from: `previous`, the latest that a stage before it made (before any: the
            file's own `start`, or the config's model); `own`, the config's model; or the name of an earlier stage.
    """

    name: Name
    config: str
    files: list[str] = []  # noqa: RUF012
    changes: list[str] = []  # noqa: RUF012
    start: str = "previous"


class Warmstart(Entry):
    """`vlrl warmstart`: supervised.

    Args:
        demonstrations: names of `best_of` stages, whose answers are learned in place of the config's lessons.
    """

    run: Literal["warmstart"]
    demonstrations: list[Name] = []  # noqa: RUF012


class Train(Entry):
    """`vlrl train`: RL, or distillation where there is a teacher.

    Args:
        only: name of a `select` stage: its samples alone are drawn (`sampler: listed`).
        teacher: name of an earlier stage whose model is `policy.teacher`.
    """

    run: Literal["train"]
    only: Name | None = None
    teacher: Name | None = None


class Select(Entry):
    """`vlrl select`: which training samples teach this model.

    Args:
        samples: so many are measured; default: all.
        repeats: answers to each.
        pass_rate: least and largest share of right answers of the samples that are kept: hard-sample mining.
        keep: instead, the share of the samples whose rewards vary most.
    """

    run: Literal["select"]
    samples: Count | None = None
    repeats: Annotated[int, Field(ge=2)] = 8
    pass_rate: PassRate | None = None
    keep: Share = 0.25


class BestOf(Entry):
    """`vlrl best-of`: the model's own right answers as demonstrations.

    Args:
        samples: training samples that are asked; default: all.
        tries: answers to each.
        keep: of a sample's right ones the `shortest`, any `one`, or `all` that differ.
    """

    run: Literal["best_of"]
    samples: Count | None = None
    tries: Count = 8
    keep: Literal["shortest", "one", "all"] = "shortest"


class Average(Section):
    """`vlrl average`: the mean of models' weights.

    Args:
        name: as of the others.
        models: names of earlier stages that made models of one architecture.
        shares: of each, together 1; default: equal ones.
    """

    run: Literal["average"]
    name: Name
    models: Annotated[list[Name], Field(min_length=2)]
    shares: list[Share] | None = None


class Rounds(Section):
    """The stages in it `times` times. A round's seeds are the first one's and so many more as rounds came before."""

    run: Literal["rounds"]
    times: Count
    stages: Annotated[list[Single], Field(min_length=1)]


def _kind(value: Any) -> Any:
    """Said by us: a union's own message lists the whole entry."""
    known = ("warmstart", "train", "select", "best_of", "average", "rounds")
    kind = value.get("run") if isinstance(value, Mapping) else None
    if kind not in known:
        raise ValueError(f"run: one of {', '.join(known)}{suggest(str(kind), known)}")
    return value


Stage = Warmstart | Train | Select | BestOf | Average
Single = Annotated[Stage, Field(discriminator="run"), BeforeValidator(_kind)]
Listed = Annotated[Stage | Rounds, Field(discriminator="run"), BeforeValidator(_kind)]


class Stages(Section):
    """The file.

    Args:
        out: a folder; each stage has its own in it, NN_NAME.
        start: the model that the first stage starts from; default: its config's.
        seed: of every stage; default: each config's own.
        measured_on: YAML of a task whose held-out samples every model answers at the end; default: the last stage's.
    """

    out: str
    start: str | None = None
    seed: int | None = None
    measured_on: str | None = None
    stages: Annotated[list[Listed], Field(min_length=1)]


Rounds.model_rebuild()


# Held-out accuracy of several models on one task, in a process of its own.
#
# python -m vlrl.tools.stages CONFIG (MODEL OUT)...


def main(arguments: Sequence[str]) -> int:
    from vlrl import registry
    from vlrl.api import quiet
    from vlrl.metrics import write_text

    quiet()
    from vlrl.engines import load_policy
    from vlrl.runner import evaluate

    config_file, *pairs = arguments
    config = load_config(config_file)
    task = registry.make_task(config)
    for model, out in zip(pairs[::2], pairs[1::2], strict=True):
        section = config.policy.model_copy(update={"model": model})
        policy = load_policy(section, shared_prefix=config.train.shared_prefix, seed=config.seed)
        task.fits(policy)
        result = evaluate(policy, task, samples=config.eval.num_samples, batch=config.eval.batch_size)
        row = {**vars(result.accuracy), "reward": result.reward, "length": result.length,
               "parse_fail": result.parse_fail, "settings": config.model_dump(mode="json")}  # fmt: skip
        write_text(Path(out), json.dumps(row) + "\n")
    return 0


# From the file of `vlrl stages` to its checked entries, with the files that they name.


def loading_load(path: str | Path, changes: Sequence[str] = ()) -> Stages:
    """A YAML file and changes to it -> the checked stages, their files found.

    Args:
        changes: `key=value` of the file itself, or `NAME.key.path=value` of what the stage NAME runs.

    Raises:
        UserError: as `load_as`; a name that stands twice; a file that does not exist; a change of no stage.
    """
    own = [change for change in changes if "." not in change.partition("=")[0]]
    loaded = load_as(Stages, path, own)
    of: dict[str, list[str]] = {}
    for change in changes:
        if change not in own:
            name, _, rest = change.partition(".")
            of.setdefault(name, []).append(rest)
    listed = [stage.stages if isinstance(stage, Rounds) else [stage] for stage in loaded.stages]
    known = [each.name for stages in listed for each in stages]
    if twice := [name for name in known if known.count(name) > 1]:
        raise UserError(f"{path}: the name {twice[0]!r} stands twice")
    if unknown := [name for name in of if name not in known]:
        raise UserError(f"{path}: no stage is called {unknown[0]!r}{suggest(unknown[0], known)}")
    folder = config_file(path).parent
    try:
        stages = [_resolve_stage(stage, folder, of) for stage in loaded.stages]
        measured = find_file(folder, loaded.measured_on) if loaded.measured_on else None
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    return loaded.model_copy(update={"stages": stages, "measured_on": measured})


def _resolve_stage(stage: Stage | Rounds, folder: Path, of: Mapping[str, list[str]]) -> Stage | Rounds:
    if isinstance(stage, Rounds):
        return stage.model_copy(update={"stages": [_resolve_stage(each, folder, of) for each in stage.stages]})
    if isinstance(stage, Average):
        if of.get(stage.name):
            raise UserError(f"{stage.name}.{of[stage.name][0]}: an average runs no config: change the file")
        return stage
    files = [find_file(folder, file) for file in stage.files]
    changes = [*stage.changes, *of.get(stage.name, [])]
    return stage.model_copy(update={"config": find_file(folder, stage.config), "files": files, "changes": changes})


# One stage at its place: its resolved settings, its folder and its command.

MAKES = {"warmstart": "model", "train": "model", "average": "model", "select": "list", "best_of": "demonstrations"}
LIST, MEASURED = "list.jsonl", "measured.jsonl"


class Averaged(Section):
    """What an average is made of. models: folders."""

    models: list[str]
    shares: list[float] | None
    out: str


@dataclass(frozen=True)
class StageStep:
    """One stage at its place. start: the model that it starts from, or none: it builds one."""

    stage: Single
    name: str  # its folder's
    folder: Path
    start: str | None
    config: Any  # a `Config`, a `WarmstartConfig` or `Averaged`
    needs: tuple[str, ...]  # names of steps whose results it reads

    @property
    def makes(self) -> str:
        return MAKES[self.stage.run]

    @property
    def task(self) -> str:
        """What it is about, for people."""
        if isinstance(self.stage, Average):
            return f"mean of {' and '.join(self.stage.models)}"
        if self.stage.run != "warmstart":
            return self.config.task.name
        tasks = dict.fromkeys(each.task.name for each in self.config.lessons if each.task)
        return ", ".join(tasks) or "own answers"

    def settings(self) -> dict[str, Any]:
        """All that decides its result."""
        own = self.stage.model_dump(exclude={"name", "config", "files", "changes", "start"})
        return {**own, "config": self.config.model_dump(mode="json", exclude={"out"})}

    def text(self) -> str:
        """The YAML of its command."""
        return yaml.safe_dump(self.config.model_dump(mode="json"), sort_keys=False, width=120)

    @property
    def state(self) -> dict[str, Any]:
        """What its state file says: `settings` and, once it has ended, `finished`; {} before it begins."""
        file = self.sibling_file(STATE)
        return load_json(file, finite=False) if file.is_file() else {}

    @property
    def finished(self) -> bool:
        return self.state.get("finished") is not None

    def sibling_file(self, ending: str) -> Path:
        """A file of it beside its folder."""
        return self.folder.with_name(f"{self.name}.{ending}")


def command(step: StageStep) -> list[str]:
    """The `vlrl` command of a step that has not begun."""
    stage, config = step.stage, str(step.sibling_file("yaml"))
    if isinstance(stage, Average):
        shares = [] if stage.shares is None else ["--shares", *map(str, stage.shares)]
        return ["average", *step.config.models, "--out", str(step.folder), *shares]
    if isinstance(stage, Select):
        out = step.folder / (MEASURED if stage.pass_rate else LIST)
        some = [] if stage.samples is None else ["--samples", str(stage.samples)]
        keep = 1.0 if stage.pass_rate else stage.keep
        return ["select", config, "--out", str(out), "--repeats", str(stage.repeats), "--keep", str(keep), *some]
    if isinstance(stage, BestOf):
        some = [] if stage.samples is None else ["--samples", str(stage.samples)]
        return ["best-of", config, "--out", str(step.folder), "--tries", str(stage.tries), "--keep", stage.keep, *some]
    return [stage.run, config]


# What `vlrl stages` will run: rounds unrolled, every name resolved, every config loaded and checked.


@dataclass(frozen=True)
class StagePlan:
    """steps: in order, rounds unrolled. measured: the task whose held-out samples every model answers."""

    stages: Stages
    steps: list[StageStep]
    measured: configs.Config

    @property
    def out(self) -> Path:
        return Path(self.stages.out)

    @property
    def begin(self) -> str | None:
        """The model before all stages; none where the first one builds it."""
        return next((step.start for step in self.steps), None)


@dataclass
class _Made:
    """Results of the steps so far, by the latest of each name."""

    models: dict[str, StageStep] = field(default_factory=dict)
    others: dict[str, StageStep] = field(default_factory=dict)
    latest: StageStep | None = None

    def add(self, step: StageStep) -> None:
        if step.makes == "model":
            self.models[step.stage.name] = self.latest = step
        else:
            self.others[step.stage.name] = step


def plan_plan(path: str, changes: Sequence[str] = ()) -> StagePlan:
    """The plan of a file: every config loaded and checked, nothing begun.

    Raises:
        UserError: a mistake in a file; a name of no earlier stage, or one that makes something else.
    """
    stages = loading_load(path, changes)
    outline, steps = _Made(), []
    for stage, number in unrolled(stages):
        try:
            step = _step(stage, number, len(steps) + 1, stages, outline)
        except UserError as error:
            raise UserError(f"{path}: stage {stage.name}: {error}") from None
        outline.add(step)
        steps.append(step)
    last = next((step.config for step in reversed(steps) if isinstance(step.config, configs.Config)), None)
    if stages.measured_on is None and last is None:
        raise UserError(f"{path}: measured_on: is required where all stages are warmstart or average")
    return StagePlan(stages, steps, load_config(stages.measured_on) if stages.measured_on else last)


def unrolled(stages: Stages) -> Iterator[tuple[Single, int | None]]:
    """Each stage in order with its round, from 0; None: it stands in none."""
    for entry in stages.stages:
        if isinstance(entry, Rounds):
            yield from ((stage, number) for number in range(entry.times) for stage in entry.stages)
        else:
            yield entry, None


def _step(stage: Single, number: int | None, place: int, stages: Stages, made: _Made) -> StageStep:
    name = f"{place:02}_{stage.name}" if number is None else f"{place:02}_{stage.name}_{number + 1}"
    folder = Path(stages.out) / name
    if isinstance(stage, Average):
        of = [_named(each, made.models, "models") for each in stage.models]
        averaged = Averaged(models=[str(step.folder) for step in of], shares=stage.shares, out=str(folder))
        return StageStep(stage, name, folder, averaged.models[0], averaged, tuple(step.name for step in of))
    start, needs = _plan_start(stage.start, stages.start, made)
    arguments = [f"out={json.dumps(str(folder))}"]
    if start is not None:
        arguments.append(f"{'start' if stage.run == 'warmstart' else 'policy.model'}={json.dumps(start)}")
    for change, step in _read(stage, made):
        arguments.append(change)
        needs.append(step.name)
    config = _load(stage, arguments)
    seed = (config.seed if stages.seed is None else stages.seed) + (number or 0)
    config = config.model_copy(update={"seed": seed})
    begins = config.start if stage.run == "warmstart" else config.policy.model
    return StageStep(stage, name, folder, begins, config, tuple(needs))


def _load(stage: Single, given: Sequence[str]) -> Any:
    changes = [*stage.files, *stage.changes, *given]
    if stage.run != "warmstart":
        return load_config(stage.config, changes)
    return load_as(WarmstartConfig, stage.config, changes)


def _plan_start(wanted: str, first: str | None, made: _Made) -> tuple[str | None, list[str]]:
    """The model to start from (None: the config's own) and the steps that make it."""
    if wanted == "own":
        return None, []
    if wanted != "previous":
        step = _named(wanted, made.models, "start")
        return str(step.folder), [step.name]
    return (str(made.latest.folder), [made.latest.name]) if made.latest else (first, [])


def _read(stage: Single, made: _Made) -> Iterator[tuple[str, StageStep]]:
    """Changes to a stage's config by which it reads what earlier ones made."""
    if isinstance(stage, Train) and stage.only:
        step = _named(stage.only, made.others, "only", "select")
        yield f"sampler={json.dumps({'name': 'listed', 'file': str(step.folder / LIST)})}", step
    if isinstance(stage, Train) and stage.teacher:
        step = _named(stage.teacher, made.models, "teacher")
        yield f"policy.teacher={json.dumps(str(step.folder))}", step
    if isinstance(stage, Warmstart) and stage.demonstrations:
        steps = [_named(name, made.others, "demonstrations", "best_of") for name in stage.demonstrations]
        lessons = json.dumps([{"episodes": str(step.folder)} for step in steps])
        yield from ((f"lessons={lessons}", step) for step in steps)


def _named(name: str, known: Mapping[str, StageStep], key: str, run: str = "") -> StageStep:
    fit = {each: step for each, step in known.items() if run in ("", step.stage.run)}
    if name not in fit:
        what = f"a {run} stage" if run else "a stage that makes a model"
        raise UserError(f"{key}: {name!r} is not the name of {what} before it{suggest(name, list(fit))}")
    return fit[name]


# What a plan would do, said before anything is done.


def format_plan(plan: StagePlan, chosen: Sequence[StageStep]) -> str:
    """A line per stage: its folder, what it runs, from which model, how much, and whether it is there already."""
    rows = [
        (step.name, step.stage.run, f"from {_describe_start(plan, step)}", step.task, _size(step),
         "finished" if step.finished else "to run" if step in chosen else "left out")
        for step in plan.steps
    ]  # fmt: skip
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    held = "all" if plan.measured.eval.num_samples is None else f"{plan.measured.eval.num_samples}"
    return "\n".join([*lines, f"then {held} held-out samples of {plan.measured.task.name} by every model; {plan.out}"])


def _describe_start(plan: StagePlan, step: StageStep) -> str:
    known = {str(other.folder): other.name for other in plan.steps}
    return known.get(step.start, step.start) if step.start else "scratch"


def _size(step: StageStep) -> str:
    stage, config = step.stage, step.config
    if isinstance(stage, Average):
        return f"{len(stage.models)} models"
    if isinstance(stage, Train):
        size = f"{config.train.steps} steps x {config.train.prompts_per_step} prompts x {config.train.group_size}"
        return size + (f", samples of {stage.only}" if stage.only else "") + (
            f", teacher {stage.teacher}" if stage.teacher else "")  # fmt: skip
    if isinstance(stage, Select | BestOf):
        times = stage.repeats if isinstance(stage, Select) else stage.tries
        return f"{stage.samples or 'all'} samples x {times}"
    return f"{config.steps} steps x {config.images}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
