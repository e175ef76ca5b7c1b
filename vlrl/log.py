"""The run folder: what a run writes while it trains, so that nothing is lost and everything can be looked at.

`metrics.jsonl` holds only values that a resumed run reproduces exactly; clocks go to `timings.jsonl`.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from vlrl import locks
from vlrl.decoders import parse_log_row
from vlrl.parallel import by_main, here
from vlrl.run_rows import NAMES, RunRows
from vlrl.strips import strip
from vlrl.types import Episode, UserError, plain

THUMBNAIL = 256  # pixels of the longer side of a saved rollout's image


@by_main
def write_text(path: Path, text: str) -> None:
    """Whole or not at all: a temporary name, then a rename."""
    temporary = path.with_name(f".{path.name}.part")
    with named(path):
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)


@by_main
def open_folder(out: Path, config: str | None) -> None:
    """Makes a run's folder and writes its configuration; None: it is there.

    Raises:
        UserError: there cannot be such a folder.
    """
    try:
        (out / "rollouts" / "images").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"out: cannot write {out}: {error.strerror}") from None
    if config is not None:
        write_text(out / "config.yaml", config)


@by_main
def say(text: str) -> None:
    """A line for whoever watches."""
    print(f"\n{text}", file=sys.stderr)


@by_main
def append_row(path: Path, row: dict[str, Any]) -> None:
    """One JSON object as one line."""
    with named(path), path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")


@contextlib.contextmanager
def named(path: Path) -> Iterator[None]:
    """Says which file an error is about: a full disk shows when a file is flushed, which no longer knows its name."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, error.filename or str(path)) from None


def cut_after(path: Path, step: int) -> None:
    """Drops rows that lie behind a checkpoint, and a line that a killed run left half written."""
    if not path.exists():
        return
    kept = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            row = parse_log_row(line)
        except ValueError:
            break
        if row["step"] <= step:
            kept.append(line)
    write_text(path, "".join(line + "\n" for line in kept))


def forget_after(out: Path, step: int, saved: Mapping[str, Any] | None = None) -> RunRows:
    """Makes the run folder what it was when the checkpoint of this step was written (-1: before anything).

    Args:
        saved: what the checkpoint keeps of the rows; None: an older one, which keeps nothing.

    Raises:
        UserError: in every process, where the rows are not what the run wrote.
    """
    rows = RunRows(out)
    if problem := here().gather(rows.problem(saved or {}) if here().main else None)[0]:
        raise UserError(problem)
    _forget_after(out, step, rows, saved)
    return rows


@by_main
def _forget_after(out: Path, step: int, rows: RunRows, saved: Mapping[str, Any] | None) -> None:
    if saved is not None:
        rows.restore(saved)
    for name in () if saved is not None else NAMES:
        cut_after(out / name, step)
    for file in (out / "rollouts").glob("step_*.jsonl"):
        if int(file.stem.removeprefix("step_")) > step:
            file.unlink()


@by_main
def note_changes(out: Path, step: int, changes: Mapping[str, Sequence[Any]]) -> None:
    """A row of metrics for what a resumed run's configuration has changed: key -> old and new value."""
    if changes:
        append_row(out / "metrics.jsonl", {"step": step, "changes": dict(changes)})
        say(f"resumed at step {step} with " + ", ".join(f"{key} {old} -> {new}" for key, (old, new) in changes.items()))


@by_main
def set_aside(out: Path) -> None:
    """Renames an earlier run's folder to `out.1`, `out.2`, ...: a new run neither mixes with it nor destroys it.

    Raises:
        HeldError: another process holds it.
    """
    if not (out / "config.yaml").exists():
        return
    number = next(i for i in itertools.count(1) if not out.with_name(f"{out.name}.{i}").exists())
    older = out.with_name(f"{out.name}.{number}")
    locks.rename_folder(out, older)
    print(f"the earlier run in {out} is now in {older}", file=sys.stderr)


def provenance(seed: int) -> list[str]:
    """Comment lines for config.yaml: versions, commit, seed."""
    packages = ("torch", "transformers", "accelerate", "peft", "numpy")
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in packages)
    from vlrl import __version__

    return [f"# vlrl {__version__} (commit {commit()}), {versions}", f"# seed {seed}"]


def commit() -> str:
    """The git commit of this code, with a mark when the tree was changed."""
    try:
        here: dict[str, Any] = {"cwd": Path(__file__).parent, "capture_output": True, "text": True, "timeout": 10}
        head = subprocess.run(["git", "rev-parse", "--short=12", "HEAD"], **here)
        changed = subprocess.run(["git", "status", "--porcelain"], **here)
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    return head.stdout.strip() + ("+changes" if changed.stdout.strip() else "") if head.returncode == 0 else "unknown"


@by_main
def save_rollouts(
    out: Path, step: int, episodes: Sequence[Episode], advantage: Tensor | None, split: str = "train"
) -> None:
    """Prompt, thumbnail, completion, parsed answer, named parts and advantage of some episodes."""
    folder = out / "rollouts"
    (folder / "images").mkdir(parents=True, exist_ok=True)
    rows = [_rollout_row(folder, step, e, split) for e in episodes]
    if advantage is not None:
        for row, value in zip(rows, advantage.tolist(), strict=True):
            row["advantage"] = value
    file = folder / f"step_{step:06d}.jsonl"
    before = file.read_text(encoding="utf-8") if file.exists() else ""
    kept = [line for line in before.splitlines() if parse_log_row(line)["split"] != split]
    write_text(file, "".join(line + "\n" for line in [*kept, *map(json.dumps, rows)]))


def _rollout_row(folder: Path, step: int, episode: Episode, split: str) -> dict[str, Any]:
    score = episode.score
    shown = [turn.observation for turn in episode.turns] or [episode.sample.prompt]
    images = [image for observation in shown for image in observation.images]
    strips = [strip(video) for observation in shown for video in observation.videos]
    files = [*(_thumbnail(folder, image) for image in images), *(_saved(folder, made) for made, _ in strips)]
    said = "\n".join(_said(turn.decision.action) for turn in episode.turns)
    return {
        "step": step, "split": split, "sample_id": episode.sample.id, "group": episode.group,
        "prompt": shown[0].text, "images": files,  # the videos' strips last: marks count images and videos apart
        "image_size": list(images[0].size) if images else None,
        "image_sizes": [list(image.size) for image in (*images, *(made for made, _ in strips))],
        "strips": [{"image": len(images) + i, **told} for i, (_, told) in enumerate(strips)],
        "completion": said,
        "answer": plain(score.answer), "parts": dict(score.parts),
        "reward": episode.reward, "correct": score.correct, "reason": score.reason,
        "marks": [plain(mark) for mark in score.marks],
    }  # fmt: skip


def _said(action: str | np.ndarray) -> str:
    """A text as it is; a chunk of controls in rows of two decimals."""
    if isinstance(action, str):
        return action
    return "; ".join(" ".join(f"{number:.2f}" for number in row) for row in np.atleast_2d(action))


def _thumbnail(folder: Path, image) -> str:
    small = image.copy()
    small.thumbnail((THUMBNAIL, THUMBNAIL))
    return _saved(folder, small)


def _saved(folder: Path, small) -> str:
    """Saves an image once, named by its content."""
    name = f"{hashlib.sha256(small.tobytes()).hexdigest()[:16]}.png"
    path = folder / "images" / name
    if not path.exists():
        temporary = path.with_suffix(".part")
        small.save(temporary, format="PNG")
        os.replace(temporary, path)
    return f"rollouts/images/{name}"
