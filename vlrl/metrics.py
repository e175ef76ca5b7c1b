"""The rows of a run: metrics a step, what a checkpoint counts, the lines printed of them."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL.Image import Image

from vlrl.algorithms.single_rollout import k3
from vlrl.decoders import parse_log_row
from vlrl.distributed.world import by_main, get_world
from vlrl.episode_store import is_text_turn, turn_row
from vlrl.io import rename_folder, write_atomic
from vlrl.logging import strip
from vlrl.types import OVERLONG, Decision, Episode, Rollouts, Turn, UserError, Video, __version__, plain
from vlrl.update import UpdateStats

# The rows of a run and its checkpoints: what a checkpoint counts is on the disk before it, and comes back from it.
#
# A checkpoint keeps size and SHA-256 of each file of rows, and the rows since the checkpoint before.

NAMES = ("metrics.jsonl", "timings.jsonl", "skipped.jsonl")


@dataclass
class _Synced:
    """What of a file the newest checkpoint counts, with the SHA-256 of it."""

    rows: int = 0
    size: int = 0  # bytes
    digest: hashlib._Hash = field(default_factory=hashlib.sha256)

    def add(self, data: bytes) -> None:
        self.rows += data.count(b"\n")
        self.size += len(data)
        self.digest.update(data)


class RunRows:
    """The files of rows in a run folder."""

    def __init__(self, out: Path):
        self.out = out
        self._synced: dict[str, _Synced] = {}

    def snapshot(self) -> dict[str, Any]:
        """For a checkpoint that is saved next. All rows are on the disk when it returns; only new ones are read."""
        state = {}
        for name in NAMES:
            if not (self.out / name).exists():
                continue
            synced = self._synced.setdefault(name, _Synced())
            start, start_sha256 = synced.size, synced.digest.hexdigest()
            with (self.out / name).open("rb") as file:
                os.fsync(file.fileno())
                file.seek(start)
                tail = file.read()
            synced.add(tail)
            state[name] = {
                "rows": synced.rows, "bytes": synced.size, "sha256": synced.digest.hexdigest(),
                "start": start, "start_sha256": start_sha256, "tail": tail.decode(),
            }  # fmt: skip
        return state

    def problem(self, saved: Mapping[str, Mapping[str, Any]]) -> str | None:
        """What cannot be restored; None: nothing."""
        for name, entry in saved.items():
            data = _read(self.out / name)
            if data and _restored(data, entry) is None:
                return (
                    f"{self.out / name} is not what this run wrote in its first {entry['rows']} rows: put it back from "
                    "a copy, or remove it to resume without those before the last checkpoints"
                )
        return None

    def restore(self, saved: Mapping[str, Mapping[str, Any]]) -> None:
        """Makes the files what they were at a checkpoint, and says which rows were missing."""
        for name in NAMES:
            path, entry = self.out / name, saved.get(name)
            if entry is None:
                path.unlink(missing_ok=True)  # its first row came later
                continue
            data = _read(path)
            restored = _restored(data, entry)
            whole = entry["tail"].encode() if restored is None else restored
            if data[: entry["bytes"]] != whole:
                _say_restored(path, entry, data, whole)
            if data != whole:
                write_atomic(path, whole)
            self._synced[name] = _Synced()
            self._synced[name].add(whole)


def _restored(data: bytes, entry: Mapping[str, Any]) -> bytes | None:
    """The file at the checkpoint, from what is there and the checkpoint's rows; None: something else is there."""
    if _digest(data[: entry["bytes"]]) == entry["sha256"]:
        return data[: entry["bytes"]]
    start = data[: entry["start"]]
    return start + entry["tail"].encode() if _digest(start) == entry["start_sha256"] else None


def _say_restored(path: Path, entry: Mapping[str, Any], data: bytes, whole: bytes) -> None:
    rows = whole.count(b"\n")
    lost = "" if rows == entry["rows"] else f"; the {entry['rows'] - rows} rows before them are lost"
    there = data[: entry["bytes"]].count(b"\n")
    print(f"vlrl: {path}: {max(rows - there, 0)} of {entry['rows']} rows were missing and are restored from the "
          f"checkpoint{lost}", file=sys.stderr)  # fmt: skip


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


# What a training step reports of its episodes.


