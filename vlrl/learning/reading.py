"""The episodes of a LeRobotDataset v3, read with pyarrow: only those that are whole."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from vlrl.learning.dataset import ACTION, IMAGES, PERSON, POLICY, STATE, About, Recorded, UnreadableError
from vlrl.learning.pictures import Pictures, kept, video


def episodes(data: About, but: Collection[int] = ()) -> Iterator[Recorded]:
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


def _of_file(data: About, file: Path, rows: list[dict[str, Any]], tasks: Mapping[int, str]) -> Iterator[Recorded]:
    pictures = [] if data.videos else [IMAGES + name for name, _, _ in data.cameras]
    columns = [STATE, ACTION, *data.columns, *pictures, "episode_index", "task_index"]
    table = pq.read_table(file, columns=columns, partitioning=None)
    numbers = table["episode_index"].to_numpy()
    for row in rows:
        places = np.flatnonzero(numbers == row["episode_index"])
        if len(places) != row["length"] or not len(places) or np.ptp(places) >= len(places):
            raise ValueError(f"episode {row['episode_index']} has {len(places)} of {row['length']} frames")
        yield _recorded(data, row, table.slice(places[0], len(places)), tasks)


def _recorded(data: About, row: dict[str, Any], table: pa.Table, tasks: Mapping[int, str]) -> Recorded:
    length = len(table)
    optional = {name: table[name].to_numpy().reshape(length) for name in data.columns}
    driver = optional.get("source")
    if driver is None:
        driver = np.where(optional.get("intervention", np.zeros(length, bool)), PERSON, POLICY)
    return Recorded(
        row["episode_index"],
        tasks.get(table["task_index"][0].as_py(), ""),
        _matrix(table, STATE),
        _matrix(table, ACTION),
        optional.get("next.success", np.zeros(length)).astype(bool),
        optional.get("next.reward", np.zeros(length)).astype(np.float32),
        driver.astype(np.int64),
        tuple(_pictures(data, row, table, name) for name, _, _ in data.cameras),
    )


def _pictures(data: About, row: dict[str, Any], table: pa.Table, name: str) -> Pictures:
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
