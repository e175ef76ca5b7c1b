"""What a plan would do, said before anything is done."""

from __future__ import annotations

from collections.abc import Sequence

from vlrl.stages.config import Average, BestOf, Select, Train
from vlrl.stages.plan import Plan
from vlrl.stages.step import Step


def told(plan: Plan, chosen: Sequence[Step]) -> str:
    """A line per stage: its folder, what it runs, from which model, how much, and whether it is there already."""
    from vlrl.stages.run import finished

    rows = [
        (step.name, step.stage.run, f"from {_start(plan, step)}", step.task, _size(step),
         "finished" if finished(step) else "to run" if step in chosen else "left out")
        for step in plan.steps
    ]  # fmt: skip
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    held = "all" if plan.measured.eval.samples is None else f"{plan.measured.eval.samples}"
    return "\n".join([*lines, f"then {held} held-out samples of {plan.measured.task.name} by every model; {plan.out}"])


def _start(plan: Plan, step: Step) -> str:
    known = {str(other.folder): other.name for other in plan.steps}
    return known.get(step.start, step.start) if step.start else "scratch"


def _size(step: Step) -> str:
    stage, config = step.stage, step.config
    if isinstance(stage, Average):
        return f"{len(stage.models)} models"
    if isinstance(stage, Train):
        size = f"{config.train.steps} steps x {config.train.prompts} prompts x {config.train.group_size}"
        return size + (f", samples of {stage.only}" if stage.only else "") + (
            f", teacher {stage.teacher}" if stage.teacher else "")  # fmt: skip
    if isinstance(stage, Select | BestOf):
        times = stage.repeats if isinstance(stage, Select) else stage.tries
        return f"{stage.samples or 'all'} samples x {times}"
    return f"{config.steps} steps x {config.images}"
