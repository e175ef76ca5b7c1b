"""Videos of episodes. They are played once more to be filmed, so that a camera costs no result its time."""

from __future__ import annotations

import base64
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from vlrl.media import open_video
from vlrl.rollout import collect
from vlrl.simulation.arms import Arm
from vlrl.simulation.play import Row, row
from vlrl.strips import strip
from vlrl.types import Sample, Video

SIZE = (256, 256)  # pixels, of robots without a camera of their own
KINDS = (("success",), ("failure", "bad_action"), ("time_out",))  # of outcomes; a report shows one of each


@dataclass(frozen=True)
class Filmed:
    """An episode's video."""

    arm: str
    seed: int
    outcome: str
    ticks: int
    path: Path
    same: bool  # it went as when it counted


def chosen(rows: Sequence[Row]) -> list[int]:
    """Places of episodes worth seeing: the first of each kind of outcome."""
    firsts = ([i for i, each in enumerate(rows) if each["outcome"] in kind][:1] for kind in KINDS)
    return sorted(place for found in firsts for place in found)


def film(arm: Arm, task: Any, samples: Sequence[Sample], rows: Sequence[Row], folder: Path) -> list[Filmed]:
    """Plays the samples again, whose rows are known, and writes `SEED_ARM_OUTCOME.mp4` of each.

    Args:
        folder: is there.

    Raises:
        UserError: the robot has no picture, or cannot render.
    """
    paths = {sample.id: (folder / f"{sample.answer:06d}_{arm.name}.mp4").resolve() for sample in samples}
    filmed = task.arm(arm.script, {name: {"path": str(path), "size": SIZE} for name, path in paths.items()})
    found = []
    for episode, before in zip(collect(arm.policy, filmed, samples, group_size=1, greedy=True), rows, strict=True):
        now, path = row(arm.name, episode), paths[episode.sample.id]
        named = path.rename(path.with_name(f"{path.stem}_{now['outcome']}.mp4"))
        same = all(now[key] == before[key] for key in ("outcome", "ticks", "reward"))
        found.append(Filmed(arm.name, now["seed"], now["outcome"], now["ticks"], named, same))
    return found


def keep(films: Sequence[Filmed], folder: Path) -> list[Filmed]:
    """Copies into the user's folder, each whole or not at all."""
    kept = []
    for each in films:
        part = folder / f".{each.path.name}.part"
        shutil.copyfile(each.path, part)
        kept.append(
            Filmed(each.arm, each.seed, each.outcome, each.ticks, part.rename(folder / each.path.name), each.same)
        )
    return kept


def embedded(film: Filmed) -> tuple[str, str]:
    """Data URIs of the video and of a strip of its frames."""
    picture, _ = strip(read(film.path))
    out = BytesIO()
    picture.save(out, "WEBP", quality=80)
    return (
        f"data:video/mp4;base64,{base64.b64encode(film.path.read_bytes()).decode()}",
        f"data:image/webp;base64,{base64.b64encode(out.getvalue()).decode()}",
    )


def read(path: Path) -> Video:
    """All frames of a film."""
    with open_video(path) as file:
        rate = float(file.streams.video[0].average_rate or 25)
        frames = np.stack([frame.to_ndarray(format="rgb24") for frame in file.decode(video=0)])
    return Video(frames, tuple(i / rate for i in range(len(frames))), rate, len(frames) / rate)
