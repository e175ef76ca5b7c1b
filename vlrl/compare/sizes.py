"""How many prompts, steps and updates a recipe gets, so that all spend the same."""

from __future__ import annotations

from dataclasses import dataclass

from vlrl.compare.config import Budget
from vlrl.types import UserError

TRIES = 2000  # larger budgets that are tried for a suggestion


@dataclass(frozen=True)
class Shape:
    """What a recipe is made of that its sizes hang on.

    Args:
        group: completions of a prompt a visit.
        start: first responses to each prompt before the first step.
        epochs: passes over a step's rollouts.
    """

    group: int
    start: int
    epochs: int


@dataclass(frozen=True)
class Sizes:
    """pool: different prompts; prompts: a step."""

    pool: int
    steps: int
    prompts: int
    minibatches: int


def derive(shape: Shape, budget: Budget) -> Sizes:
    """The sizes that spend exactly the budget.

    Raises:
        UserError: there are none in whole numbers.
    """
    rollouts, steps = budget.rollouts, _whole(
        budget.rollouts, budget.rollouts_per_update * budget.updates_per_step,
        "budget.rollouts is not a whole number of steps of rollouts_per_update x updates_per_step",
    )  # fmt: skip
    pool = budget.prompts or _pool(shape, budget)
    left = rollouts - shape.start * pool
    if left <= 0:
        raise UserError(f"first responses to {pool:,} prompts leave nothing of {rollouts:,} rollouts")
    spent = f", of which {shape.start * pool:,} are first responses," if shape.start else ""
    problem = f"{rollouts:,} rollouts{spent} do not make {steps:,} steps of whole groups of {shape.group}"
    prompts = _whole(left, steps * shape.group, problem)
    minibatches = _whole(budget.updates_per_step, shape.epochs,
                         f"{budget.updates_per_step} updates a step do not make {shape.epochs} epochs")  # fmt: skip
    _whole(prompts, minibatches, f"{prompts} prompts a step do not make {minibatches} equal minibatches")
    return Sizes(pool, steps, prompts, minibatches)


def _pool(shape: Shape, budget: Budget) -> int:
    """So many prompts that each is visited `passes` times, a tracker's first responses being the first visit."""
    visits = budget.passes - bool(shape.start)
    a_prompt = shape.start + visits * shape.group
    if visits < 1:
        raise UserError("first responses are a pass of their own: set budget.passes to 2 or more")
    problem = f"{budget.rollouts:,} rollouts do not make {budget.passes} passes of {a_prompt} answers a prompt"
    return _whole(budget.rollouts, a_prompt, problem)


def suggestion(shapes: list[Shape], budget: Budget) -> str:
    """'; budget.rollouts=N would do', with the next larger budget that all recipes can spend exactly; '' if none."""
    step = budget.rollouts_per_update * budget.updates_per_step
    for steps in range(budget.rollouts // step + 1, budget.rollouts // step + TRIES):
        try:
            for shape in shapes:
                derive(shape, budget.model_copy(update={"rollouts": steps * step}))
        except UserError:
            continue
        return f"; budget.rollouts={steps * step} would do"
    return ""


def _whole(number: int, parts: int, problem: str) -> int:
    if number % parts:
        raise UserError(problem)
    return number // parts
