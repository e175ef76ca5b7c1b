"""Recording of episodes: frames are written while the arm moves, the data set is made afterwards."""

from __future__ import annotations

import contextlib
import io
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import threading
import time
import uuid
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from robot.control.messages import MotionInfo
from robot.deploy.cameras import CameraPicture
from robot.deploy.config import Deploy, RecordSection
from robot.deploy.session import Ender
from robot.types import TickRecord
from vlrl.decoders import load_json, wire_pack, wire_unpack
from vlrl.io import hold, sign
from vlrl.media import load_rgb
from vlrl.system.clock import boottime, forbid_realtime
from vlrl.types import UserError

# A recording that loses nothing: one append-only file for each episode, readable up to wherever it was cut.
#
# 8 bytes   b"vlrlspl1"
# records   length (u32) and CRC-32 (u32) of what follows, little endian, then a message of `vlrl.decoders`
#
# The kinds of records (`fields["kind"]`): header, tick, note, lost, end. A thread writes them; control never waits.

MAGIC = b"vlrlspl1"
EXACT = 128  # pixels of the longer side up to which pictures are kept exactly, as PNG; larger ones are JPEG
QUALITY = 95  # of JPEG
SYNC = 1.0  # seconds between flushes to the disk
ROOM = 256  # records that may wait; further ones are dropped and counted
LARGEST = 1 << 28  # bytes of a record; a longer one is damage


