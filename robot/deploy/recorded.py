"""An episode of a LeRobotDataset v3, its numbers alone, read without lerobot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vlrl.decoders import load_json
from vlrl.types import UserError

STATE, ACTION, SCENE = "observation.state", "action", "scene"


@dataclass(frozen=True, eq=False)
class Recorded:
    hz: float
    state_names: tuple[str, ...]
    action_names: tuple[str, ...]
    states: np.ndarray  # float32 [T, S]
    actions: np.ndarray  # float32 [T, A], as they were sent
    scene: int  # the seed; 0 where the recording does not say


def load(folder: Path, episode: int) -> Recorded:
    """Raises UserError: no such data set or episode, or one without state and action."""
    import pyarrow
    from pyarrow import parquet

    try:
        info = load_json(folder / "meta" / "info.json")
        columns = [name for name in (STATE, ACTION, SCENE) if name in info["features"]]
        found = parquet.read_table(
            folder / "data", columns=[*columns, "frame_index"], filters=[("episode_index", "=", episode)]
        ).sort_by("frame_index")
    except (OSError, ValueError, KeyError, pyarrow.ArrowException) as error:
        raise UserError(f"{folder}: cannot be read as a LeRobotDataset v3: {str(error).splitlines()[0]}") from None
    if not {STATE, ACTION} <= set(columns):
        raise UserError(f"{folder}: has no {STATE} and {ACTION}: not a recording of a robot")
    if not len(found):
        raise UserError(f"--episode {episode}: {folder} has {info.get('total_episodes', 0)} episodes, from 0")
    states, actions = (np.array(found[name].to_pylist(), np.float32) for name in (STATE, ACTION))
    scene = int(found[SCENE][0].as_py()) if SCENE in columns else 0
    names = info["features"]
    return Recorded(float(info["fps"]), _names(names[STATE]), _names(names[ACTION]), states, actions, scene)


def _names(feature: Mapping[str, Any]) -> tuple[str, ...]:
    names = feature.get("names") or ()
    names = next(iter(names.values()), ()) if isinstance(names, Mapping) else names
    return tuple(names) or tuple(str(number) for number in range(int(feature["shape"][0])))
