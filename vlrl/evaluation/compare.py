"""Comparison of recipes: its configuration, arms, sample sizes and plan."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from vlrl import recipe_checks, registry
from vlrl.config import (
    Component,
    Config,
    Count,
    PolicySection,
    Section,
    TrainSection,
    config_file,
    find_beside,
    load_as,
    nearest,
)
from vlrl.recipe_checks import load_config
from vlrl.types import UserError, suggest

# A comparison as typed, strict data: recipes, what each may spend, how many seeds.


class ComparedRecipe(Section):
    """One arm.

    Args:
        files: recipes that lie over the task's config, from this file's folder.
        changes: `key.path=value`, applied last.
        own: settings that are the recipe's point and are not made equal, as `train.max_grad_norm`; `sampler` and
            `rollouts` too, where who is asked, or how answers are written, is the method.
        plays: rollouts that the strategy plays for one that a step learns from, as an earlier run's `counted` says. It
            gets as many times fewer steps.
        as_released: keeps all of its settings; only the number of steps follows the budget.
    """

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][\w.+-]*$")]
    files: list[str] = []  # noqa: RUF012
    changes: list[str] = []  # noqa: RUF012
    own: list[str] = []  # noqa: RUF012
    plays: Annotated[float, Field(ge=1)] = 1.0
    as_released: bool = False


class Budget(Section):
    """What every recipe spends; give `passes` or `prompts`.

    Args:
        rollouts: in all, first responses of a tracker among them.
        rollouts_per_update: so many for one optimizer step.
        updates_per_step: optimizer steps on one step's rollouts; beyond 1 the later ones learn from older rollouts.
        passes: visits of each prompt. Who answers a prompt several times a visit then has as many times fewer prompts.
        prompts: different ones, the same for all. Who answers once a visit then visits them more often.
        group_size: of all recipes with groups; default: each recipe's own.
    """

    rollouts: Count
    rollouts_per_update: Count
    updates_per_step: Count = 1
    passes: Count | None = None
    prompts: Count | None = None
    group_size: Annotated[int, Field(ge=2)] | None = None


class Seeds(Section):
    """`each` seeds a recipe, then a look at the results; at most `looks` of them. `level`: of a wrong difference."""

    each: Annotated[int, Field(ge=2)] = 5
    looks: Count = 1
    level: Annotated[float, Field(gt=0, lt=1)] = 0.05


class PassAt(Section):
    """`samples` answers to each held-out sample at temperature 1, and the numbers of tries that are reported."""

    samples: Count = 16
    k: list[Count] = [1, 4, 8]  # noqa: RUF012


class Comparison(Section):
    """Args: pairs: that are tested; `baseline`: each recipe against the first."""

    task: str  # a training config, from this file's folder
    out: str
    recipes: Annotated[list[ComparedRecipe], Field(min_length=2)]
    budget: Budget
    evaluations: Count = 10  # along training, the last among them; one before it comes on top
    seeds: Seeds = Seeds()
    pairs: Literal["all", "baseline"] | list[Annotated[list[str], Field(min_length=2, max_length=2)]] = "all"
    pass_at: PassAt = PassAt()
    reach: list[float | str] = []  # noqa: RUF012  accuracies, or recipes whose final accuracy is meant
    jobs: Count = 1  # runs at a time, one core each

    @property
    def compared(self) -> list[tuple[str, str]]:
        """The pairs that are tested."""
        names = [recipe.name for recipe in self.recipes]
        if self.pairs == "all":
            return [(a, b) for i, a in enumerate(names) for b in names[i + 1 :]]
        if self.pairs == "baseline":
            return [(name, names[0]) for name in names[1:]]
        return [(a, b) for a, b in self.pairs]


def config_load(path: str | Path, changes: Sequence[str] = ()) -> Comparison:
    """A YAML file and changes to it -> the checked comparison, its files found.

    Raises:
        UserError: as `load_as`; names that stand twice or are unknown; a file that does not exist.
    """
    loaded, folder = load_as(Comparison, path, changes), config_file(path).parent
    try:
        _check(loaded)
        recipes = [
            recipe.model_copy(update={"files": [find_file(folder, file) for file in recipe.files]})
            for recipe in loaded.recipes
        ]
        return loaded.model_copy(update={"task": find_file(folder, loaded.task), "recipes": recipes})
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def _check(loaded: Comparison) -> None:
    names = [recipe.name for recipe in loaded.recipes]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise UserError(f"recipes: the name {twice[0]!r} stands twice")
    if (loaded.budget.passes is None) == (loaded.budget.prompts is None):
        raise UserError("budget: give either passes (visits of each prompt) or prompts (how many there are)")
    named = [*(each for pair in loaded.compared for each in pair), *(r for r in loaded.reach if isinstance(r, str))]
    unknown = [name for name in named if name not in names]
    if unknown:
        raise UserError(f"no recipe is called {unknown[0]!r} (one of: {', '.join(names)})")
    pairs = [frozenset(pair) for pair in loaded.compared]
    if len(set(pairs)) < len(pairs) or any(len(pair) == 1 for pair in pairs):
        raise UserError("pairs: each names two different recipes, and none stands twice")
    if max(loaded.pass_at.k) > loaded.pass_at.samples:
        raise UserError(f"pass_at.k: at most pass_at.samples = {loaded.pass_at.samples}")


def find_file(folder: Path, name: str) -> str:
    """A file beside the comparison's, or from where the command runs, or a bundled config by its name."""
    if path := find_beside(folder, name):
        return str(path)
    raise UserError(f"no file {name} (from {folder} or from here){nearest(name)}")


