"""The training runs of a comparison: ordinary run folders, each in its own process, none repeated that has finished."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from vlrl.config import check_same, dump, migrate
from vlrl.decoders import load_json, load_yaml
from vlrl.evaluation.compare import RecipeArm
from vlrl.evaluation.processes import Processes
from vlrl.metrics import write_text

PASS_AT = "pass_at.json"


@dataclass(frozen=True)
class SeedRun:
    """One seed of one arm."""

    arm: RecipeArm
    seed: int
    folder: Path


def sampled(file: Path, samples: int) -> bool:
    """Whether a file holds so many answers to each held-out sample."""
    return file.is_file() and load_json(file, finite=False)["n"] == samples


def run_of(arm: RecipeArm, seed: int, out: Path) -> SeedRun:
    return SeedRun(arm, seed, out / arm.name / f"seed_{seed}")


def check(run: SeedRun) -> None:
    """UserError where an earlier run lies in the folder that was made with other settings."""
    file = run.folder / "config.yaml"
    if not file.is_file():
        return
    there = migrate(load_yaml(file))
    check_same(run.folder, there, run.arm.config.model_dump(mode="json"), but=("out", "seed"))


class Crew:
    """Trains runs, `jobs` at a time. Ctrl-C lets every run save; the same command then goes on."""

    def __init__(self, jobs: int, samples: int, processes: Processes, tell: Callable[[str], None]):
        self.jobs, self.samples, self.tell = jobs, samples, tell
        self._processes = processes

    def finish(self, runs: Sequence[SeedRun]) -> None:
        """All runs trained and sampled from.

        Raises:
            UserError: one of them failed, with its last words.
        """
        for run in runs:
            check(run)
        left = [run for run in runs if not sampled(run.folder / PASS_AT, self.samples)]
        pool = ThreadPoolExecutor(self.jobs)
        futures = {pool.submit(self._finish, run): run for run in left}
        try:
            for number, future in enumerate(as_completed(futures), start=len(runs) - len(left) + 1):
                future.result()
                self.tell(f"{number} of {len(runs)}: {_summarise_run(futures[future])}")
        except BaseException:
            self._processes.stop()
            raise
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    def sample(self, config: Path, model: str, seed: int, out: Path, log: Path) -> None:
        """Answers of a model to the held-out samples, several each, into the file `out`."""
        self._processes.run(
            ["-m", "vlrl.evaluation.compare", str(config), model, str(self.samples), str(seed), str(out)], log
        )

    def _finish(self, run: SeedRun) -> None:
        log, config = run.folder.with_suffix(".log"), run.folder.with_suffix(".yaml")
        run.folder.parent.mkdir(parents=True, exist_ok=True)
        own = {"out": str(run.folder), "seed": run.seed}
        write_text(config, dump(run.arm.config.model_copy(update=own)))
        if not (run.folder / "summary.json").is_file():
            begun = (run.folder / "config.yaml").is_file()
            what = ["--resume", str(run.folder)] if begun else [str(config)]
            self._processes.run(["-m", "vlrl.cli", "train", *what], log)
        self.sample(config, str(run.folder), run.seed, run.folder / PASS_AT, log)


def _summarise_run(run: SeedRun) -> str:
    summary = load_json(run.folder / "summary.json", finite=False)
    before, after = summary["before"]["value"], summary["after"]["value"]
    return f"{run.arm.name} seed {run.seed}: {before:.3f} -> {after:.3f}, {summary['cpu_s']:.0f} CPU-s"
