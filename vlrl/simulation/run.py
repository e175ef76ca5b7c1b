"""`vlrl simulate`: arms play the same scenes, and what came of it is written and shown."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vlrl import registry
from vlrl.config import Config
from vlrl.locks import hold_folder
from vlrl.log import write_text
from vlrl.progress import Progress
from vlrl.simulation.arms import Arm, arms_of
from vlrl.simulation.films import Filmed, chosen, film, keep
from vlrl.simulation.play import Played, play
from vlrl.simulation.report import page
from vlrl.simulation.result import result_of
from vlrl.types import Sample, UserError

VIDEOS = 4


@dataclass(frozen=True)
class Plan:
    """What the user asked for.

    Args:
        out: folder for result.json and report.html; what lies there under these names is replaced.
        policy: a folder, a run folder or a bundled name; none: the configuration's.
        against: `expert`, `random`, `start`, folders or names.
        episodes: the first so many held-out scenes; none: all.
        video: a folder for videos of each arm's first `videos` episodes, by default VIDEOS or as many as there are.
    """

    out: Path
    policy: str | None = None
    against: Sequence[str] = ()
    episodes: int | None = None
    video: Path | None = None
    videos: int | None = None


@dataclass
class Stage:
    """What was played and filmed so far."""

    played: list[Played] = field(default_factory=list)
    report: list[Filmed] = field(default_factory=list)  # what the page shows
    kept: list[Filmed] = field(default_factory=list)  # what lies in the user's folder
    notes: list[str] = field(default_factory=list)


def simulate(config: Config, plan: Plan) -> dict[str, Any]:
    """Plays, writes `out/result.json` and `out/report.html`, and returns the result.

    Raises:
        UserError: what is asked for cannot be played.
    """
    task = registry.make_task(config)
    if not hasattr(task, "arm"):
        raise UserError(f"task.name: {config.task.name!r} has no robot: `vlrl simulate` plays the task `manipulation`")
    try:
        samples = _samples(task, plan)
        arms = arms_of(config, task, plan.policy, plan.against)
        for option, folder in (("--out", plan.out), ("--video", plan.video)):
            _make(option, folder)
        with hold_folder(plan.out), tempfile.TemporaryDirectory(prefix=".films-", dir=plan.out) as films:
            stage = _play(task, arms, samples, plan, Path(films))
            result = result_of(config, task, stage.played)
            result |= {"notes": [*result["notes"], *stage.notes], "videos": [str(each.path) for each in stage.kept]}
            write_text(plan.out / "result.json", json.dumps(result, indent=1, allow_nan=False) + "\n")
            write_text(plan.out / "report.html", page(result, stage.report))
        return result
    finally:
        task.close()


def _samples(task: Any, plan: Plan) -> list[Sample]:
    held_out = task.samples("test")
    most = len(held_out)
    n = most if plan.episodes is None else plan.episodes
    if not 0 < n <= most:
        raise UserError(f"--episodes {n}: 1 to {most}, the scenes that are held out, or set task.held_out")
    if plan.videos is not None and not (plan.video and 0 < plan.videos <= n):
        raise UserError(f"--videos {plan.videos}: 1 to {n}, the episodes, and --video says where to")
    return [held_out[i] for i in range(n)]


def _make(option: str, folder: Path | None) -> None:
    try:
        if folder:
            folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise UserError(f"{option} {folder}: a file is in the way; name a folder") from None


def _play(task: Any, arms: Sequence[Arm], samples: Sequence[Sample], plan: Plan, films: Path) -> Stage:
    """All arms one after the other, each filmed in the scenes that are worth seeing of the first."""
    stage, n = Stage(), len(samples)
    kept = min(plan.videos or VIDEOS, n) if plan.video else 0
    with Progress(n) as progress:
        progress.note("starting the robots")
        for arm in arms:  # all of them first: what one of them lacks is said before another has played
            arm.task.warm(samples)
        for arm in arms:
            say = f"{arm.name}: episode {{}} of {n}".format
            stage.played.append(play(arm, samples, lambda number, say=say: progress.note(say(number))))
            worth = chosen(stage.played[0].rows)
            places = sorted({*worth, *range(kept)})
            progress.note(f"{arm.name}: filming {len(places)} episodes")
            taken = dict(zip(places, _film(task, stage, places, films, must=kept > 0), strict=False))
            stage.report += [taken[place] for place in worth if place in taken]
            if plan.video:
                stage.kept += keep([taken[place] for place in range(kept)], plan.video)
    return stage


def _film(task: Any, stage: Stage, places: Sequence[int], folder: Path, must: bool) -> list[Filmed]:
    """Films of the newest arm's episodes at these places. A report without pictures is still one: [] unless `must`."""
    newest = stage.played[-1]
    samples, rows = zip(*((newest.episodes[place].sample, newest.rows[place]) for place in places), strict=True)
    try:
        films = film(newest.arm, task, samples, rows, folder)
    except UserError as error:
        if must:
            raise
        stage.notes.append(f"no pictures of {newest.arm.name}: {error}")
        return []
    other = ", ".join(str(each.seed) for each in films if not each.same)
    if other:
        stage.notes.append(f"{newest.arm.name} went another way when it was filmed in scenes {other}: batches of other "
                           "sizes round differently")  # fmt: skip
    return films
