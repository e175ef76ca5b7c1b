"""From a comparison to the training config of each arm: what a recipe is, over settings that are everyone's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from vlrl import config as configs
from vlrl import registry
from vlrl.compare.config import Comparison, Recipe
from vlrl.compare.sizes import Shape, Sizes, derive, suggestion
from vlrl.config import Config, PolicySection, TrainSection
from vlrl.strict import Component, suggest
from vlrl.types import UserError

# What a recipe brings; all else is the task's.
METHOD = ("process", "shaping", "advantages", "replay", "losses", "weighing", "hooks")
WHOLE = ("sampler", "rollouts")  # kept where the recipe says that they are its own
SIZES = ("steps", "prompts", "group_size", "minibatches", "microbatch")  # of `train`, derived
LOGGED = {"trackers": [], "keep": 1}


@dataclass(frozen=True)
class Arm:
    """A recipe ready to train: all of `config` but seed and folder. first: responses before the first step."""

    recipe: Recipe
    config: Config
    pool: int  # different prompts
    first: int

    @property
    def name(self) -> str:
        return self.recipe.name


def arms_of(comparison: Comparison) -> list[Arm]:
    """Every arm, its sizes derived.

    Raises:
        UserError: what cannot be made equal, with the recipe's name.
    """
    task = configs.load(comparison.task)
    samples = len(registry.make_task(task).samples("train"))
    laid = {recipe.name: _laid(recipe, task, comparison) for recipe in comparison.recipes}
    shapes = [_shape(laid[r.name]) for r in comparison.recipes if not r.as_released]
    made = []
    for recipe in comparison.recipes:
        try:
            own = laid[recipe.name]
            build = _released if recipe.as_released else _equal
            arm = build(recipe, own, comparison, samples, shapes)
            registry.check(arm.config, "resolved")
            made.append(arm)
        except UserError as error:
            raise UserError(f"recipe {recipe.name}: {error}") from None
    return made


def _laid(recipe: Recipe, task: Config, comparison: Comparison) -> Config:
    """The recipe over the task; where it is to be equal, with the task's own settings put back."""
    try:
        over = configs.load(comparison.task, [*recipe.files, *recipe.changes])
    except UserError as error:
        raise UserError(f"recipe {recipe.name}: {error}") from None
    log = over.log.model_copy(update=LOGGED)
    if recipe.as_released:
        return over.model_copy(update={"log": log})
    kept = _own(recipe)
    policy = task.policy.model_copy(update={key: getattr(over.policy, key) for key in kept["policy"]})
    train = task.train.model_copy(
        update={key: getattr(over.train, key) for key in (*kept["train"], *SIZES)} | {"microbatch": None}
    )
    if "epochs" not in kept["train"]:
        train = train.model_copy(update={"epochs": 1})
    if train.group_size > 1 and comparison.budget.group_size:
        train = train.model_copy(update={"group_size": comparison.budget.group_size})
    method = {key: getattr(over, key) for key in (*METHOD, "sampler", "rollouts")}
    return task.model_copy(update={"policy": policy, "train": train, "log": log, **method})


def _own(recipe: Recipe) -> dict[str, list[str]]:
    """The settings that a recipe keeps, by section."""
    allowed = [*WHOLE, *(f"policy.{key}" for key in PolicySection.model_fields)]
    allowed += [f"train.{key}" for key in TrainSection.model_fields if key not in SIZES]
    unknown = [key for key in recipe.own if key not in allowed]
    if unknown:
        raise UserError(f"recipe {recipe.name}: own: {unknown[0]!r} is no setting{suggest(unknown[0], allowed)}")
    return {part: [k.partition(".")[2] for k in recipe.own if k.startswith(part)] for part in ("policy", "train")}


def _equal(recipe: Recipe, own: Config, comparison: Comparison, samples: int, shapes: Sequence[Shape]) -> Arm:
    released = "or mark the recipe as_released: true"
    if own.sampler.name != "shuffled" and "sampler" not in recipe.own:
        raise UserError(f"the sampler {own.sampler.name} visits prompts unequally often: add changes: "
                        f"[sampler=shuffled], or own: [sampler] where that is its point, {released}")  # fmt: skip
    if own.rollouts.name != "plain" and "rollouts" not in recipe.own:
        raise UserError(f"the rollouts {own.rollouts.name} are not as many as the budget says: add changes: "
                        f"[rollouts=plain], or own: [rollouts] where that is its point, {released}")  # fmt: skip
    try:
        sizes = derive(_shape(own), comparison.budget)
    except UserError as error:
        raise UserError(f"{error}{suggestion(list(shapes), comparison.budget)}") from None
    if sizes.pool > samples:
        raise UserError(f"{sizes.pool:,} different prompts are needed, the task has {samples:,}: more passes would do")
    if sizes.steps % comparison.evaluations:
        raise UserError(f"{sizes.steps:,} steps do not make {comparison.evaluations} equal stretches: set evaluations")
    every = max(1, round(sizes.steps / recipe.plays / comparison.evaluations))
    sizes = replace(sizes, steps=every * comparison.evaluations)
    return Arm(recipe, _sized(own, sizes, every, recipe), sizes.pool, _start(own) * sizes.pool)


def _sized(own: Config, sizes: Sizes, every: int, recipe: Recipe) -> Config:
    train = own.train.model_copy(update={k: getattr(sizes, k) for k in ("steps", "prompts", "minibatches")})
    sampler = Component(name="shuffled", limit=sizes.pool)
    if "sampler" in recipe.own:
        sampler = Component(name=own.sampler.name, **own.sampler.options | {"limit": sizes.pool})
    return own.model_copy(update={"train": train, "sampler": sampler,
                                  "eval": own.eval.model_copy(update={"every": every})})  # fmt: skip


def _released(recipe: Recipe, own: Config, comparison: Comparison, samples: int, shapes: Sequence[Shape]) -> Arm:
    """As it is, for as many whole steps as the budget's rollouts allow."""
    pool = min(samples, own.sampler.options.get("limit") or samples)
    first, a_step = _start(own) * pool, own.train.prompts * own.train.group_size * recipe.plays
    steps = int((comparison.budget.rollouts - first) // a_step)
    if steps < 1:
        raise UserError(f"{comparison.budget.rollouts:,} rollouts, less {first:,} first responses, make no step of "
                        f"{a_step:,.0f}")  # fmt: skip
    train = own.train.model_copy(update={"steps": steps})
    every = own.eval.model_copy(update={"every": max(1, round(steps / comparison.evaluations))})
    return Arm(recipe, own.model_copy(update={"train": train, "eval": every}), pool, first)


def _shape(own: Config) -> Shape:
    return Shape(own.train.group_size, _start(own), own.train.epochs)


def _start(own: Config) -> int:
    """First responses to each prompt that the recipe's estimators ask for."""
    return max([_default(component, "start") for component in own.advantages], default=0)


def _default(component: Component, option: str) -> int:
    known = registry.options_of(registry.find("advantages", component.name))
    value: Any = component.options.get(option, known.get(option, (None, 0))[1])
    return value if isinstance(value, int) else 0
