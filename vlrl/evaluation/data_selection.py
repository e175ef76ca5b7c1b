"""Selection of training data by the policy's accuracy on it."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from vlrl import checkpoint, registry
from vlrl.algorithms import samplers
from vlrl.algorithms.curriculum import alignment
from vlrl.algorithms.samplers import MeasuredShares, Row, Shuffled, measured
from vlrl.config import Config
from vlrl.engines import load_policy
from vlrl.evaluation.stats import histogram
from vlrl.io import hold_folder
from vlrl.logging import Progress
from vlrl.metrics import write_text
from vlrl.recipe_checks import load_config
from vlrl.rollout import collect
from vlrl.types import Sample, UserError

# `vlrl select CONFIG`: answers the training samples several times and keeps those whose rewards disagree most.
#
# Source: Temporal-R1's variance-aware selection (README of github.com/appletea233/Temporal-R1; its code and thresholds
# are not published).


def select(
    config: Config, *, out: str, samples: int | None = None, repeats: int = 8, keep: float = 0.25,
    least_variance: float | None = None,
) -> MeasuredShares:  # fmt: skip
    """Measures samples of the training split with `repeats` completions each, at temperature 1, and writes `out`.

    Rows go to a file beside `out` as they are measured. The same call after an interruption goes on from them and ends
    with the same file: each batch draws its own random numbers.

    Args:
        samples: so many, drawn at random without repetition; default: all.
        keep, least_variance: see vlrl.algorithms.samplers.chosen.

    Raises:
        UserError: `out` exists; the config's task or model is not as it should be; no sample's rewards disagree.
    """
    file = new_file(out)
    config = config.model_copy(update={"policy": config.policy.model_copy(update={"temperature": 1.0})})
    part = file.with_name(f".{file.name}.measured")
    with hold_folder(file.with_name(f".{file.name}.lock")):
        task = registry.make_task(config)
        pool = task.samples("train")
        positions = Shuffled(len(pool), config.seed).draw(min(samples or len(pool), len(pool)))
        rows = samplers.chosen(_measured(config, task, pool, positions, repeats, part), keep=keep,
                                least_variance=least_variance)  # fmt: skip
        rows.sort(key=lambda row: row.position)
        total = write_selection(file, rows, [row.variance for row in rows], "variance of a sample's rewards")
        part.unlink()
    if not total.kept:
        raise UserError(f"{total}: no sample's rewards disagree enough; {file} keeps none")
    return total


def new_file(out: str) -> Path:
    """Where a list is to be written. UserError where there is something, or no folder."""
    file = Path(out)
    if file.exists():
        raise UserError(f"{file} exists already: name another file, or remove it")
    if not file.parent.is_dir():
        raise UserError(f"{file}: there is no folder {file.parent}")
    return file


def write_selection(file: Path, rows: list[Row], values: list[float], title: str) -> MeasuredShares:
    """The list, and beside it a histogram of what was chosen by."""
    write_text(file, "".join(map(samplers.selection_line, rows)))
    histogram(values, [row.kept for row in rows], title).save(file.with_suffix(".png"))
    return samplers.summary(rows)


def _measured(
    config: Config, task: Any, pool: Sequence[Sample], positions: Sequence[int], repeats: int, part: Path
) -> list[Row]:
    """A row per position; those in the file `part` are taken from there, the others added to it."""
    head = json.dumps({"config": config.model_dump(mode="json"), "repeats": repeats, "samples": len(positions)})
    rows = _kept(part, head)
    if not rows:
        write_text(part, head + "\n")
    size = max(1, config.eval.batch_size // repeats)
    policy = load_policy(config.policy, shared_prefix=config.train.shared_prefix, seed=config.seed)
    with Progress(len(positions)) as progress, _kept_until(part), part.open("a", encoding="utf-8") as file:
        for start in range(len(rows) // size * size, len(positions), size):
            policy.generator.manual_seed(config.seed + (start << 20))
            batch = positions[start : start + size]
            fresh = [*_played(policy, task, [pool[i] for i in batch], batch, repeats)][len(rows) - start :]
            file.writelines(map(samplers.selection_line, fresh))
            file.flush()
            rows += fresh
            progress.note(f"sample {len(rows)}/{len(positions)}  {samplers.summary(rows)}")
    return rows


def _played(policy: Any, task: Any, samples: Sequence[Sample], positions: Sequence[int], repeats: int) -> Iterator[Row]:
    episodes = collect(policy, task, samples, repeats)
    for i, (sample, position) in enumerate(zip(samples, positions, strict=True)):
        own = episodes[i * repeats : (i + 1) * repeats]
        yield samplers.measured(sample.id, position, [e.reward for e in own], [e.score.correct for e in own])


@contextlib.contextmanager
def _kept_until(part: Path) -> Iterator[None]:
    try:
        yield
    except BaseException:
        print(f"\nwhat was measured is kept in {part}: the same command goes on from there", file=sys.stderr)
        raise


def _kept(part: Path, head: str) -> list[Row]:
    """The rows of an interrupted call with the same settings; a line that was being written is left out."""
    try:
        first, *lines = part.read_text(encoding="utf-8").splitlines(keepends=True)
    except (OSError, ValueError):  # none, or empty
        return []
    if first.rstrip("\n") != head:
        return []
    whole = [text for text in lines if text.endswith("\n")]
    write_text(part, "".join([first, *whole]))
    return [Row.model_validate_json(text) for text in whole]


# `vlrl select RUN`: of a run with `sampler: limr`, the training samples that were learned as the average was.
#
# Source: learning impact measurement, LIMR, arXiv 2502.11886, github.com/GAIR-NLP/LIMR.


def learned(run: str, *, out: str, least: float | None = None) -> MeasuredShares:
    """Writes to `out` the samples of a run with `sampler: limr`, kept where they were learned as the average was.

    Args:
        run: its folder; its newest checkpoint is read.
        least: alignment from which a sample is kept; default: the sampler's own `score`.

    Raises:
        UserError: `out` exists; the run has no checkpoint, another sampler, or no whole epoch; none is kept.
    """
    file = new_file(out)
    config = load_config(Path(run) / "config.yaml")
    if config.sampler.name != "limr":
        raise UserError(f"{run}: sampler: {config.sampler.name} notes no courses of samples: train with sampler: limr")
    folder = checkpoint.latest(Path(run) / "checkpoints")
    if folder is None:
        raise UserError(f"{run}: there is no checkpoint: train on with vlrl train --resume {run}")
    pool = registry.make_task(config).samples("train")
    sampler = registry.make("sampler", config.sampler, "sampler", len(pool), config.seed)
    sampler.load_state_dict(checkpoint.load_state(folder)["sampler"])
    courses = sampler.trajectories.complete()
    if not courses:
        raise UserError(f"{run}: no epoch is whole: train longer, or on fewer samples (sampler.limit)")
    scores, bar = alignment(courses), sampler.score if least is None else least
    rows = []
    for i, course in courses.items():
        row = measured(pool[i].id, i, course, course)
        rows.append(row.model_copy(update={"alignment": scores[i], "kept": scores[i] >= bar}))
    total = write_selection(file, rows, list(scores.values()), "alignment of a sample's course with the average one")
    if not total.kept:
        raise UserError(f"{total}: the largest alignment is {max(scores.values()):.3f}; {file} keeps none")
    return total
