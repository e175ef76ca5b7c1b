"""`vlrl compare`: train, test, and go on while a difference is open.

The training runs are ordinary run folders, each in its own process; none that has finished is repeated.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from vlrl.config import check_same, dump, migrate
from vlrl.decoders import load_json, load_yaml
from vlrl.evaluation import compare_report
from vlrl.evaluation.compare import PASS_AT, ComparisonPlan, RecipeArm, SeedRun
from vlrl.evaluation.compare_report import curves_read, result_of, text_text
from vlrl.evaluation.stats import AdaStop
from vlrl.io import hold_folder
from vlrl.metrics import write_text
from vlrl.system.children import start_child
from vlrl.types import UserError

SAVE_S = 600.0  # for a run whose owner was killed to finish its step and save


class Processes:
    """Python in processes, from as many threads as there are.

    Each is a session of its own: Ctrl-C reaches this process alone, which asks them once to save and end. So they are
    when this process is killed.

    Args:
        holding: file descriptors that they inherit: a folder's lock (`vlrl.io`) outlives a killed parent.
    """

    def __init__(self, holding: Sequence[int] = ()):
        self._holding = tuple(holding)
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen] = set()
        self.stopped = False

    def run(self, arguments: Sequence[str], log: Path) -> None:
        """Python with these arguments, one thread; what it says goes behind what the log already holds.

        Raises:
            UserError: it failed, with its last words.
        """
        environment = {"OMP_NUM_THREADS": "1"} | dict(os.environ)
        with log.open("a") as file:
            with self._lock:
                if self.stopped:
                    return
                process = start_child(
                    [sys.executable, *arguments], env=environment, stdout=file, stderr=file, stdin=subprocess.DEVNULL,
                    pass_fds=self._holding, notice=signal.SIGTERM, patience=SAVE_S,
                )  # fmt: skip
                self._running.add(process)
            try:
                code = process.wait()
            except BaseException:  # Ctrl-C in this thread
                self.stop()
                process.wait()
                raise
        with self._lock:
            self._running.discard(process)
        if code and not self.stopped:
            said = [f"ended with code {code}", *log.read_text(errors="replace").strip().splitlines()][-1]
            raise UserError(f"{log.with_suffix('')}: {said.removeprefix('vlrl: ')} (see {log})")

    def stop(self) -> None:
        """Asks every process to finish its step and save, and begins no further one."""
        with self._lock:
            if not self.stopped:
                self.stopped = True
                for process in self._running:
                    process.terminate()


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

    def sample(self, config: Path, model: str, seed: int, out: Path, log: Path, training: Sequence[str] = ()) -> None:
        """Answers of a model to the held-out samples, several each, into the file `out`.

        Args:
            training: what comes before: nothing, `train` or `resume`.
        """
        arguments = [str(config), model, str(self.samples), str(seed), str(out), *training]
        self._processes.run(["-m", "vlrl.evaluation.compare", *arguments], log)

    def _finish(self, run: SeedRun) -> None:
        log, config = run.folder.with_suffix(".log"), run.folder.with_suffix(".yaml")
        run.folder.parent.mkdir(parents=True, exist_ok=True)
        own = {"out": str(run.folder), "seed": run.seed}
        write_text(config, dump(run.arm.config.model_copy(update=own)))
        training: list[str] = []
        if not (run.folder / "summary.json").is_file():
            begun = (run.folder / "config.yaml").is_file()
            training = ["resume" if begun else "train"]
        self.sample(config, str(run.folder), run.seed, run.folder / PASS_AT, log, training)


def _summarise_run(run: SeedRun) -> str:
    summary = load_json(run.folder / "summary.json", finite=False)
    before, after = summary["before"]["value"], summary["after"]["value"]
    return f"{run.arm.name} seed {run.seed}: {before:.3f} -> {after:.3f}, {summary['cpu_s']:.0f} CPU-s"


def compare(plan: ComparisonPlan) -> dict[str, Any]:
    """Carries a plan out and returns the result of the last look; what is already trained is not trained again.

    After every look `out` holds result.json, report.html and curves.png.

    Raises:
        UserError: a run failed, earlier runs in `out` were made with other settings, or another comparison is there.
    """
    with hold_folder(Path(plan.comparison.out)) as held:
        return _compare(plan, Processes([held]))


def _compare(plan: ComparisonPlan, processes: Processes) -> dict[str, Any]:
    seeds = plan.comparison.seeds
    test = AdaStop(plan.comparison.compared, seeds.each, seeds.looks, seeds.level)
    counts, result = {arm.name: 0 for arm in plan.arms}, {}
    names = list(counts)
    while names:
        counts |= {name: counts[name] + seeds.each for name in names}
        result = _look(plan, processes, test, counts)
        names = test.arms
    print(f"\n{text_text(result)}\n\n{Path(plan.comparison.out) / 'report.html'}")
    return result


def _look(plan: ComparisonPlan, processes: Processes, test: AdaStop, counts: dict[str, int]) -> dict[str, Any]:
    """Trains so many seeds of each arm as `counts` says, looks at them, reports."""
    out = Path(plan.comparison.out)
    crew = Crew(plan.comparison.jobs, plan.comparison.pass_at.samples, processes, _tell)
    runs = [run_of(arm, seed, out) for seed in range(max(counts.values())) for arm in plan.arms
            if seed < counts[arm.name]]  # fmt: skip
    crew.finish(runs)
    start = _start(crew, plan, out)
    read = {arm.name: [curves_read(run) for run in runs if run.arm is arm] for arm in plan.arms}
    test.look({name: [run.summary["after"]["value"] for run in of] for name, of in read.items()})
    result = result_of(plan.comparison, plan.arms, plan.lines, test, read, start)
    missing = compare_report.draw(result, out / "curves.png")
    result["notes"] += [missing] if missing else []
    write_text(out / "result.json", json.dumps(result, indent=1, allow_nan=False) + "\n")
    write_text(out / "report.html", compare_report.page(result))
    return result


def check_page(page: Path) -> None:
    """Makes a page's folder, and the file where it is not there; UserError: it cannot be written."""
    try:
        page.parent.mkdir(parents=True, exist_ok=True)
        page.open("a").close()
    except OSError as error:
        raise UserError(f"--page {page}: cannot be written ({error.strerror})") from None


def write_page(results: Mapping[str, dict[str, Any]], page: Path, changes: Sequence[str]) -> None:
    """A page with every recipe's verdict, and its picture.

    Args:
        results: a comparison's file -> what `compare` returned.
        changes: that all of them were made with.

    Raises:
        UserError: matplotlib is not installed; the file cannot be written.
    """
    check_page(page)
    write_text(page, compare_report.programme_page(results, page, changes))
    print(page)


def _start(crew: Crew, plan: ComparisonPlan, out: Path) -> dict[str, Any]:
    """Answers of the policy before any training, several to each held-out sample."""
    file, config, first = out / "start.json", out / "start.yaml", plan.arms[0].config
    if not sampled(file, crew.samples):
        write_text(config, dump(first.model_copy(update={"out": str(out / "start")})))
        crew.sample(config, first.policy.model, 0, file, out / "start.log")
    return load_json(file, finite=False)


def _tell(said: str) -> None:
    print(said, file=sys.stderr, flush=True)
