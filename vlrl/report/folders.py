"""Which runs lie in the folders that a user names."""

from __future__ import annotations

from pathlib import Path

from vlrl.report.watched import Watched
from vlrl.types import UserError

MOST_RUNS = 16


def watched(folders: list[Path]) -> list[Watched]:
    """The runs that lie in these folders or, where one is no run itself, up to two levels below it.

    Raises:
        UserError: a folder is missing, holds no run, or there are more than MOST_RUNS.
    """
    found = list(dict.fromkeys(run for folder in folders for run in _runs(folder)))
    if len(found) > MOST_RUNS:
        raise UserError(f"{len(found)} runs: at most {MOST_RUNS} side by side; name the ones to look at")
    names = [run.name for run in found]
    told = [run.name if names.count(run.name) == 1 else f"{run.parent.name}/{run.name}" for run in found]
    return [Watched(run, i, name) for i, (run, name) in enumerate(zip(found, told, strict=True))]


def _runs(folder: Path) -> list[Path]:
    folder = folder.resolve()
    if not folder.is_dir():
        raise UserError(f"no run folder at {folder}: give the folder that holds metrics.jsonl")
    if _is_run(folder):
        return [folder]
    below = [path for pattern in ("*", "*/*") for path in sorted(folder.glob(pattern)) if path.is_dir()]
    if not (runs := [path for path in below if _is_run(path)]):
        raise UserError(f"no run in {folder}: neither it nor a folder in it holds metrics.jsonl or config.yaml")
    return runs


def _is_run(folder: Path) -> bool:
    return any((folder / name).is_file() for name in ("metrics.jsonl", "config.yaml"))
