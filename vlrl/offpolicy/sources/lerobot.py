"""LeRobotDatasets v3: our own recordings and others'."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np

from vlrl.decoders import load_json
from vlrl.methods import method
from vlrl.offpolicy.recorded import Keep, OnBad, Recording, closed, gather, until
from vlrl.offpolicy.transitions import Transitions
from vlrl.types import UserError

SENT = "sent_action"  # what was carried out, where `action` is what is to be imitated
SUCCESS, REWARD = "next.success", "next.reward"
PERSON = 2  # in the column `source`
Columns = dict[str, np.ndarray]


@method(source="LeRobotDataset v3 (lerobot 0.6)")
def lerobot(
    task: Any, seed: int, *, path: str, success: Literal["said", "all"] | float = "said",
    state: str = "observation.state", action: str | None = None, lost: str | None = None, on_bad: OnBad = "stop",
    keep: Keep = "all",
) -> Transitions:  # fmt: skip
    """Episodes of a folder, chunks cut from their frames. An episode ends with its first success.

    One without is a time-out, whatever next.done says, unless `lost` tells otherwise. Pictures are not read.

    Args:
        path: the data set's folder.
        success: `said` by the column next.success; a number: the next.reward from which the job counts as done; `all`:
            each episode ends with the job done, as demonstrations of people do.
        state: the column that is the state, as the task shows it.
        action: the column of what was carried out, in physical units; default: sent_action, where there is one.
        lost: a column that is true at a frame with which the job was lost.
        on_bad: a bad episode: stop, or set it aside and go on.
        keep: `success` leaves out what was not won.

    Raises:
        UserError: no such data set, of another rate, or nothing in it that can be used.
    """
    from vlrl.learning.dataset import about

    folder = Path(path)
    data, features = about(folder), _features(folder)
    hz = float(getattr(task.pool.about, "hz", 0.0) or 0.0)
    if hz and data.fps != hz:
        raise UserError(f"{path}: {data.fps:g} frames a second, but the robot takes {hz:g} controls a second")
    action = action or (SENT if SENT in features else "action")
    judged = {"said": SUCCESS, "all": None}.get(success, REWARD)
    for name in (state, action, judged, lost):
        if name and name not in features:
            raise UserError(f"{path}: has no column {name}; set success, state, action or lost to what it has")
    optional = [name for name in (REWARD, "source", "intervention") if name in features]
    names = [*dict.fromkeys(filter(None, [state, action, judged, lost, *optional]))]
    episodes = (
        (number, lambda frames=frames: _recording(frames, state, action, success, lost))
        for number, frames in _episodes(folder, names, data.episodes)
    )
    return gather(task, folder, episodes, on_bad, keep)


def _recording(frames: Columns, state: str, action: str, success: str | float, lost: str | None) -> Recording:
    states, controls, count = frames[state], frames[action], len(frames[state])
    if (frames["frame_index"][:, 0] != np.arange(count)).any():
        raise ValueError("frames are missing or out of order")
    won = count if success == "all" else until(_judged(frames, success))
    failed = until(frames[lost][:, 0] > 0) if lost else None
    end = min((each for each in (won, failed) if each is not None), default=None)
    states, controls = closed(states[:end], controls[:end], end is not None)
    paid = frames[REWARD][: len(controls), 0] if REWARD in frames else None
    return Recording(
        states, controls, won=won is not None and won == end, ended=end is not None, paid=paid,
        person=_person(frames, len(controls)),
    )  # fmt: skip


def _judged(frames: Columns, success: str | float) -> np.ndarray:
    """bool [T]: whether the job was done with this frame."""
    return frames[SUCCESS][:, 0] > 0 if success == "said" else frames[REWARD][:, 0] >= success


def _person(frames: Columns, count: int) -> np.ndarray | None:
    if "source" in frames:
        return frames["source"][:count, 0] == PERSON
    return frames["intervention"][:count, 0] > 0 if "intervention" in frames else None


def _features(folder: Path) -> dict[str, Any]:
    return load_json(folder / "meta" / "info.json")["features"]


def _episodes(folder: Path, names: list[str], count: int) -> Iterator[tuple[int, Columns]]:
    """Number and columns float32 [T, D] of each episode. UserError where a file is damaged or episodes are missing."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    names, found = [*names, "episode_index", "frame_index"], 0
    for file in sorted((folder / "data").glob("*/*.parquet")):
        try:
            table = pq.read_table(file, columns=names, partitioning=None)
            columns = {name: _matrix(table[name]) for name in names}
        except (OSError, KeyError, ValueError, pa.ArrowException) as error:
            raise UserError(f"{file}: damaged, or being written now: {str(error).splitlines()[0]}") from None
        numbers = columns["episode_index"][:, 0]
        for rows in np.split(np.arange(len(numbers)), np.flatnonzero(np.diff(numbers)) + 1):
            found += 1
            yield int(numbers[rows[0]]), {name: column[rows] for name, column in columns.items()}
    if found != count:
        raise UserError(f"{folder}: {found} episodes in its files instead of {count}: damaged, or being written now")


def _matrix(column: Any) -> np.ndarray:
    import pyarrow as pa

    whole, rows = column.combine_chunks(), len(column)
    while pa.types.is_nested(whole.type):
        whole = whole.flatten()
    values = whole.to_numpy(zero_copy_only=False)
    return values.astype(np.float32 if values.dtype.kind == "f" else np.float64).reshape(rows, -1)
