"""Reads a run folder leniently: a run that has just begun, or was killed while writing a line, still gets a report."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vlrl.decoders import DecodeError, parse_log_row
from vlrl.report.choose import choose, spread
from vlrl.types import UserError

MAX_ROLLOUTS = 200  # embedded in a page; with a gallery's limits the page stays below 20 MB
MAX_BYTES = 32_000_000  # of rollout files read, some 10,000 rollouts: the first step, the last and evenly between

Row = dict[str, Any]


@dataclass(frozen=True)
class RunFiles:
    """What a run folder holds. Everything but the folder itself may be absent."""

    folder: Path
    config: str
    summary: Row
    metrics: list[Row]
    timings: list[Row]
    rollouts: list[Row]  # at most MAX_ROLLOUTS, by step, each with `why` it was chosen
    shown: dict[str, int]  # how many rollouts and steps that is, of how many
    unreadable: dict[str, int]  # file -> lines left out


def read_run(run: Path) -> RunFiles:
    """The files of `run`. Raises UserError where there is no such folder."""
    run = Path(run).resolve()
    if not run.is_dir():
        raise UserError(f"no run folder at {run}: give the folder that holds metrics.jsonl")
    unreadable: dict[str, int] = {}

    def lines(path: Path) -> list[Row]:
        rows, bad = read_lines(path)
        if bad:
            unreadable[path.relative_to(run).as_posix()] = bad
        return rows

    saved = rollout_files(run)
    files = within(saved, MAX_BYTES)
    read = [row for path in files for row in lines(path)]
    rollouts = [{**read[place], "why": why} for place, why in choose(read, MAX_ROLLOUTS).items()]
    shown = {"rollouts": len(rollouts), "read": len(read), "steps": len(files), "of_steps": len(saved)}
    summary = read_object(run / "summary.json", unreadable)
    return RunFiles(
        folder=run,
        config=read_text(run / "config.yaml"),
        summary=summary,
        metrics=lines(run / "metrics.jsonl"),
        timings=lines(run / "timings.jsonl"),
        rollouts=rollouts,
        shown=shown,
        unreadable=unreadable,
    )


def rollout_files(run: Path) -> list[Path]:
    """By step."""
    return sorted((run / "rollouts").glob("step_*.jsonl"), key=lambda path: (len(path.name), path.name))


def within(files: list[Path], most: int) -> list[Path]:
    """As many of the files, evenly spread, as fit into so many bytes on average; at least two."""
    size = sum(path.stat().st_size for path in files)
    return spread(files, max(2, int(len(files) * most / size))) if size > most else files


def read_text(path: Path) -> str:
    """The file's text, '' where there is none."""
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""


def read_lines(path: Path) -> tuple[list[Row], int]:
    """The objects of a JSON-lines file, and how many lines were not one."""
    rows, bad = [], 0
    for line in read_text(path).split("\n"):
        if not line.strip():
            continue
        row = parse_object(line)
        bad += row is None
        if row is not None:
            rows.append(row)
    return rows, bad


def read_object(path: Path, unreadable: dict[str, int]) -> Row:
    """The object that a whole JSON file holds, {} where there is none; noted in `unreadable` where it is broken."""
    text = read_text(path)
    row = parse_object(text) if text.strip() else {}
    if row is None:
        unreadable[path.name] = 1
    return row or {}


def parse_object(text: str) -> Row | None:
    """A JSON object with nan and infinities turned into None (browsers refuse them); None where it is not one."""
    try:
        value = parse_log_row(text)
    except DecodeError:
        return None
    return finite(value) if isinstance(value, dict) else None


def finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [finite(item) for item in value]
    return value
