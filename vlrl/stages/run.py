"""Carries a plan out: each stage once, in its own process, resumed where it was stopped; then one table."""

from __future__ import annotations

import json
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from vlrl.decoders import load_json
from vlrl.earlier import check_same
from vlrl.locks import hold_folder
from vlrl.log import write_text
from vlrl.processes import Processes
from vlrl.stages.held_out import Calls, answered, read
from vlrl.stages.mining import mine
from vlrl.stages.plan import Plan
from vlrl.stages.report import write_report
from vlrl.stages.step import LIST, MEASURED, Step, command
from vlrl.strict import suggest
from vlrl.types import UserError

STATE = "state.json"
# what each kind writes last; a warm start does not say
LAST = {"train": "summary.json", "select": LIST, "best_of": "episodes.jsonl", "average": "config.json",
        "warmstart": ""}  # fmt: skip


def run(plan: Plan, only: Sequence[str] = (), calls: Callable[[int], Calls] | None = None) -> dict[str, Any]:
    """Runs what has not finished, measures the models, and returns the summary; `out` holds it and report.md.

    Args:
        only: stages to run, by their names or those of their folders; none: all. The others are left as they are.
        calls: what runs the commands, given the lock's file descriptor; default: processes.

    Raises:
        UserError: a stage failed; earlier ones in `out` were made with other settings; one that is needed is not there.
    """
    steps = chosen(plan, only)
    with hold_folder(plan.out) as held, _stoppable():
        at_work = calls(held) if calls else Processes((held,))
        for step in plan.steps:
            _check(step)
        for step in steps:
            if not finished(step):
                _check_needs(plan, step)
                _run(step, at_work)
                print(f"{step.name}: done", file=sys.stderr, flush=True)
        held_out = answered(plan, at_work, finished)
        return write_report(plan, held_out, {step.name: _result(step) for step in plan.steps if finished(step)})


def chosen(plan: Plan, only: Sequence[str]) -> list[Step]:
    """The steps of these names. UserError for a name of none."""
    names = {name for step in plan.steps for name in (step.name, step.stage.name)}
    if unknown := [name for name in only if name not in names]:
        raise UserError(f"stages: no stage is called {unknown[0]!r}{suggest(unknown[0], sorted(names))}")
    return [step for step in plan.steps if not only or {step.name, step.stage.name} & set(only)]


def finished(step: Step) -> bool:
    return _state(step).get("finished") is not None


@contextmanager
def _stoppable() -> Iterator[None]:
    """SIGTERM ends this process as Ctrl-C does: what runs beneath it is asked to save."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _state(step: Step) -> dict[str, Any]:
    file = step.beside(STATE)
    return load_json(file, finite=False) if file.is_file() else {}


def _check(step: Step) -> None:
    """UserError where the stage was begun with other settings."""
    if begun := _state(step):
        check_same(step.folder, begun["settings"], step.settings())


def _check_needs(plan: Plan, step: Step) -> None:
    for other in plan.steps:
        if other.name in step.needs and not finished(other):
            raise UserError(f"stages: {step.name} needs {other.name}, which has not finished: run it as well")


def _run(step: Step, at_work: Calls) -> None:
    """One stage to its end, and a note of it."""
    step.folder.parent.mkdir(parents=True, exist_ok=True)
    write_text(step.beside(STATE), json.dumps({"settings": step.settings(), "finished": None}) + "\n")
    write_text(step.beside("yaml"), step.text())
    wall, cpu = time.monotonic(), _cpu_s()
    _carry_out(step, at_work)
    spent = {"wall_s": time.monotonic() - wall, "cpu_s": _cpu_s() - cpu}
    if step.stage.run == "train":  # of all its processes, if it was resumed
        spent = {key: read(step.folder / LAST["train"])[key] for key in spent}
    write_text(step.beside(STATE), json.dumps({"settings": step.settings(), "finished": spent}) + "\n")


def _carry_out(step: Step, at_work: Calls) -> None:
    """Its command, unless an earlier call got as far; for hard samples also the choice."""
    wanted, rate = command(step), getattr(step.stage, "pass_rate", None)
    if step.stage.run == "train" and (step.folder / "config.yaml").is_file():
        wanted = ["train", "--resume", str(step.folder)]
    if step.stage.run == "select":
        step.folder.mkdir(exist_ok=True)
    last = MEASURED if rate else LAST[step.stage.run]
    try:
        if not (last and (step.folder / last).is_file()):
            at_work.run(["-m", "vlrl.cli", *wanted], step.beside("log"))
    except UserError:  # a list that disagrees nowhere may still hold what is as hard as is wanted
        if not (rate and (step.folder / MEASURED).is_file()):
            raise
    if rate:
        mine(step.folder / MEASURED, step.folder / LIST, *rate)


def _result(step: Step) -> dict[str, Any]:
    """What a finished stage says of itself."""
    of = {"train": LAST["train"], "best_of": "best_of.json"}
    said = read(step.folder / of[step.stage.run]) if step.stage.run in of else {}
    if step.stage.run == "select":
        from vlrl import selection

        said = vars(selection.summary(selection.read(step.folder / LIST)))
    return {"said": said, **_state(step)["finished"]}


def _cpu_s() -> float:
    """Processor seconds of processes that ended under this one."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
