"""Reading of run folders for reports."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

from vlrl.decoders import DecodeError, parse_log_row
from vlrl.types import UserError

# Which rollouts a page shows when there are more than it can hold: an even sample, and those worth reading.

ChooseRow = Mapping[str, Any]
EVEN = "even"


def choose(rows: Sequence[ChooseRow], count: int) -> dict[int, str]:
    """Places of at most `count` rows, in their order -> why each was chosen; '' where all are shown.

    Half are an even sample. The others are, in turn, a parse failure (each reason in turn), the best reward, the
    worst reward of those that parsed, and the most surprising: the reward that is farthest from the mean of the other
    rollouts of its sample. The same sample comes twice only where there is no other; of equals the newest comes first.
    """
    if len(rows) <= count:
        return dict.fromkeys(range(len(rows)), "")
    picked: dict[int, str] = {}
    queues = {why: iter(_fresh(ranked, rows)) for why, ranked in _ranked(rows).items()}
    while queues and len(picked) < count // 2:
        for why, queue in list(queues.items()):
            place = next((place for place in queue if place not in picked), None)
            if place is None:
                del queues[why]
            elif len(picked) < count // 2:
                picked[place] = why
    rest = [place for place in range(len(rows)) if place not in picked]
    picked |= dict.fromkeys(spread(rest, count - len(picked)), EVEN)
    return dict(sorted(picked.items()))


def spread(items: Sequence, count: int) -> list:
    """At most `count` >= 2 items: the first, the last and evenly between."""
    if len(items) <= count:
        return list(items)
    return [items[round(i * (len(items) - 1) / (count - 1))] for i in range(count)]


def _ranked(rows: Sequence[ChooseRow]) -> dict[str, list[int]]:
    """Kind -> places, the ones most worth reading first."""
    newest = range(len(rows) - 1, -1, -1)
    parsed = [place for place in newest if not rows[place].get("reason") and _reward(rows[place]) is not None]
    odd = _surprise(rows)
    return {
        "failure": _in_turn((place for place in newest if rows[place].get("reason")), lambda p: rows[p]["reason"]),
        "best": sorted(parsed, key=lambda place: -_reward(rows[place])),
        "worst": sorted(parsed, key=lambda place: _reward(rows[place])),
        "surprising": sorted((place for place in newest if odd.get(place)), key=lambda place: -odd[place]),
    }


def _surprise(rows: Sequence[ChooseRow]) -> dict[int, float]:
    """Place -> distance of the reward from the mean of the sample's other rollouts; samples met once have none."""
    of_sample: dict[str, list[int]] = defaultdict(list)
    for place, row in enumerate(rows):
        if _reward(row) is not None and row.get("sample_id") is not None:
            of_sample[str(row["sample_id"])].append(place)
    values = {}
    for places in of_sample.values():
        total, others = sum(_reward(rows[place]) for place in places), len(places) - 1
        for place in places if others else ():
            values[place] = abs(_reward(rows[place]) - (total - _reward(rows[place])) / others)
    return values


def _in_turn(places: Iterable[int], kind: Callable[[int], Any]) -> list[int]:
    """One of each kind, then a second of each, and so on."""
    kinds: dict[str, list[int]] = defaultdict(list)
    for place in places:
        kinds[str(kind(place))].append(place)
    turns = itertools.zip_longest(*kinds.values())
    return [place for turn in turns for place in turn if place is not None]


def _fresh(places: Sequence[int], rows: Sequence[ChooseRow]) -> list[int]:
    """First each sample once, then the rest."""
    met: set[str] = set()
    first, again = [], []
    for place in places:
        sample = str(rows[place].get("sample_id", place))
        (again if sample in met else first).append(place)
        met.add(sample)
    return first + again


def _reward(row: ChooseRow) -> float | None:
    value = row.get("reward")
    return value if isinstance(value, int | float) else None


# Cells of text as an HTML table.


def table(head: Sequence[str], *rows: Sequence[str]) -> str:
    """Every cell escaped."""

    def line(cells: Sequence[str], kind: str) -> str:
        return "<tr>" + "".join(f"<{kind}>{escape(cell)}</{kind}>" for cell in cells) + "</tr>"

    return f"<table><thead>{line(head, 'th')}</thead><tbody>{''.join(line(row, 'td') for row in rows)}</tbody></table>"


# The curves of each task of a mixture, and what each was measured at.

Point = list[float | None]  # [step, value]; None is a gap
HELD = ("accuracy", "low", "high", "n", "reward")  # of the held-out samples of a task
SHOWN = {"accuracy": "Training accuracy by task", "reward": "Reward by task", "share": "Share of the step by task"}


def names(curves: Mapping[str, list[Point]]) -> list[str]:
    """The tasks of a mixture; [] where there is none."""
    held = {key.removeprefix("eval/") for key in curves}
    return sorted(
        key.split("/")[1] for key in held if key.count("/") == 2 and key[:5] == "task/" and key[-9:] == "/accuracy"
    )


