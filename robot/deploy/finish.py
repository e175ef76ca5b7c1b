"""Spools -> a LeRobotDataset v3, written by lerobot itself. Runs as a process of its own: it loads torch.

`python -m robot.deploy.finish OUT [png|video|auto] [corrections] [lease=FD]` takes every spool of OUT.spool into the
data set OUT; `lease`: the inherited descriptor of its lease, which whoever started it holds.
Whenever it is killed, OUT is as it was before or whole, and no spool is gone that OUT does not hold. A take that OUT
has, by its id, is not taken again.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from robot.deploy.frames import Grid, features, grid, load, units
from vlrl.decoders import load_json
from vlrl.leases import hold, sign
from vlrl.system.realtime import forbid_realtime
from vlrl.types import UserError

TAKEN = "meta/vlrl_takes.json"  # in the data set: the ids of the spools in it
LARGE = 128  # pixels, above which `auto` makes videos
PICTURES = ("png", "video", "auto")


def spools_of(out: Path) -> Path:
    """The folder of the recordings that are not yet in the data set `out`."""
    return out.with_name(f"{out.name}.spool")


def hold_data(out: Path) -> contextlib.AbstractContextManager[int]:
    """The lease of a data set, its corrections and its spools: one recorder or one finisher at a time.

    Raises:
        UserError: another process holds it.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    return hold(out.with_name(f".{out.name}.lease"), f"record.out: {out}", "wait for its end, or name another folder")


def finish(out: Path, pictures: str = "auto", corrections: bool = True) -> dict[str, int]:
    """Takes all spools of `out` into it -> counts: episodes, frames, corrections, lost (ticks that were not kept).

    The caller holds `hold_data(out)`.

    Raises:
        UserError: lerobot is missing, or a recording does not fit into the data set that is there.
    """
    paths = sorted(spools_of(out).glob("*.spool"))
    kept = _extend(out, paths, pictures, lambda made: [range(len(made))] if len(made) > 1 else [])
    beside = out.with_name(f"{out.name}-corrections")
    driven = _extend(beside, paths, pictures, Grid.driven) if corrections else Counter()
    for path in paths:
        path.unlink()
    return {**dict.fromkeys(("episodes", "frames", "lost"), 0), **kept, "corrections": driven["episodes"]}


def restore(out: Path) -> None:
    """Puts back what a killed run left between two names."""
    old, new = _beside(out)
    if old.exists() and not out.exists():
        old.rename(out)
    for folder in (old, new):
        shutil.rmtree(folder, ignore_errors=True)


def fits(out: Path, wanted: dict[str, dict[str, Any]], fps: int) -> str:
    """Why such frames cannot be appended to the data set `out`, or ''."""
    try:
        info = load_json(out / "meta" / "info.json")
    except (OSError, ValueError):
        return f"{out} is there and is no LeRobotDataset" if out.exists() and any(out.iterdir()) else ""
    if info["fps"] != fps:
        return f"{out} has {info['fps']} frames a second, this run {fps}"
    for name, column in wanted.items():
        there = info["features"].get(name)
        if there is None or list(there["shape"]) != list(column["shape"]) or there["names"] != column["names"]:
            return f"{out} has another {name}"
    return ""


def _extend(out: Path, paths: Sequence[Path], pictures: str, stretches: Callable[[Grid], list[range]]) -> Counter[str]:
    """Appends what the data set does not have yet: to a copy, which then takes its place."""
    restore(out)
    held = load_json(out / TAKEN) if (out / TAKEN).is_file() else []
    old, new = _beside(out)
    dataset, counts = None, Counter()
    for path in paths:
        take = load(path)
        if take is None or take.header["id"] in held or not (ranges := stretches(made := grid(take))):
            continue
        if dataset is None:
            about = {"controls": units(take.header), "hz": take.header["fps"]}
            dataset, columns = _opened(out, new, take.header, pictures)
        if features(take.header, _as_video(take.header, pictures)) != columns:
            raise UserError(f"record.out: {path.parent} holds recordings of two robots: move one elsewhere")
        for stretch in ranges:
            _add(dataset, made, stretch)
            counts.update(episodes=1, frames=len(stretch))
        held.append(take.header["id"])
        counts.update(lost=take.lost)
    if dataset is not None:
        dataset.finalize()
        (new / TAKEN).write_text(json.dumps(held), encoding="utf-8")
        (new / "meta" / "vlrl.json").write_text(json.dumps(about), encoding="utf-8")
        _swap(out, old, new)
    return counts


def _add(dataset: Any, made: Grid, stretch: range) -> None:
    for index in stretch:
        dataset.add_frame(made.frame(index, last=index == stretch[-1]))
    dataset.save_episode(parallel_encoding=False)


def _swap(out: Path, old: Path, new: Path) -> None:
    if out.exists():
        out.rename(old)
    new.rename(out)
    shutil.rmtree(old, ignore_errors=True)


def _opened(out: Path, new: Path, header: Mapping[str, Any], pictures: str) -> tuple[Any, dict[str, Any]]:
    """A data set to write to, new or a copy of what is there, and its columns."""
    video, fps = _as_video(header, pictures), int(header["fps"])
    columns = features(header, video)
    if problem := fits(out, columns, fps):
        raise UserError(f"record.out: {problem}: name another folder")
    made, name = _lerobot(), f"local/{out.name}"
    new.parent.mkdir(parents=True, exist_ok=True)
    if (out / "meta").is_dir():
        shutil.copytree(out, new, copy_function=_copy)
        return made.resume(name, root=new), columns
    robot = str(header.get("robot", ""))
    return made.create(name, fps, columns, root=new, robot_type=robot, use_videos=video), columns


def _copy(source: str, target: str) -> None:
    """lerobot never writes into a finished file of `data/`, so that a link will do."""
    (os.link if Path(source).parent.parent.name == "data" else shutil.copy2)(source, target)


def _lerobot() -> Any:
    """The class LeRobotDataset."""
    try:
        import datasets
        from lerobot.datasets.lerobot_dataset import LeRobotDataset
    except ImportError as error:
        raise UserError(f"record: needs lerobot: pip install 'vlrl[robot]' ({str(error).splitlines()[0]})") from None
    datasets.disable_progress_bars()
    return LeRobotDataset


def _as_video(header: Any, pictures: str) -> bool:
    large = any(max(size) > LARGE for size in header["pictures"].values())
    return bool(header["pictures"]) and (pictures == "video" or (pictures == "auto" and large))


def _beside(out: Path) -> tuple[Path, Path]:
    return out.with_name(f".{out.name}.old"), out.with_name(f".{out.name}.new")


def main(arguments: Sequence[str]) -> int:
    try:
        out, pictures = Path(arguments[0]), next((each for each in arguments[1:] if each in PICTURES), "auto")
        inherited = [int(each.removeprefix("lease=")) for each in arguments[1:] if each.startswith("lease=")]
        with contextlib.nullcontext(inherited[0]) if inherited else hold_data(out) as lease, forbid_realtime():
            sign(lease)  # this process is the one that others have to wait for
            counts = finish(out, pictures, "corrections" in arguments[1:])
        print(json.dumps(counts))
    except UserError as error:
        print(json.dumps({"problem": str(error)}))
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
