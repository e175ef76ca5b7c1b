"""A comparison as typed, strict data: recipes, what each may spend, how many seeds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from vlrl.bundled import config_file, nearest
from vlrl.strict import Count, Section, load_as
from vlrl.types import UserError


class Recipe(Section):
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
    task: str  # a training config, from this file's folder
    out: str
    recipes: Annotated[list[Recipe], Field(min_length=2)]
    budget: Budget
    evaluations: Count = 10  # along training, the last among them; one before it comes on top
    seeds: Seeds = Seeds()
    pairs: Literal["all"] | list[Annotated[list[str], Field(min_length=2, max_length=2)]] = "all"
    pass_at: PassAt = PassAt()
    reach: list[float | str] = []  # noqa: RUF012  accuracies, or recipes whose final accuracy is meant
    jobs: Count = 1  # runs at a time, one core each

    @property
    def compared(self) -> list[tuple[str, str]]:
        """The pairs that are tested."""
        names = [recipe.name for recipe in self.recipes]
        if self.pairs == "all":
            return [(a, b) for i, a in enumerate(names) for b in names[i + 1 :]]
        return [(a, b) for a, b in self.pairs]


def load(path: str | Path, changes: Sequence[str] = ()) -> Comparison:
    """A YAML file and changes to it -> the checked comparison, its files found.

    Raises:
        UserError: as `load_as`; names that stand twice or are unknown; a file that does not exist.
    """
    loaded, folder = load_as(Comparison, path, changes), config_file(path).parent
    try:
        _check(loaded)
        recipes = [
            recipe.model_copy(update={"files": [found(folder, file) for file in recipe.files]})
            for recipe in loaded.recipes
        ]
        return loaded.model_copy(update={"task": found(folder, loaded.task), "recipes": recipes})
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def _check(loaded: Comparison) -> None:
    names = [recipe.name for recipe in loaded.recipes]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise UserError(f"recipes: the name {twice[0]!r} stands twice")
    if (loaded.budget.passes is None) == (loaded.budget.prompts is None):
        raise UserError("budget: give either passes (visits of each prompt) or prompts (how many there are)")
    told = [*(each for pair in loaded.compared for each in pair), *(r for r in loaded.reach if isinstance(r, str))]
    unknown = [name for name in told if name not in names]
    if unknown:
        raise UserError(f"no recipe is called {unknown[0]!r} (one of: {', '.join(names)})")
    pairs = [frozenset(pair) for pair in loaded.compared]
    if len(set(pairs)) < len(pairs) or any(len(pair) == 1 for pair in pairs):
        raise UserError("pairs: each names two different recipes, and none stands twice")
    if max(loaded.pass_at.k) > loaded.pass_at.samples:
        raise UserError(f"pass_at.k: at most pass_at.samples = {loaded.pass_at.samples}")


def found(folder: Path, name: str) -> str:
    """A file beside the comparison's, or from where the command runs, or a bundled config by its name."""
    for path in (folder / name, Path(name), config_file(name)):
        if path.is_file():
            return str(path)
    raise UserError(f"no file {name} (from {folder} or from here){nearest(name)}")