def spread(n: int, count: int) -> list[int]:
    """`count` positions evenly over n, so that a look at a few rollouts shows many prompts."""
    return [i * n // min(n, count) for i in range(min(n, count))]


def turn_advantages(rollouts: Rollouts, advantage: torch.Tensor) -> list[list[float]]:
    """Of each episode's turns, the mean advantage [B, T] over its units."""
    means = (advantage.sum(1) / rollouts.mask.sum(1).clamp(min=1)).tolist()
    episodes: list[list[float]] = [[] for _ in rollouts.sample_ids]
    for episode, mean in zip(rollouts.episode.tolist(), means, strict=True):
        episodes[episode].append(mean)
    return episodes


def part_means(episodes: Sequence[Episode]) -> dict[str, float]:
    """Each part of the reward, unweighted: its mean over the episodes that have it (tasks differ in theirs)."""
    values_of: dict[str, list[float]] = {}
    for episode in episodes:
        for name, value in episode.score.parts.items():
            values_of.setdefault(name, []).append(value)
    return {name: sum(values) / len(values) for name, values in values_of.items()}


def by_task(episodes: Sequence[Episode]) -> dict[str, float]:
    """Of a mixture of tasks: accuracy and reward of each that was met, and its share of the episodes."""
    own: dict[str, list[Episode]] = {}
    for episode in episodes:
        if name := episode.score.task:
            own.setdefault(name, []).append(episode)
    row = {}
    for name, each in sorted(own.items()):
        row[f"task/{name}/accuracy"] = sum(e.score.correct for e in each) / len(each)
        row[f"task/{name}/reward"] = sum(e.reward for e in each) / len(each)
        row[f"task/{name}/share"] = len(each) / len(episodes)
    return row


def count_overlong(episodes: Sequence[Episode]) -> dict[str, int]:
    """Of conversations: how many ended because they became longer than the policy takes."""
    turns = [turn for episode in episodes for turn in episode.turns]
    if not any(turn.observation.messages for turn in turns):
        return {}
    return {OVERLONG: sum(OVERLONG in turn.step.info for turn in turns)}


def describe(
    episodes: list[Episode], rollouts: Rollouts, advantage: torch.Tensor, totals: UpdateStats
) -> dict[str, float]:
    """A step's row of metrics."""
    n, mask = len(episodes), rollouts.mask
    silent = advantage.abs().amax(1) < 1e-8
    reasons = Counter(e.score.reason for e in episodes if e.score.reason)
    row = {
        "reward": float(rollouts.reward.mean()),
        **{f"reward/{name}": value for name, value in part_means(episodes).items()},
        "accuracy": sum(e.score.correct for e in episodes) / n,
        "entropy": float(rollouts.entropy[mask].mean()),
        "length": float(mask.sum(1).float().mean()),
        "actions": sum(turn.step.executed for e in episodes for turn in e.turns),
        "cut": sum(turn.decision.truncated for e in episodes for turn in e.turns) / len(mask),
        "zero_advantage": float(silent.float().mean()),
        "loss": totals.loss, "grad_norm": totals.grad_norm, "clip_fraction": totals.clip_fraction,
        "logprob_gap": totals.gap, "update_kl": totals.kl, "epochs": totals.epochs,
        "skipped": totals.skipped, "left_out": totals.left_out,
        "repeated": sum(len(e.faults) for e in episodes),
        **by_task(episodes),
        **count_overlong(episodes),
        **{f"parse_fail/{reason}": count / n for reason, count in sorted(reasons.items())},
        **{f"fault/{why}": count for why, count in sorted(Counter(w for e in episodes for w in e.faults).items())},
    }  # fmt: skip
    for name, other in (("kl", rollouts.reference), ("kl_teacher", rollouts.teacher)):
        if other is not None:
            row[name] = k3(rollouts.logprobs, other, mask)
    return row


# The run folder: what a run writes while it trains, so that nothing is lost and everything can be looked at.
#
# `metrics.jsonl` holds only values that a resumed run reproduces exactly; clocks go to `timings.jsonl`.

THUMBNAIL = 256  # pixels of the longer side of a saved rollout's image


@by_main
def write_text(path: Path, text: str) -> None:
    """`vlrl.io.write_atomic` in the main process of a run."""
    with named(path):
        write_atomic(path, text)


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
    if problem := get_world().gather(rows.problem(saved or {}) if get_world().is_rank_zero else None)[0]:
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
    rename_folder(out, older)
    print(f"the earlier run in {out} is now in {older}", file=sys.stderr)


def provenance(seed: int) -> list[str]:
    """Comment lines for config.yaml: versions, commit, seed."""
    packages = ("torch", "transformers", "accelerate", "peft", "numpy")
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in packages)
    return [f"# vlrl {__version__} (commit {commit()}), {versions}", f"# seed {seed}"]


