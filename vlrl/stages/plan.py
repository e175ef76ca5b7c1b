"""What `vlrl stages` will run: rounds unrolled, every name resolved, every config loaded and checked."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vlrl import config as configs
from vlrl.stages.config import Average, Rounds, Single, Stages, Train, Warmstart
from vlrl.stages.loading import load
from vlrl.stages.step import LIST, Averaged, Step
from vlrl.strict import load_as, suggest
from vlrl.types import UserError
from vlrl.warmstart_config import WarmstartConfig


@dataclass(frozen=True)
class Plan:
    """steps: in order, rounds unrolled. measured: the task whose held-out samples every model answers."""

    stages: Stages
    steps: list[Step]
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

    models: dict[str, Step] = field(default_factory=dict)
    others: dict[str, Step] = field(default_factory=dict)
    latest: Step | None = None

    def add(self, step: Step) -> None:
        if step.makes == "model":
            self.models[step.stage.name] = self.latest = step
        else:
            self.others[step.stage.name] = step


def plan(path: str, changes: Sequence[str] = ()) -> Plan:
    """The plan of a file: every config loaded and checked, nothing begun.

    Raises:
        UserError: a mistake in a file; a name of no earlier stage, or one that makes something else.
    """
    stages = load(path, changes)
    made, steps = _Made(), []
    for stage, number in unrolled(stages):
        try:
            step = _step(stage, number, len(steps) + 1, stages, made)
        except UserError as error:
            raise UserError(f"{path}: stage {stage.name}: {error}") from None
        made.add(step)
        steps.append(step)
    last = next((step.config for step in reversed(steps) if isinstance(step.config, configs.Config)), None)
    if stages.measured_on is None and last is None:
        raise UserError(f"{path}: measured_on: is required where all stages are warmstart or average")
    return Plan(stages, steps, configs.load(stages.measured_on) if stages.measured_on else last)


def unrolled(stages: Stages) -> Iterator[tuple[Single, int | None]]:
    """Each stage in order with its round, from 0; None: it stands in none."""
    for entry in stages.stages:
        if isinstance(entry, Rounds):
            yield from ((stage, number) for number in range(entry.times) for stage in entry.stages)
        else:
            yield entry, None


def _step(stage: Single, number: int | None, place: int, stages: Stages, made: _Made) -> Step:
    name = f"{place:02}_{stage.name}" if number is None else f"{place:02}_{stage.name}_{number + 1}"
    folder = Path(stages.out) / name
    if isinstance(stage, Average):
        of = [_named(each, made.models, "models") for each in stage.models]
        averaged = Averaged(models=[str(step.folder) for step in of], shares=stage.shares, out=str(folder))
        return Step(stage, name, folder, averaged.models[0], averaged, tuple(step.name for step in of))
    start, needs = _start(stage.start, stages.start, made)
    given = [f"out={json.dumps(str(folder))}"]
    if start is not None:
        given.append(f"{'start' if stage.run == 'warmstart' else 'policy.model'}={json.dumps(start)}")
    for change, step in _read(stage, made):
        given.append(change)
        needs.append(step.name)
    config = _load(stage, given)
    seed = (config.seed if stages.seed is None else stages.seed) + (number or 0)
    config = config.model_copy(update={"seed": seed})
    begins = config.start if stage.run == "warmstart" else config.policy.model
    return Step(stage, name, folder, begins, config, tuple(needs))


def _load(stage: Single, given: Sequence[str]) -> Any:
    changes = [*stage.files, *stage.changes, *given]
    if stage.run != "warmstart":
        return configs.load(stage.config, changes)
    return load_as(WarmstartConfig, stage.config, changes)


def _start(wanted: str, first: str | None, made: _Made) -> tuple[str | None, list[str]]:
    """The model to start from (None: the config's own) and the steps that make it."""
    if wanted == "own":
        return None, []
    if wanted != "previous":
        step = _named(wanted, made.models, "start")
        return str(step.folder), [step.name]
    return (str(made.latest.folder), [made.latest.name]) if made.latest else (first, [])


def _read(stage: Single, made: _Made) -> Iterator[tuple[str, Step]]:
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


def _named(name: str, known: Mapping[str, Step], key: str, run: str = "") -> Step:
    fit = {each: step for each, step in known.items() if run in ("", step.stage.run)}
    if name not in fit:
        what = f"a {run} stage" if run else "a stage that makes a model"
        raise UserError(f"{key}: {name!r} is not the name of {what} before it{suggest(name, list(fit))}")
    return fit[name]
