"""Training, evaluating, simulating and scoring from Python: what the commands of the same names do.

Every function stands in `vlrl` itself: `vlrl.train(vlrl.load_config("gui_grounding", {"train.steps": 20}))`. Loads
without torch; what a function needs is loaded when it is called.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vlrl.decoders import load_json
from vlrl.performance.memory import report_oom
from vlrl.types import UserError

if TYPE_CHECKING:
    from vlrl.config import Change, Config
    from vlrl.runner import Result
    from vlrl.types import Policy


def quiet() -> None:
    """Libraries' progress bars and notes would bury our own line."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


@dataclass(frozen=True)
class View:
    """A part of a page, which a notebook shows where it is a cell's last value."""

    html: str = field(repr=False)  # pages are long

    def _repr_html_(self) -> str:
        return self.html


@dataclass(frozen=True)
class Run:
    """A run folder, while it is written or afterwards. A notebook shows its report."""

    folder: Path

    def __post_init__(self) -> None:
        object.__setattr__(self, "folder", Path(self.folder))  # scripts write a string

    @property
    def config(self) -> Config:
        """What the run was started with."""
        return load_config(self.folder / "config.yaml")

    @property
    def summary(self) -> dict[str, Any]:
        """`before`, `after` and `best` accuracy with their intervals, counts, seconds; {} until the run has ended."""
        file = self.folder / "summary.json"
        return load_json(file, finite=False) if file.is_file() else {}

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """A row for each step and for each evaluation, in the order of time."""
        return _lines(self.folder / "metrics.jsonl")

    @property
    def rollouts(self) -> list[dict[str, Any]]:
        """The rollouts that were kept, by step: prompt, `images` (files in the folder), completion, `marks`, reward."""
        return [row for file in sorted((self.folder / "rollouts").glob("step_*.jsonl")) for row in _lines(file)]

    def curve(self, name: str) -> tuple[list[int], list[float]]:
        """One metric as steps and values.

        Raises:
            UserError: the run logs none of that name.
        """
        rows = [row for row in self.metrics if name in row]
        if not rows:
            from vlrl.types import suggest

            known = sorted({key for row in self.metrics for key in row})
            raise UserError(f"{self.folder}: no metric {name!r}{suggest(name, known)}")
        return [row["step"] for row in rows], [row[name] for row in rows]

    def plot(self, height: int = 640) -> View:
        """The report's curves, for a notebook; height: pixels."""
        return self._view("curves", height)

    def gallery(self, height: int = 640) -> View:
        """The rollouts that were kept, with their images and marks, for a notebook; height: pixels."""
        return self._view("rollouts", height)

    def _repr_html_(self) -> str:
        return self._view("", 900).html

    def _view(self, only: str, height: int) -> View:
        from vlrl.report.html import format_frame

        return View(format_frame(self.folder, only, height))


def load_config(config: str | Path, *changes: Change) -> Config:
    """A YAML file, or a bundled config's name, and changes in order: the checked configuration.

    Args:
        changes: each a text `key.path=value`, a recipe's file or name, or a mapping of key paths to Python values.

    Raises:
        UserError: no such file, an unknown or ill-typed key, a name or option that nothing has.
    """
    from vlrl.recipe_checks import load_config

    return load_config(config, changes)


def check_sources(config: Config) -> None:
    """Files, folders and models that a configuration names are there, or can be fetched, which is said; so are servers.

    Raises:
        UserError: the first that is not.
    """
    from vlrl.config import check_paths, find_data
    from vlrl.system.hub import announce_servers, reach_model, reach_source

    settings = config.model_dump()
    check_paths(config)
    for name in filter(None, (config.policy.model, config.policy.teacher)):
        reach_model(name)
    for _, path in find_data(settings):
        reach_source(path)
    announce_servers(settings)


def load_task(config: Config) -> Any:
    """The task of a configuration with its data: `samples(split)`, `score(episode)`."""
    from vlrl import registry

    return registry.make_task(config)


def load_policy(config: Config) -> Policy:
    """The policy of a configuration, ready to act and to be trained."""
    quiet()
    from vlrl.engines import load_policy

    return load_policy(config.policy, shared_prefix=config.train.shared_prefix, seed=config.seed)


def train(config: Config, *, resume: bool = False, allow_changes: bool = False) -> Run:
    """Trains to the last step, with `resume` from the newest checkpoint in `config.out`.

    Args:
        allow_changes: a resumed run may have another seed, task, data or group size, which its metrics then say.

    Raises:
        UserError: something the user can mend; StoppedError, which is one, where the run ended before its last step.
    """
    quiet()
    check_sources(config)
    if "auto" in (config.train.micro_batch_size, config.policy.gradient_checkpointing):
        from vlrl.tools.memory_fit import resolve_auto

        config = resolve_auto(config)
    from vlrl.runner import Runner
    from vlrl.trainer import RLTrainer

    Runner(config, RLTrainer(config), resume, allow_changes).run()
    return Run(Path(config.out))


def resume(folder: str | Path, *changes: Change, allow_changes: bool = False) -> Run:
    """Goes on with a run from its newest checkpoint, by the configuration that it keeps, with changes as `load_config`.

    Raises:
        UserError: as `train`; the folder holds no run.
    """
    path = Path(folder) / "config.yaml"
    if not path.is_file():
        raise UserError(f"{folder} is no run folder: it holds no config.yaml")
    return train(load_config(path, {"out": str(folder)}, *changes), resume=True, allow_changes=allow_changes)


def evaluate_policy(config: Config) -> Result:
    """Greedy accuracy of `policy.model` on the held-out samples: `accuracy`, `metrics`, `parse_fail`, `episodes`."""
    result, policy, task = evaluated(config)
    policy.close()
    task.close()
    return result


def evaluated(config: Config) -> tuple[Result, Policy, Any]:
    """As `evaluate_policy`, with the policy and the task."""
    quiet()
    check_sources(config)
    from vlrl.runner import evaluate

    with report_oom():
        task, policy = load_task(config), load_policy(config)
        task.fits(policy)
        return evaluate(policy, task, samples=config.eval.num_samples, batch=config.eval.batch_size), policy, task


def simulate(
    config: Config, out: str | Path, *, policy: str | None = None, against: Sequence[str] = (),
    episodes: int | None = None, video: str | Path | None = None, videos: int | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Plays a robot policy beside control arms on the same scenes (`vlrl.evaluation.simulate.SimulationPlan`).

    Returns:
        What `out/result.json` holds: `arms`, `pairs`, `episodes` and more.
    """
    quiet()
    from vlrl.evaluation.simulate import SimulationPlan
    from vlrl.evaluation.simulate import simulate as played

    films = Path(video) if video else None
    return played(config, SimulationPlan(Path(out), policy, against, episodes=episodes, video=films, videos=videos))


def score_rows(name: str, rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Scores completions without a model: by a task, or by a reward such as `boxes.in_box` (`vlrl.evaluation.score`).

    Raises:
        UserError: nothing of that name; a row that cannot be scored, by its number from 1.
    """
    from vlrl.evaluation.score import score_rows as scored

    return list(scored(name, rows))


def _lines(file: Path) -> list[dict[str, Any]]:
    from vlrl.report.run_reader import read_lines

    return read_lines(file)[0]