# pass@k: does a policy answer a held-out sample at least once in k tries? Sampled at temperature 1.
#
# A process of its own: python -m vlrl.evaluation.compare CONFIG MODEL SAMPLES SEED OUT [train | resume]. It trains or
# resumes MODEL before: importing twice takes longer than a short run's pass@k.


def pass_at(correct: Sequence[int], n: int, k: int) -> float:
    """Mean over samples of `1 - C(n - c, k) / C(n, k)`: unbiased for the chance that one of k tries is right.

    Chen et al. 2021, arXiv 2107.03374, equation 1.

    Args:
        correct: how many of each sample's n answers were right, c.
        k: at most n.
    """
    return sum(1 - math.comb(n - c, k) / math.comb(n, k) for c in correct) / len(correct)


def main(arguments: Sequence[str]) -> int:
    config_file, model, samples, seed, out, *training = arguments
    from vlrl import api, registry

    if training == ["train"]:
        api.train(load_config(config_file))
    elif training == ["resume"]:
        api.resume(model)
    from vlrl.metrics import write_text

    api.quiet()
    config = load_config(config_file, [f"policy.model={model}", "policy.temperature=1.0", f"seed={seed}"])
    from vlrl.engines import load_policy

    start = time.process_time()
    task = registry.make_task(config)
    policy = load_policy(config.policy, shared_prefix=config.train.shared_prefix, seed=config.seed)
    answered = answers(policy, task, config.eval.num_samples, config.eval.batch_size, int(samples))
    write_text(Path(out), json.dumps(answered | {"cpu_s": time.process_time() - start}) + "\n")
    return 0


