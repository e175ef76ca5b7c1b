"""Recorded robot episodes as data sets for supervised learning."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from vlrl.decoders import load_json
from vlrl.media import load_rgb, open_regular_file, open_video
from vlrl.types import Observation, UserError

# One camera's pictures of an episode, kept as they were written and opened one by one.

LATE = 0.5  # of a frame's time by which a video's frame may differ from the row's


class Pictures(Sequence):
    """RGB pictures, from PNG or JPEG bytes or from uint8 [height, width, 3]."""

    def __init__(self, frames: Sequence[bytes | np.ndarray]):
        self._frames = frames

    def __len__(self) -> int:
        return len(self._frames)

    def __getitem__(self, t: int) -> Image.Image:
        frame = self._frames[t]
        if isinstance(frame, np.ndarray):
            return Image.fromarray(frame)
        return load_rgb(frame, name=f"the image of frame {t}")


def kept(column: pa.ChunkedArray, root: Path) -> Pictures:
    """Pictures of a data file: inside it, or beside the data set where it names their files."""

    def frame(cell: dict) -> bytes:
        if cell["bytes"] is not None:
            return cell["bytes"]
        file = (root / cell["path"]).resolve()
        if not file.is_relative_to(root.resolve()):
            raise ValueError(f"a picture outside the data set: {cell['path']}")
        with open_regular_file(file) as opened:
            return opened.read()

    return Pictures([frame(cell) for cell in column.to_pylist()])


def video(file: Path, start: float, count: int, fps: float) -> Pictures:
    """`count` frames of a video from `start` seconds on.

    Raises:
        ValueError: the video is damaged or ends before.
    """
    import av

    frames: list[np.ndarray] = []
    try:
        with open_video(file) as opened:
            stream = opened.streams.video[0]
            opened.seek(int(start / stream.time_base), stream=stream)  # to the key frame before it
            for frame in opened.decode(stream):
                if frame.time is not None and frame.time > start - LATE / fps:
                    frames.append(frame.to_ndarray(format="rgb24"))
                if len(frames) == count:
                    return Pictures(frames)
    except (av.FFmpegError, IndexError) as error:
        raise ValueError(f"{file.name}: {error}") from None
    raise ValueError(f"{file.name} has {len(frames)} of {count} frames")


# LeRobotDatasets v3 as they lie on the disk: what they hold. Read without the hub and without lerobot.
#
# Columns: `observation.state`, `observation.images.*` (PNG, or videos), `action`; where there are any `next.success`,
# `next.reward`, `source` (who drove: 0 nobody, 1 the policy, 2 a person, 3 held) or `intervention`.

POLICY, PERSON = 1, 2  # of `Recorded.driver`
STATE, ACTION, IMAGES = "observation.state", "action", "observation.images."
OPTIONAL = ("next.success", "next.reward", "source", "intervention")


class UnreadableError(UserError):
    """No data set, or one that is not whole: damaged, or being written now."""


@dataclass(frozen=True)
class DatasetInfo:
    """What a data set holds, by its meta/info.json."""

    path: Path
    fps: float
    state: tuple[str, ...]  # names, '' where it says none
    action: tuple[str, ...]
    cameras: tuple[tuple[str, int, int], ...]  # name, width, height, in the data set's order
    columns: tuple[str, ...]  # those of OPTIONAL that it has
    videos: bool
    episodes: int


@dataclass(frozen=True, eq=False)
class DatasetEpisode:
    """One episode of T frames. Rewards and success are of the tick that followed the frame."""

    number: int
    task: str
    state: np.ndarray  # float32 [T, S]
    action: np.ndarray  # float32 [T, A]
    success: np.ndarray  # bool [T]
    reward: np.ndarray  # float32 [T]
    driver: np.ndarray  # int64 [T]
    pictures: tuple[Pictures, ...]  # one for each camera

    def __len__(self) -> int:
        return len(self.state)

    @property
    def won(self) -> bool:
        return bool(self.success.any())

    def observation_at(self, t: int) -> Observation:
        """What a policy would see at frame t."""
        return Observation((*(camera[t] for camera in self.pictures), self.task), self.state[t])


def read_info(path: str | Path) -> DatasetInfo:
    """
    Raises:
        UnreadableError: there is no data set, it is of another version, or has no state and action.
    """
    path = Path(path)
    try:
        info = load_json(path / "meta" / "info.json")
        features, version = info["features"], str(info["codebase_version"])
        fps, count = float(info["fps"]), int(info["total_episodes"])
    except (OSError, ValueError, KeyError, TypeError):
        raise UnreadableError(f"{path}: no LeRobotDataset: it has no readable meta/info.json") from None
    if not version.startswith("v3."):
        raise UnreadableError(f"{path}: a LeRobotDataset {version}; v3 is read: convert it with lerobot's own script")
    for name in (STATE, ACTION):
        if name not in features:
            raise UnreadableError(f"{path}: has no column {name}")
    pictures = {name: feature for name, feature in features.items() if name.startswith(IMAGES)}
    return DatasetInfo(
        path, fps, _names(features[STATE]), _names(features[ACTION]),
        tuple((name.removeprefix(IMAGES), *_size(feature)) for name, feature in pictures.items()),
        tuple(name for name in OPTIONAL if name in features),
        any(feature["dtype"] == "video" for feature in pictures.values()), count,
    )  # fmt: skip


def _names(feature: Mapping[str, Any]) -> tuple[str, ...]:
    names, (size, *_) = feature.get("names"), feature["shape"]
    names = names.get("motors", list(names)) if isinstance(names, dict) else names
    return tuple(map(str, names)) if names and len(names) == size else ("",) * size


def _size(feature: Mapping[str, Any]) -> tuple[int, int]:
    """Width and height; some data sets have the channels first."""
    a, b, c = feature["shape"]
    return (c, b) if a in (1, 3) and c > 4 else (b, a)


# The episodes of a LeRobotDataset v3, read with pyarrow: only those that are whole.


def episodes(data: DatasetInfo, but: Collection[int] = ()) -> Iterator[DatasetEpisode]:
    """The whole episodes in order, without those whose numbers are in `but`.

    Raises:
        UnreadableError: a file is damaged or half written.
    """
    try:
        tasks = _tasks(data.path)
        rows = [row for row in _rows(data.path) if row["episode_index"] not in but]
        files: dict[Path, list[dict[str, Any]]] = {}
        for row in rows:
            place = f"chunk-{row['data/chunk_index']:03d}/file-{row['data/file_index']:03d}.parquet"
            files.setdefault(data.path / "data" / place, []).append(row)
        for file, held in files.items():
            yield from _of_file(data, file, held, tasks)
    except (OSError, KeyError, ValueError, IndexError, pa.ArrowException) as error:
        said = (str(error).splitlines() or [type(error).__name__])[0]
        raise UnreadableError(f"{data.path}: damaged, or being written now: {said}") from None


def _of_file(
    data: DatasetInfo, file: Path, rows: list[dict[str, Any]], tasks: Mapping[int, str]
) -> Iterator[DatasetEpisode]:
    pictures = [] if data.videos else [IMAGES + name for name, _, _ in data.cameras]
    columns = [STATE, ACTION, *data.columns, *pictures, "episode_index", "task_index"]
    table = pq.read_table(file, columns=columns, partitioning=None)
    numbers = table["episode_index"].to_numpy()
    for row in rows:
        places = np.flatnonzero(numbers == row["episode_index"])
        if len(places) != row["length"] or not len(places) or np.ptp(places) >= len(places):
            raise ValueError(f"episode {row['episode_index']} has {len(places)} of {row['length']} frames")
        yield _recorded(data, row, table.slice(places[0], len(places)), tasks)


def _recorded(data: DatasetInfo, row: dict[str, Any], table: pa.Table, tasks: Mapping[int, str]) -> DatasetEpisode:
    length = len(table)
    optional = {name: table[name].to_numpy().reshape(length) for name in data.columns}
    driver = optional.get("source")
    if driver is None:
        driver = np.where(optional.get("intervention", np.zeros(length, bool)), PERSON, POLICY)
    return DatasetEpisode(
        row["episode_index"],
        tasks.get(table["task_index"][0].as_py(), ""),
        _matrix(table, STATE),
        _matrix(table, ACTION),
        optional.get("next.success", np.zeros(length)).astype(bool),
        optional.get("next.reward", np.zeros(length)).astype(np.float32),
        driver.astype(np.int64),
        tuple(_pictures(data, row, table, name) for name, _, _ in data.cameras),
    )


def _pictures(data: DatasetInfo, row: dict[str, Any], table: pa.Table, name: str) -> Pictures:
    if not data.videos:
        return kept(table[IMAGES + name], data.path)
    about = f"videos/{IMAGES}{name}"
    place = f"chunk-{row[f'{about}/chunk_index']:03d}/file-{row[f'{about}/file_index']:03d}.mp4"
    file = data.path / "videos" / (IMAGES + name) / place
    return video(file, float(row[f"{about}/from_timestamp"]), len(table), data.fps)


def _matrix(table: pa.Table, name: str) -> np.ndarray:
    flat = table[name].combine_chunks().flatten().to_numpy(zero_copy_only=False)
    values = flat.astype(np.float32).reshape(len(table), -1)
    if not np.isfinite(values).all():
        raise ValueError(f"{name} is not finite")
    return values


def _rows(path: Path) -> list[dict[str, Any]]:
    """What meta/episodes says of each episode, without its statistics."""
    rows: list[dict[str, Any]] = []
    for file in sorted((path / "meta" / "episodes").glob("*/*.parquet")):
        names = [name for name in pq.read_schema(file).names if not name.startswith("stats/")]
        rows += pq.read_table(file, columns=names, partitioning=None).to_pylist()
    return sorted(rows, key=lambda row: row["episode_index"])


def _tasks(path: Path) -> dict[int, str]:
    table = pq.read_table(path / "meta" / "tasks.parquet", partitioning=None).to_pydict()
    texts = table.get("task") or table["__index_level_0__"]  # the text is pandas' index
    return dict(zip(table["task_index"], texts, strict=True))