class TakeWriter:
    """Writes one episode. Used by one thread; it never raises and never waits once it is made.

    Args:
        path: of the file, which is not there yet.
        header: what finishing needs to know; what JSON can hold.

    Raises:
        OSError: the file cannot be made.
    """

    def __init__(self, path: Path, header: Mapping[str, Any], *, room: int = ROOM):
        self.path, self.problem = path, ""  # why it stopped keeping anything, or ''
        self.lost = 0  # records that were not kept
        self._file = open(path, "xb", buffering=0)  # noqa: SIM115 - the thread closes it
        self._queue: queue.Queue[tuple[dict[str, Any], dict[str, np.ndarray]] | None] = queue.Queue(room)
        self._untold = 0  # of `lost`, those that the file does not say yet
        self._end = 0  # where the last whole record ends
        self._thread = threading.Thread(target=self._run, name="take-writer", daemon=True)
        self._thread.start()
        self._put({"kind": "header", **header})

    def tick(self, ticked: TickRecord, pictures: Mapping[str, np.ndarray], **fields: Any) -> None:
        """A tick, and the pictures uint8 [height, width, 3] that are new since the last one."""
        sensed, signals = ticked.sensed, ticked.sensed.signals
        row = {
            "kind": "tick", "tick": ticked.tick, "t": sensed.t, "source": ticked.source, "age": ticked.age,
            "seq": ticked.seq, "events": [[e.stage, e.reaction, e.cause] for e in ticked.events],
            "stopped": ticked.stopped, "reward": signals.reward, "success": signals.success, **fields,
        }  # fmt: skip
        numbers = {"state": sensed.state, "measured": sensed.measured, "asked": ticked.requested, "sent": ticked.sent}
        arrays = {name: np.asarray(value, np.float32) for name, value in numbers.items() if value is not None}
        self._put(row, arrays | {f"picture:{name}": picture for name, picture in pictures.items()})

    def note(self, **fields: Any) -> None:
        """Something worth keeping between ticks."""
        self._put({"kind": "note", "t": boottime(), **fields})

    def close(self, **ending: Any) -> None:
        """Writes how the episode ended and the rest of what waits. May be called twice."""
        if self._thread.is_alive():
            self._queue.put(({"kind": "end", "t": boottime(), **ending}, {}))
            self._queue.put(None)
            self._thread.join()

    def _put(self, fields: dict[str, Any], arrays: Mapping[str, np.ndarray] | None = None) -> None:
        try:
            self._queue.put_nowait((fields, dict(arrays or {})))
        except queue.Full:
            self.lost += 1
            self._untold += 1

    def _run(self) -> None:
        synced = time.monotonic()
        self._write(MAGIC)
        while (item := self._queue.get()) is not None:
            if self._untold:
                count, self._untold = self._untold, 0
                self._record({"kind": "lost", "count": count}, {})
            self._record(*item)
            if time.monotonic() - synced > SYNC:
                self._sync()
                synced = time.monotonic()
        self._sync()
        self._file.close()

    def _record(self, fields: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        if self.problem:
            self.lost += fields["kind"] == "tick"
            return
        message = wire_pack(fields, {name: _small(name, array) for name, array in arrays.items()})
        self._write(len(message).to_bytes(4, "little") + zlib.crc32(message).to_bytes(4, "little") + message)
        self.lost += bool(self.problem) and fields["kind"] == "tick"

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        try:
            while view:
                view = view[self._file.write(view) :]
            self._end += len(data)
        except OSError as error:
            self.problem = f"{error.strerror} ({self.path})"
            self._file.truncate(self._end)  # half a record would be in the way of nothing, but is no use

    def _sync(self) -> None:
        try:
            os.fdatasync(self._file.fileno())
        except OSError as error:
            self.problem = self.problem or f"{error.strerror} ({self.path})"


def read_take(path: Path) -> Iterator[tuple[dict[str, Any], dict[str, np.ndarray]]]:
    """The records of a file, up to the last whole one; pictures as they are kept, for `picture`."""
    with open(path, "rb") as file:
        if file.read(len(MAGIC)) != MAGIC:
            return
        while len(head := file.read(8)) == 8:
            size, check = int.from_bytes(head[:4], "little"), int.from_bytes(head[4:], "little")
            message = file.read(size) if size <= LARGEST else b""
            if len(message) != size or zlib.crc32(message) != check:
                return
            yield wire_unpack(message)


def picture(kept: np.ndarray) -> np.ndarray:
    """uint8 [height, width, 3] of a picture as it is kept."""
    return np.array(load_rgb(kept.tobytes()))


def _small(name: str, array: np.ndarray) -> np.ndarray:
    if not name.startswith("picture:"):
        return array
    buffer = io.BytesIO()
    image = Image.fromarray(array)
    if max(image.size) <= EXACT:
        image.save(buffer, "PNG", compress_level=1)
    else:
        image.save(buffer, "JPEG", quality=QUALITY, subsampling=0)
    return np.frombuffer(buffer.getvalue(), np.uint8)


# What a spool says, as frames at the data set's rate.

REACTIONS = ("warn", "clip", "hold", "stop")
SOURCES = ("none", "policy", "person", "hold", "script")


@dataclass(frozen=True, eq=False)
class Take:
    """One episode as it was recorded."""

    header: Mapping[str, Any]
    ticks: Sequence[tuple[Mapping[str, Any], Mapping[str, np.ndarray]]]  # pictures as kept, only where they are new
    end: Mapping[str, Any]  # {} where the file was cut
    lost: int


def load_frames(path: Path) -> Take | None:
    """None where not even a header was written."""
    header, ticks, end, lost = None, [], {}, 0
    for fields, arrays in read_take(path):
        kind = fields["kind"]
        if kind == "header":
            header = fields
        elif kind == "tick":
            ticks.append((fields, arrays))
        elif kind == "end":
            end = fields
        elif kind == "lost":
            lost += fields["count"]
    return Take(header, ticks, end, lost) if header else None


def features(header: Mapping[str, Any], video: bool) -> dict[str, dict[str, Any]]:
    """The columns of the data set. `action` is what was sent; `asked_action` what was asked for before the governor."""
    channels, names = list(header["channels"]), list(header["names"])
    pictures = {
        f"observation.images.{name}": {
            "dtype": "video" if video else "image",
            "shape": (height, width, 3),
            "names": ["height", "width", "channels"],
        }
        for name, (height, width) in header["pictures"].items()
    }
    state = _column("float32", names)
    return {
        "observation.state": state,
        **(pictures or {"observation.environment_state": state}),
        "action": _column("float32", channels),
        "asked_action": _column("float32", channels),
        "intervention": _column("bool"),
        "source": _column("int64"),
        "next.reward": _column("float32"),
        "next.success": _column("bool"),
        "next.done": _column("bool"),
        "timing.tick_s": _column("float32"),
        "timing.age_s": _column("float32"),
        "timing.chunk": _column("int64"),
        "events": _column("int64", list(REACTIONS)),
        "scene": _column("int64"),
    }


def units(header: Mapping[str, Any]) -> list[dict[str, str]]:
    """What the numbers of an action are in."""
    pairs = zip(header["channels"], header["units"], strict=True)
    return [{"name": name, "unit": unit} for name, unit in pairs]


Ticks = Sequence[tuple[Mapping[str, Any], Mapping[str, np.ndarray]]]


@dataclass(frozen=True, eq=False)
class FrameGrid:
    """The ticks of a take from when every camera has shown something, and which of them begin a frame."""

    take: Take
    ticks: Ticks  # each with the newest pictures, as kept, and what was sent last
    starts: Sequence[int]

    def __len__(self) -> int:
        return len(self.starts)

    def frame(self, index: int, last: bool) -> dict[str, Any]:
        """The values of `features`, and `task`. Its state and action are its first tick's; rewards and events all."""
        start = self.starts[index]
        end = self.starts[index + 1] if index + 1 < len(self) else len(self.ticks)
        return _frame(self.take, self.ticks[start : end + 1], end - start, index + 1 == len(self)) | {
            "next.done": np.array([last])
        }

    def driven(self) -> list[range]:
        """The frames of each stretch that a person drove, of two or more."""
        ends = [*self.starts[1:], len(self.ticks)]
        by_hand = [
            any(fields["source"] == "person" for fields, _ in self.ticks[start:end])
            for start, end in zip(self.starts, ends, strict=True)
        ]
        marks = np.array([False, *by_hand, False])
        begins, ends = np.flatnonzero(marks[1:] & ~marks[:-1]), np.flatnonzero(marks[:-1] & ~marks[1:])
        return [range(*pair) for pair in zip(begins.tolist(), ends.tolist(), strict=True) if pair[1] - pair[0] > 1]


def grid(take: Take) -> FrameGrid:
    """A take at the data set's rate: `fps` frames a second, of `hz` ticks."""
    ticks = list(_filled(take))
    step = take.header["hz"] / take.header["fps"]
    places = [int((fields["tick"] - ticks[0][0]["tick"]) / step + 1e-6) for fields, _ in ticks]
    return FrameGrid(take, ticks, [i for i in range(len(ticks)) if i == 0 or places[i] > places[i - 1]])


def _frame(take: Take, ticks: Ticks, own: int, final: bool) -> dict[str, Any]:
    """ticks: `own` ticks of the frame and, where there is one, the next, which tells how the last of them went."""
    fields, arrays = ticks[0]
    records = [each for each, _ in ticks[1:]]
    reactions = [event[1] for each, _ in ticks[:own] for event in each["events"]]
    won = bool(take.end.get("success")) if final else any(each["success"] for each in records)
    reward = sum(each["reward"] for each in records) or float(final and won)
    pictures = {f"observation.images.{name}": picture(arrays[f"picture:{name}"]) for name in take.header["pictures"]}
    return {
        "observation.state": arrays["state"],
        **(pictures or {"observation.environment_state": arrays["state"]}),
        "action": arrays["sent"],
        "asked_action": arrays.get("asked", arrays["sent"]),
        "intervention": np.array([any(each["source"] == "person" for each, _ in ticks[:own])]),
        "source": np.array([SOURCES.index(fields["source"])], np.int64),
        "next.reward": np.array([reward], np.float32),
        "next.success": np.array([won]),
        "timing.tick_s": np.array([fields["t"] - take.ticks[0][0]["t"]], np.float32),
        "timing.age_s": np.array([fields["age"]], np.float32),
        "timing.chunk": np.array([fields["seq"]], np.int64),
        "events": np.array([reactions.count(each) for each in REACTIONS], np.int64),
        "scene": np.array([take.header["seed"]], np.int64),
        "task": take.header["task"],
    }


def _filled(take: Take) -> Iterator[tuple[Mapping[str, Any], dict[str, np.ndarray]]]:
    names = [f"picture:{name}" for name in take.header["pictures"]]
    pictures: dict[str, np.ndarray] = {}
    sent = None
    speeds = np.array([kind == "speed" for kind in take.header["kinds"]])
    for fields, arrays in take.ticks:
        pictures |= {name: arrays[name] for name in names if name in arrays}
        sent = arrays.get("sent", sent)
        if len(pictures) == len(names):
            here = _start(arrays["measured"], speeds) if sent is None else sent
            yield fields, {**arrays, **pictures, "sent": here}


def _start(measured: np.ndarray, speeds: np.ndarray) -> np.ndarray:
    """What stands for an action before anything was sent: to stay."""
    return np.where(speeds | ~np.isfinite(measured), np.float32(0), measured)


def _column(dtype: str, names: list[str] | None = None) -> dict[str, Any]:
    return {"dtype": dtype, "shape": (len(names) if names else 1,), "names": names}


# Spools -> a LeRobotDataset v3, written by lerobot itself. Runs as a process of its own: it loads torch.
#
# `python -m robot.deploy.recorder OUT [png|video|auto] [corrections] [lease=FD]` takes every spool of OUT.spool into
# the
# data set OUT; `lease`: the inherited descriptor of its lease, which whoever started it holds.
# Whenever it is killed, OUT is as it was before or whole, and no spool is gone that OUT does not hold. A take that OUT
# has, by its id, is not taken again.

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
    driven = _extend(beside, paths, pictures, FrameGrid.driven) if corrections else Counter()
    for path in paths:
        path.unlink()
    return {**dict.fromkeys(("episodes", "frames", "lost"), 0), **kept, "corrections": driven["episodes"]}


def restore(out: Path) -> None:
    """Puts back what a killed run left between two names."""
    old, new = _sibling_folders(out)
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


def _extend(
    out: Path, paths: Sequence[Path], pictures: str, stretches: Callable[[FrameGrid], list[range]]
) -> Counter[str]:
    """Appends what the data set does not have yet: to a copy, which then takes its place."""
    restore(out)
    held = load_json(out / TAKEN) if (out / TAKEN).is_file() else []
    old, new = _sibling_folders(out)
    dataset, counts = None, Counter()
    for path in paths:
        take = load_frames(path)
        if take is None or take.header["id"] in held or not (ranges := stretches(frames := grid(take))):
            continue
        if dataset is None:
            about = {"controls": units(take.header), "hz": take.header["fps"]}
            dataset, columns = _opened(out, new, take.header, pictures)
        if features(take.header, _as_video(take.header, pictures)) != columns:
            raise UserError(f"record.out: {path.parent} holds recordings of two robots: move one elsewhere")
        for stretch in ranges:
            _add(dataset, frames, stretch)
            counts.update(episodes=1, frames=len(stretch))
        held.append(take.header["id"])
        counts.update(lost=take.lost)
    if dataset is not None:
        dataset.finalize()
        (new / TAKEN).write_text(json.dumps(held), encoding="utf-8")
        (new / "meta" / "vlrl.json").write_text(json.dumps(about), encoding="utf-8")
        _swap(out, old, new)
    return counts


def _add(dataset: Any, made: FrameGrid, stretch: range) -> None:
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
    dataset_class, name = _lerobot(), f"local/{out.name}"
    new.parent.mkdir(parents=True, exist_ok=True)
    if (out / "meta").is_dir():
        shutil.copytree(out, new, copy_function=_copy)
        return dataset_class.resume(name, root=new), columns
    robot = str(header.get("robot", ""))
    return dataset_class.create(name, fps, columns, root=new, robot_type=robot, use_videos=video), columns


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


def _sibling_folders(out: Path) -> tuple[Path, Path]:
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


# Recording of a run: a spool for each episode, and the process that makes a data set of them.

LOOK_S = 0.1  # between two looks for a signal while the data set is made


class EpisodeRecording:
    """One episode's ticks on their way into its spool, each picture once.

    Args:
        take_writer: None: nothing is kept.
        seen: the cameras' newest pictures.
    """

    def __init__(self, take_writer: TakeWriter | None, seen: Callable[[], Mapping[str, CameraPicture]]):
        self._take_writer, self._seen, self._told = take_writer, seen, False
        self._kept: dict[str, int] = {}  # camera -> the last picture that was kept

    def tick(self, ticked: TickRecord) -> str:
        """Why nothing more can be kept, once; else ''."""
        if self._take_writer is None:
            return ""
        fresh = {}
        for name, picture in self._seen().items():
            if self._kept.get(name) != picture.seq:
                fresh[name], self._kept[name] = picture.picture, picture.seq
        self._take_writer.tick(ticked, fresh | dict(ticked.sensed.images))
        problem = "" if self._told else self._take_writer.problem
        self._told = bool(problem) or self._told
        return problem

    def note(self, text: str) -> None:
        if self._take_writer is not None:
            self._take_writer.note(text=text)


class EpisodeRecorder:
    """Makes spools, all with the same columns.

    Args:
        pictures: camera -> height, width.
        hz: frames a second, rounded: the format asks for a whole number.
        task: the instruction, where the config gives none.

    Raises:
        UserError: the data set that is there has other columns, or the folder cannot be written.
    """

    def __init__(
        self, config: Deploy, about: MotionInfo, pictures: Mapping[str, Sequence[int]], hz: float, policy: str
    ):
        record = config.record
        self.out = Path(record.out)
        self._folder = spools_of(self.out)
        self._header = {
            "hz": about.hz, "fps": max(1, round(min(record.hz or hz, about.hz))), "names": list(about.names),
            "channels": [each.name for each in about.channels], "units": [each.unit for each in about.channels],
            "kinds": [each.kind for each in about.channels], "policy": policy,
            "pictures": {name: [int(side) for side in size[:2]] for name, size in pictures.items()},
            "robot": str(config.robot.get("type") or config.robot.get("robot") or config.robot["name"]),
        }  # fmt: skip
        large = any(max(size) > LARGE for size in self._header["pictures"].values())
        video = record.pictures == "video" or (record.pictures == "auto" and large)
        if problem := fits(self.out, features(self._header, video and bool(pictures)), self._header["fps"]):
            raise UserError(f"record.out: {problem}: name another folder")
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"record.out: {self._folder}: {error.strerror}") from None

    def begin(self, number: int, seed: int, task: str) -> TakeWriter:
        """Raises OSError: the file cannot be made."""
        name = uuid.uuid4().hex
        order = f"{len(list(self._folder.glob('*.spool'))):05d}"
        header = {**self._header, "id": name, "episode": number, "seed": seed, "task": task or "no instruction"}
        return TakeWriter(self._folder / f"{order}_{name[:8]}.spool", header)