def commit_of(run: Path) -> str:
    """The commit of the code that a run began with, as its config.yaml says."""
    with (run / "config.yaml").open(encoding="utf-8") as file:
        match = re.search(r"\(commit (\S+)\)", file.readline())
    return match[1] if match else "unknown"


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
    out: Path, step: int, episodes: Sequence[Episode], advantages: Sequence[Sequence[float]] | None,
    split: str = "train",
) -> None:  # fmt: skip
    """Prompt, thumbnails, completion, parsed answer, named parts and advantage of some episodes; of those that talk
    each turn as well, of robots each decision.

    Args:
        advantages: of each episode's turns.
    """
    folder = out / "rollouts"
    (folder / "images").mkdir(parents=True, exist_ok=True)
    rows = [_rollout_row(folder, step, e, split) for e in episodes]
    for row, each in zip(rows, advantages or (), strict=advantages is not None):
        row["advantage"] = sum(each) / max(1, len(each))
        for turn, advantage in zip(row.get("turns") or row.get("decisions", ()), each, strict=False):
            turn["advantage"] = advantage
    file = folder / f"step_{step:06d}.jsonl"
    before = file.read_text(encoding="utf-8") if file.exists() else ""
    kept = [line for line in before.splitlines() if parse_log_row(line)["split"] != split]
    write_text(file, "".join(line + "\n" for line in [*kept, *map(json.dumps, rows)]))


def _rollout_row(folder: Path, step: int, episode: Episode, split: str) -> dict[str, Any]:
    score = episode.score
    observations = [turn.observation for turn in episode.turns] or [episode.sample.prompt]
    images = [image for observation in observations for image in observation.images]
    strips = [strip(video) for observation in observations for video in observation.videos]
    files = [
        *(_thumbnail(folder, image) for image in images),
        *(_saved(folder, frames_strip) for frames_strip, _ in strips),
    ]
    actions = "\n".join(_format_action(turn.decision.action) for turn in episode.turns)
    return {
        "step": step, "split": split, "sample_id": episode.sample.id, "group": episode.group,
        "prompt": observations[0].text, "images": files,  # the videos' strips last: marks count images and videos apart
        "image_size": list(images[0].size) if images else None,
        "image_sizes": [list(image.size) for image in (*images, *(frames_strip for frames_strip, _ in strips))],
        "strips": [{"image": len(images) + i, **facts} for i, (_, facts) in enumerate(strips)],
        "completion": actions,
        "answer": plain(score.answer), "parts": dict(score.parts),
        "reward": episode.reward, "correct": score.correct, "reason": score.reason,
        "marks": [plain(mark) for mark in score.marks],
        **_turn_rows(episode),
    }  # fmt: skip


def _turn_rows(episode: Episode) -> dict[str, Any]:
    """The turns of an episode of texts, where it has several or shows messages; images by their place in `images`.

    Of one prompt only the number of tokens and the entropy, of a robot its decisions.
    """
    turns = episode.turns
    if not all(map(is_text_turn, turns)):
        return {"decisions": [_decision_row(turn) for turn in turns]}
    if len(turns) < 2 and not any(turn.observation.messages for turn in turns):
        stats = _token_stats(turns[0].decision) if turns else {}
        return {name: stats[name] for name in ("tokens", "entropy") if name in stats}
    media = [medium for turn in turns for medium in turn.observation.media]
    strips = itertools.count(sum(not isinstance(medium, Video) for medium in media))
    images = itertools.count()

    def keep(medium: Image | Video) -> dict[str, Any]:
        return {"image": next(strips if isinstance(medium, Video) else images)}

    return {"turns": [turn_row(turn, keep) | _token_stats(turn.decision) for turn in turns]}


def _token_stats(decision: Decision) -> dict[str, Any]:
    """What is known of a completion's tokens: how many, each one's log-probability, the mean entropy."""
    if decision.logprobs is None or decision.entropy is None:
        return {}
    logprobs = [round(value, 3) for value in decision.logprobs.tolist()]
    entropy = float(decision.entropy.mean()) if len(logprobs) else 0.0
    return {"tokens": len(logprobs), "logprobs": logprobs, "entropy": entropy}


def _decision_row(turn: Turn) -> dict[str, Any]:
    """A robot's state [S], what was decided on it, a text or controls [K, A], and what came of that."""
    action, state, step = turn.decision.action, turn.observation.state, turn.step
    return {
        "state": [] if state is None else _numbers(state),
        "action": action if isinstance(action, str) else [_numbers(row) for row in np.atleast_2d(action)],
        "ticks": int(step.info.get("ticks", 1)), "reward": step.reward,
    }  # fmt: skip


def _numbers(values: np.ndarray) -> list[float]:
    """Six digits of each: a joint's angle to its encoder's step."""
    return [float(f"{value:.6g}") for value in values.tolist()]


def _format_action(action: str | np.ndarray) -> str:
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