def charts(curves: Mapping[str, list[Point]], used: set[str]) -> list[dict[str, Any]]:
    """Held-out accuracy, accuracy, reward, share and reward parts of each task, noting in `used` what is drawn."""
    tasks, figures = names(curves), []
    held = [measured(name, curves, f"eval/task/{name}/") for name in tasks if f"eval/task/{name}/accuracy" in curves]
    used |= {f"eval/task/{name}/{key}" for name in tasks for key in HELD}
    if held:
        figures.append({"title": "Held-out accuracy by task", "note": "with intervals", "wide": True, "series": held})
    for key, title in SHOWN.items():
        series = [_line(name, curves, f"task/{name}/{key}", used) for name in tasks if f"task/{name}/{key}" in curves]
        figures += [{"title": title, "note": "", "wide": False, "series": series}] if series else []
    for name in tasks:
        parts = sorted(key for key in curves if key.startswith(f"reward/{name}/"))
        series = [_line(key.split("/", 2)[2], curves, key, used) for key in parts]
        figures += [{"title": f"Reward parts: {name}", "note": "", "wide": False, "series": series}] if series else []
    return figures


def measured(name: str, curves: Mapping[str, list[Point]], prefix: str) -> dict[str, Any]:
    """Held-out accuracy as a series with its interval: band is [step, low, high]."""
    low, high = (dict(curves.get(f"{prefix}{key}", [])) for key in ("low", "high"))
    band = [[step, low[step], high[step]] for step in low if low[step] is not None and high.get(step) is not None]
    return {"name": name, "points": curves[f"{prefix}accuracy"], "band": band, "smooth": False}


def _line(name: str, curves: Mapping[str, list[Point]], key: str, used: set[str]) -> dict[str, Any]:
    used.add(key)
    return {"name": name, "points": curves[key], "smooth": True}


# Reads a run folder leniently: a run that has just begun, or was killed while writing a line, still gets a report.

MAX_ROLLOUTS = 200  # embedded in a page; with a gallery's limits the page stays below 20 MB
MAX_BYTES = 32_000_000  # of rollout files read, some 10,000 rollouts: the first step, the last and evenly between

ReadRow = dict[str, Any]


@dataclass(frozen=True)
class RunFiles:
    """What a run folder holds. Everything but the folder itself may be absent."""

    folder: Path
    config: str
    summary: ReadRow
    metrics: list[ReadRow]
    timings: list[ReadRow]
    rollouts: list[ReadRow]  # at most MAX_ROLLOUTS, by step, each with `why` it was chosen
    shown: dict[str, int]  # how many rollouts and steps that is, of how many
    unreadable: dict[str, int]  # file -> lines left out


def read_run(run: Path) -> RunFiles:
    """The files of `run`. Raises UserError where there is no such folder."""
    run = Path(run).resolve()
    if not run.is_dir():
        raise UserError(f"no run folder at {run}: give the folder that holds metrics.jsonl")
    unreadable: dict[str, int] = {}

    def lines(path: Path) -> list[ReadRow]:
        rows, bad = read_lines(path)
        if bad:
            unreadable[path.relative_to(run).as_posix()] = bad
        return rows

    saved = rollout_files(run)
    files = within(saved, MAX_BYTES)
    read = [row for path in files for row in lines(path)]
    rollouts = [{**read[place], "why": why} for place, why in choose(read, MAX_ROLLOUTS).items()]
    counts = {"rollouts": len(rollouts), "read": len(read), "steps": len(files), "of_steps": len(saved)}
    summary = read_object(run / "summary.json", unreadable)
    return RunFiles(
        folder=run,
        config=read_text(run / "config.yaml"),
        summary=summary,
        metrics=lines(run / "metrics.jsonl"),
        timings=lines(run / "timings.jsonl"),
        rollouts=rollouts,
        shown=counts,
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


def read_lines(path: Path) -> tuple[list[ReadRow], int]:
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


def read_object(path: Path, unreadable: dict[str, int]) -> ReadRow:
    """The object that a whole JSON file holds, {} where there is none; noted in `unreadable` where it is broken."""
    text = read_text(path)
    row = parse_object(text) if text.strip() else {}
    if row is None:
        unreadable[path.name] = 1
    return row or {}


def parse_object(text: str) -> ReadRow | None:
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


# Files of a run that somebody is still writing: only what is new is read.

Stamp = tuple[int, int, int]  # inode, size, modification time


def stamp(path: Path) -> Stamp | None:
    """Changes whenever the file does; None where there is none."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


@dataclass
class Tail:
    """The rows of a JSON-lines file that grows. A line that is being written waits until it ends.

    A file that is shorter than before, or another one of that name (a resumed run cuts its metrics), is read anew.
    """

    path: Path
    rows: list[ReadRow] = field(default_factory=list)
    unreadable: int = 0
    _read: int = 0  # bytes
    _inode: int = -1

    def follow(self) -> None:
        """Reads what has come."""
        present = stamp(self.path)
        inode, size = present[:2] if present else (-1, 0)
        if inode != self._inode or size < self._read:
            self.rows, self.unreadable, self._read, self._inode = [], 0, 0, inode
        if size == self._read:
            return
        with self.path.open("rb") as file:
            file.seek(self._read)
            whole, end, _ = file.read().rpartition(b"\n")
        self._read += len(whole) + len(end)
        for line in whole.split(b"\n"):
            if line.strip():
                row = parse_object(line.decode("utf-8", errors="replace"))
                self.unreadable += row is None
                self.rows += [row] if row is not None else []