def waiting(out: Path) -> int:
    """Recordings that are not yet in the data set."""
    return len(list(spools_of(out).glob("*.spool")))


def finished(record: RecordSection, lease: int, ender: Ender) -> dict[str, Any]:
    """Makes a data set of what waits, in a process of its own -> its counts, or {"problem"}. Nothing is lost by one.

    Args:
        lease: descriptor of the data set's lease, which the process inherits.
        ender: a signal that comes meanwhile ends the process.
    """
    out = Path(record.out)
    if not waiting(out) and not out.with_name(f".{out.name}.old").exists():
        return {}
    command = [sys.executable, "-m", "robot.deploy.recorder", str(out), record.pictures]
    command += [f"lease={lease}", *(["corrections"] if record.corrections else [])]
    outcome, errors = _outcome(command, lease, ender)
    with contextlib.suppress(ValueError, IndexError):
        return dict(json.loads(outcome.splitlines()[-1]))
    why = (errors.strip().splitlines() or ["no reason"])[-1]
    return {"problem": f"record: the data set was not made ({why}); {spools_of(out)} keeps the recordings"}


def _outcome(command: Sequence[str], lease: int, ender: Ender) -> tuple[str, str]:
    """What a finisher printed to both its outputs. In a session of its own: a terminal's Ctrl-C is for this process."""
    path, signals = os.pathsep.join(filter(None, sys.path)), ender.signals
    process = subprocess.Popen(
        command, env=os.environ | {"PYTHONPATH": path}, text=True, pass_fds=(lease,), start_new_session=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.communicate(timeout=LOOK_S)
        if ender.signals > signals:
            os.killpg(process.pid, signal.SIGKILL)  # at any moment the data set is as it was, or whole
            process.communicate()
            return "", "ended by a signal"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
