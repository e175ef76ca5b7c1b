"""The file of `vlrl stages` as typed, strict data. Loads no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from vlrl.strict import Count, Section, suggest

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
