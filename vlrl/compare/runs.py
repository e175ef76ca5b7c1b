"""The training runs of a comparison: ordinary run folders, each in its own process, none repeated that has finished."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from vlrl.compare.arms import Arm
from vlrl.config import dump
from vlrl.log import write_text
from vlrl.types import UserError

PASS_AT = "pass_at.json"


@dataclass(frozen=True)
class Run:
    """One seed of one arm."""

    arm: Arm
    seed: int
    folder: Path


def sampled(file: Path, samples: int) -> bool:
    """Whether a file holds so many answers to each held-out sample."""
    return file.is_file() and json.loads(file.read_text(encoding="utf-8"))["n"] == samples


def run_of(arm: Arm, seed: int, out: Path) -> Run:
    return Run(arm, seed, out / arm.name / f"seed_{seed}")


def check(run: Run) -> None:
    """UserError where an earlier run lies in the folder that was made with other settings."""
    file = run.folder / "config.yaml"
    if not file.is_file():
        return
    there, wanted = flat(yaml.safe_load(file.read_text(encoding="utf-8"))), flat(run.arm.config.model_dump(mode="json"))
    other = [k for k in sorted(there | wanted) if k not in ("out", "seed") and there.get(k) != wanted.get(k)]
    if other:
        key = other[0]
        raise UserError(
            f"{run.folder} was made with other settings ({key}: {there.get(key)} there, {wanted.get(key)} now): "
            "name another `out`, or move it away"
        )


def flat(values: Any, path: str = "") -> dict[str, Any]:
    """{"a": {"b": 1}} -> {"a.b": 1}; lists stay whole."""
    if not isinstance(values, dict):
        return {path: values}
    parts = [flat(value, f"{path}.{key}" if path else str(key)) for key, value in values.items()]
    return {key: value for part in parts for key, value in part.items()}


class Crew:
    """Trains runs, `jobs` at a time. Ctrl-C lets every run save; the same command then goes on."""

    def __init__(self, jobs: int, samples: int, tell: Callable[[str], None]):
        self.jobs, self.samples, self.tell = jobs, samples, tell
        self._lock = threading.Lock()
        self._processes: set[subprocess.Popen] = set()
        self._stopped = False

    def finish(self, runs: Sequence[Run]) -> None:
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
                self.tell(f"{number} of {len(runs)}: {_said(futures[future])}")
        except BaseException:
            self._stop()
            raise
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    def sample(self, config: Path, model: str, seed: int, out: Path, log: Path) -> None:
        """Answers of a model to the held-out samples, several each, into the file `out`."""
        self._call(["-m", "vlrl.compare.sampled", str(config), model, str(self.samples), str(seed), str(out)], log)

    def _finish(self, run: Run) -> None:
        log, config = run.folder.with_suffix(".log"), run.folder.with_suffix(".yaml")
        run.folder.parent.mkdir(parents=True, exist_ok=True)
        own = {"out": str(run.folder), "seed": run.seed}
        write_text(config, dump(run.arm.config.model_copy(update=own)))
        if not (run.folder / "summary.json").is_file():
            begun = (run.folder / "config.yaml").is_file()
            what = ["--resume", str(run.folder)] if begun else [str(config)]
            self._call(["-m", "vlrl.cli", "train", *what], log)
        self.sample(config, str(run.folder), run.seed, run.folder / PASS_AT, log)

    def _call(self, arguments: Sequence[str], log: Path) -> None:
        """Python in a process of its own, one thread, what it says behind what the log already holds."""
        environment = {"OMP_NUM_THREADS": "1"} | dict(os.environ)
        with log.open("a") as file:
            with self._lock:
                if self._stopped:
                    return
                process = subprocess.Popen([sys.executable, *arguments], env=environment, stdout=file, stderr=file,
                                           stdin=subprocess.DEVNULL)  # fmt: skip
                self._processes.add(process)
            code = process.wait()
        with self._lock:
            self._processes.discard(process)
        if code and not self._stopped:
            said = log.read_text(errors="replace").strip().splitlines()
            raise UserError(f"{log.with_suffix('')}: {said[-1] if said else f'ended with code {code}'} (see {log})")

    def _stop(self) -> None:
        """Asks every run to finish its step and save."""
        with self._lock:
            self._stopped = True
            for process in self._processes:
                process.terminate()


def _said(run: Run) -> str:
    summary = json.loads((run.folder / "summary.json").read_text())
    before, after = summary["before"]["value"], summary["after"]["value"]
    return f"{run.arm.name} seed {run.seed}: {before:.3f} -> {after:.3f}, {summary['cpu_s']:.0f} CPU-s"