def answers(policy, task, limit: int | None, batch: int, n: int) -> dict:
    """n answers to each held-out sample: {n, correct [samples], entropy, length}; right: wholly."""
    from vlrl.rollout import collect

    held_out = task.samples("test")
    count = min(limit or len(held_out), len(held_out))
    size = max(1, batch // n)
    correct, entropy, units, answered = [], 0.0, 0, 0
    for start in range(0, count, size):
        chosen = [held_out[i] for i in range(start, min(start + size, count))]
        episodes = collect(policy, task, chosen, group_size=n)
        hits = [episode.score.correct >= 1 - 1e-9 for episode in episodes]
        correct += [sum(hits[i * n : (i + 1) * n]) for i in range(len(chosen))]
        decisions = [turn.decision for episode in episodes for turn in episode.turns]
        entropy += sum(float(decision.entropy.sum()) for decision in decisions)
        units += sum(len(decision.logprobs) for decision in decisions)
        answered += len(episodes)
    return {"n": n, "correct": correct, "entropy": entropy / units, "length": units / answered}


# How many prompts, steps and updates a recipe gets, so that all spend the same.

TRIES = 2000  # larger budgets that are tried for a suggestion


@dataclass(frozen=True)
class RecipeShape:
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
    prompts_per_step: int
    num_minibatches: int


def derive(shape: RecipeShape, budget: Budget) -> Sizes:
    """The sizes that spend exactly the budget.

    Raises:
        UserError: there are none in whole numbers.
    """
    rollouts, steps = budget.rollouts, _divide(
        budget.rollouts, budget.rollouts_per_update * budget.updates_per_step,
        "budget.rollouts is not a whole number of steps of rollouts_per_update x updates_per_step",
    )  # fmt: skip
    pool = budget.prompts or _pool(shape, budget)
    left = rollouts - shape.start * pool
    if left <= 0:
        raise UserError(f"first responses to {pool:,} prompts leave nothing of {rollouts:,} rollouts")
    spent = f", of which {shape.start * pool:,} are first responses," if shape.start else ""
    problem = f"{rollouts:,} rollouts{spent} do not make {steps:,} steps of whole groups of {shape.group}"
    prompts = _divide(left, steps * shape.group, problem)
    minibatches = _divide(budget.updates_per_step, shape.epochs,
                         f"{budget.updates_per_step} updates a step do not make {shape.epochs} epochs")  # fmt: skip
    _divide(prompts, minibatches, f"{prompts} prompts a step do not make {minibatches} equal minibatches")
    return Sizes(pool, steps, prompts, minibatches)


def _pool(shape: RecipeShape, budget: Budget) -> int:
    """So many prompts that each is visited `passes` times, a tracker's first responses being the first visit."""
    visits = budget.passes - bool(shape.start)
    a_prompt = shape.start + visits * shape.group
    if visits < 1:
        raise UserError("first responses are a pass of their own: set budget.passes to 2 or more")
    problem = f"{budget.rollouts:,} rollouts do not make {budget.passes} passes of {a_prompt} answers a prompt"
    return _divide(budget.rollouts, a_prompt, problem)


def suggestion(shapes: list[RecipeShape], budget: Budget) -> str:
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


def _divide(number: int, parts: int, problem: str) -> int:
    if number % parts:
        raise UserError(problem)
    return number // parts


# From a comparison to the training config of each arm: what a recipe is, over settings that are everyone's.

# What a recipe brings; all else is the task's.
METHOD = ("process_rewards", "reward_shaping", "advantages", "replay_mixing", "losses", "loss_aggregation", "callbacks")
WHOLE = ("sampler", "rollout_strategy")  # kept where the recipe says that they are its own
SIZES = ("steps", "prompts_per_step", "group_size", "num_minibatches", "micro_batch_size")  # of `train`, derived
LOGGED = {"trackers": [], "keep_checkpoints": 1}
PASS_AT = "pass_at.json"  # of a run folder: answers to each held-out sample


@dataclass(frozen=True)
class RecipeArm:
    """A recipe ready to train: all of `config` but seed and folder. first: responses before the first step."""

    recipe: ComparedRecipe
    config: Config
    pool: int  # different prompts
    first: int

    @property
    def name(self) -> str:
        return self.recipe.name


@dataclass(frozen=True)
class SeedRun:
    """One seed of one arm."""

    arm: RecipeArm
    seed: int
    folder: Path


def arms_of(comparison: Comparison) -> list[RecipeArm]:
    """Every arm, its sizes derived.

    Raises:
        UserError: what cannot be made equal, with the recipe's name.
    """
    task = load_config(comparison.task)
    samples = len(registry.make_task(task).samples("train"))
    laid = {recipe.name: _laid(recipe, task, comparison) for recipe in comparison.recipes}
    shapes = [_shape(laid[r.name]) for r in comparison.recipes if not r.as_released]
    arms = []
    for recipe in comparison.recipes:
        try:
            own = laid[recipe.name]
            build = _released if recipe.as_released else _equal
            arm = build(recipe, own, comparison, samples, shapes)
            recipe_checks.check(arm.config, "resolved")
            arms.append(arm)
        except UserError as error:
            raise UserError(f"recipe {recipe.name}: {error}") from None
    return arms


def _laid(recipe: ComparedRecipe, task: Config, comparison: Comparison) -> Config:
    """The recipe over the task; where it is to be equal, with the task's own settings put back."""
    try:
        over = load_config(comparison.task, [*recipe.files, *recipe.changes])
    except UserError as error:
        raise UserError(f"recipe {recipe.name}: {error}") from None
    log = over.log.model_copy(update=LOGGED)
    if recipe.as_released:
        return over.model_copy(update={"log": log})
    kept = _own(recipe)
    own_policy, own_train, own = dict(over.policy), dict(over.train), dict(over)
    policy = task.policy.model_copy(update={key: own_policy[key] for key in kept["policy"]})
    train = task.train.model_copy(
        update={key: own_train[key] for key in (*kept["train"], *SIZES)} | {"micro_batch_size": None}
    )
    if "update_epochs" not in kept["train"]:
        train = train.model_copy(update={"update_epochs": 1})
    if train.group_size > 1 and comparison.budget.group_size:
        train = train.model_copy(update={"group_size": comparison.budget.group_size})
    method = {key: own[key] for key in (*METHOD, "sampler", "rollout_strategy")}
    return task.model_copy(update={"policy": policy, "train": train, "log": log, **method})


def _own(recipe: ComparedRecipe) -> dict[str, list[str]]:
    """The settings that a recipe keeps, by section."""
    allowed = [*WHOLE, *(f"policy.{key}" for key in PolicySection.model_fields)]
    allowed += [f"train.{key}" for key in TrainSection.model_fields if key not in SIZES]
    unknown = [key for key in recipe.own if key not in allowed]
    if unknown:
        raise UserError(f"recipe {recipe.name}: own: {unknown[0]!r} is no setting{suggest(unknown[0], allowed)}")
    return {part: [k.partition(".")[2] for k in recipe.own if k.startswith(part)] for part in ("policy", "train")}


def _equal(
    recipe: ComparedRecipe, own: Config, comparison: Comparison, samples: int, shapes: Sequence[RecipeShape]
) -> RecipeArm:
    released = "or mark the recipe as_released: true"
    if own.sampler.name != "shuffled" and "sampler" not in recipe.own:
        raise UserError(f"the sampler {own.sampler.name} visits prompts unequally often: add changes: "
                        f"[sampler=shuffled], or own: [sampler] where that is its point, {released}")  # fmt: skip
    if own.rollout_strategy.name != "plain" and "rollout_strategy" not in recipe.own:
        raise UserError(f"the rollouts {own.rollout_strategy.name} are not as many as the budget says: add changes: "
                        "[rollout_strategy=plain], or own: [rollout_strategy] where that is its point, "
                        f"{released}")  # fmt: skip
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
    return RecipeArm(recipe, _sized(own, sizes, every, recipe), sizes.pool, _start(own) * sizes.pool)


def _sized(own: Config, sizes: Sizes, every: int, recipe: ComparedRecipe) -> Config:
    train = own.train.model_copy(
        update={
            "steps": sizes.steps,
            "prompts_per_step": sizes.prompts_per_step,
            "num_minibatches": sizes.num_minibatches,
        }
    )
    sampler = Component(name="shuffled", limit=sizes.pool)
    if "sampler" in recipe.own:
        sampler = Component(name=own.sampler.name, **own.sampler.options | {"limit": sizes.pool})
    return own.model_copy(update={"train": train, "sampler": sampler,
                                  "eval": own.eval.model_copy(update={"every_steps": every})})  # fmt: skip


def _released(
    recipe: ComparedRecipe, own: Config, comparison: Comparison, samples: int, shapes: Sequence[RecipeShape]
) -> RecipeArm:
    """As it is, for as many whole steps as the budget's rollouts allow."""
    pool = min(samples, own.sampler.options.get("limit") or samples)
    first, a_step = _start(own) * pool, own.train.prompts_per_step * own.train.group_size * recipe.plays
    steps = int((comparison.budget.rollouts - first) // a_step)
    if steps < 1:
        raise UserError(f"{comparison.budget.rollouts:,} rollouts, less {first:,} first responses, make no step of "
                        f"{a_step:,.0f}")  # fmt: skip
    train = own.train.model_copy(update={"steps": steps})
    every = own.eval.model_copy(update={"every_steps": max(1, round(steps / comparison.evaluations))})
    return RecipeArm(recipe, own.model_copy(update={"train": train, "eval": every}), pool, first)


def _shape(own: Config) -> RecipeShape:
    return RecipeShape(own.train.group_size, _start(own), own.train.update_epochs)


def _start(own: Config) -> int:
    """First responses to each prompt that the recipe's estimators ask for."""
    return max([_default(component, "start") for component in own.advantages], default=0)


def _default(component: Component, option: str) -> int:
    known = registry.options_of(registry.find("advantages", component.name))
    value: Any = component.options.get(option, known.get(option, (None, 0))[1])
    return value if isinstance(value, int) else 0


# What is equal between arms, by construction, and what is not.


@dataclass(frozen=True)
class Fact:
    """One line. `key`: the setting that lets a recipe keep its own; '' where there is none.

    inherent: it may differ, because the methods do.
    """

    label: str
    of: Callable[[RecipeArm], Any]
    key: str = ""
    inherent: bool = False


def spent(arm: RecipeArm) -> int:
    """Rollouts in all, those included that a strategy leaves out."""
    train = arm.config.train
    return arm.first + round(train.steps * train.prompts_per_step * train.group_size * arm.recipe.plays)


def updates(arm: RecipeArm) -> int:
    train = arm.config.train
    return train.steps * train.num_minibatches * train.update_epochs


def passes(arm: RecipeArm) -> float:
    """Mean visits of a prompt, a tracker's first response among them."""
    train = arm.config.train
    return train.steps * train.prompts_per_step / arm.pool + (arm.first > 0)


def _schedule(arm: RecipeArm) -> str:
    train = arm.config.train
    end = train.lr if train.lr_end is None else train.lr_end
    return f"{train.lr:g} to {end:g} over the run, warm-up {train.warmup_steps}"


FACTS = (
    Fact("rollouts", spent, "rollout_strategy"),
    Fact("optimizer updates", updates, "rollout_strategy"),
    Fact("rollouts an update", lambda arm: round(spent(arm) / updates(arm), 2), "rollout_strategy"),
    Fact("updates a step", lambda arm: arm.config.train.num_minibatches * arm.config.train.update_epochs),
    Fact("passes over a step", lambda arm: arm.config.train.update_epochs, "train.update_epochs"),
    Fact("passes over the prompts", lambda arm: round(passes(arm), 2), "rollout_strategy"),
    Fact("different prompts", lambda arm: arm.pool, inherent=True),
    Fact("answers a prompt gets", lambda arm: round(spent(arm) / arm.pool, 2), inherent=True),
    Fact("completions a visit", lambda arm: arm.config.train.group_size, inherent=True),
    Fact("first responses", lambda arm: arm.first, inherent=True),
    Fact("temperature", lambda arm: arm.config.policy.temperature, "policy.temperature"),
    Fact("longest completion", lambda arm: arm.config.policy.max_tokens, "policy.max_tokens"),
    Fact("gradient norm clipped at", lambda arm: arm.config.train.max_grad_norm, "train.max_grad_norm"),
    Fact("learning rate", _schedule, "train.lr"),
    Fact("optimizer", lambda arm: f"{arm.config.train.optimizer} {arm.config.train.betas} "
         f"decay {arm.config.train.weight_decay:g}", "train.optimizer"),
    Fact("model", lambda arm: arm.config.policy.model, "policy.model"),
    Fact("sampler", lambda arm: arm.config.sampler.name, "sampler"),
    Fact("rollout strategy", lambda arm: arm.config.rollout_strategy.name, "rollout_strategy"),
    Fact("replay mixing", lambda arm: _names(arm.config.replay_mixing) or "none", inherent=True),
    Fact("process rewards", lambda arm: _names(arm.config.process_rewards) or "none", inherent=True),
    Fact("callbacks", lambda arm: _names(arm.config.callbacks) or "none", inherent=True),
    Fact("advantage", lambda arm: _names(arm.config.advantages), inherent=True),
    Fact("loss", lambda arm: _losses(arm), inherent=True),
    Fact("reward shaping", lambda arm: _names(arm.config.reward_shaping) or "none", inherent=True),
    Fact("loss aggregation", lambda arm: arm.config.loss_aggregation.name, inherent=True),
)  # fmt: skip


def _names(components: Sequence[Any]) -> str:
    return " + ".join(component.name for component in components)


def _losses(arm: RecipeArm) -> str:
    """Loss terms with the numbers that a comparison of clipping needs to see."""
    texts = []
    for component in arm.config.losses:
        numbers = " ".join(f"{v:g}" for k, v in component.options.items() if isinstance(v, int | float))
        texts.append(f"{component.name} {numbers}".strip())
    return " + ".join(texts)


def facts(arms: Sequence[RecipeArm], passes_are_equal: bool = True) -> list[dict[str, Any]]:
    """Lines {label, values by arm, verdict: `equal`, `own`, `method` or `released`}.

    Args:
        passes_are_equal: whether the budget gives passes; else it gives prompts, and those are equal.

    Raises:
        UserError: a setting differs between recipes that neither is the method nor was declared `own`.
    """
    lines = []
    for fact in FACTS:
        values = {arm.name: fact.of(arm) for arm in arms}
        bound = [arm for arm in arms if not arm.recipe.as_released and not _kept(arm, fact)]
        swapped = {"passes over the prompts": not passes_are_equal, "different prompts": passes_are_equal}
        inherent = swapped.get(fact.label, fact.inherent)
        same = len({str(values[arm.name]) for arm in bound}) <= 1
        if not same and not inherent:
            raise UserError(
                f"{fact.label} cannot be made equal: {_format_values(values)}; mark recipes as_released: true"
            )
        lines.append({"label": fact.label, "values": values, "verdict": _verdict(arms, values, same, fact)})
    return lines


def _kept(arm: RecipeArm, fact: Fact) -> bool:
    section, _, key = fact.key.partition(".")
    if section in WHOLE:
        return section in arm.recipe.own
    also = {"lr": ("lr", "lr_end", "warmup_steps"), "optimizer": ("optimizer", "betas", "weight_decay")}.get(
        key, (key,)
    )
    return any(f"{section}.{each}" in arm.recipe.own for each in also) if key else False


def _verdict(arms: Sequence[RecipeArm], values: dict[str, Any], same: bool, fact: Fact) -> str:
    if not same:
        return "method"
    if len({str(value) for value in values.values()}) == 1:
        return "equal"
    bound = {str(values[arm.name]) for arm in arms if not arm.recipe.as_released}
    return "released" if len(bound) <= 1 else "own"


def _format_values(values: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())


VERDICTS = {
    "equal": "equal",
    "own": "kept by a recipe",
    "method": "the methods differ",
    "released": "differs as released",
}


def table_rows(lines: Sequence[dict[str, Any]]) -> list[list[str]]:
    """The table's head and lines as text."""
    names = list(lines[0]["values"])
    body = [[x["label"], VERDICTS[x["verdict"]], *(say(x["values"][name]) for name in names)] for x in lines]
    return [["", "", *names], *body]


def say(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,g}" if value == int(value) else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def table_text(lines: Sequence[dict[str, Any]]) -> str:
    """For a terminal: each line's values, with the arms that have them where not all agree."""
    rows_text = []
    for line in lines:
        having: dict[str, list[str]] = {}
        for name, value in line["values"].items():
            having.setdefault(say(value), []).append(name)
        values = [f"{value} ({', '.join(names)})" for value, names in having.items()] if len(having) > 1 else having
        rows_text.append(f"{line['label']:26}{VERDICTS[line['verdict']]:22}{'; '.join(values)}")
    return "\n".join(rows_text)


# What a comparison would run, said before anything does. Loads no torch.


@dataclass(frozen=True)
class ComparisonPlan:
    """lines: what is equal and what is not, see `table.facts`."""

    comparison: Comparison
    arms: list[RecipeArm]
    lines: list[dict[str, Any]]

    def text(self) -> str:
        """The lines, and how many runs there will be."""
        seeds = self.comparison.seeds
        runs = len(self.arms) * seeds.each
        more = f", up to {runs * seeds.looks} while differences are open" if seeds.looks > 1 else ""
        pairs = len(self.comparison.compared)
        return f"{table_text(self.lines)}\n{runs} runs of {len(self.arms)} recipes{more}; {pairs} pairs are tested"


def plan_plan(path: str, changes: Sequence[str] = ()) -> ComparisonPlan:
    """The plan of a comparison's file.

    Raises:
        UserError: a mistake in a file, or what cannot be made equal.
    """
    comparison = config_load(path, changes)
    arms = arms_of(comparison)
    return ComparisonPlan(comparison, arms, facts(arms, comparison.budget.passes is not None))


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except UserError as problem:
        print(f"vlrl: {problem}", file=sys.stderr)
        sys.exit(problem.exit_code or 2)
