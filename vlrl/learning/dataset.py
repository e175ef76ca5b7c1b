"""LeRobotDatasets v3 as they lie on the disk: what they hold. Read without the hub and without lerobot.

Columns: `observation.state`, `observation.images.*` (PNG, or videos), `action`; where there are any `next.success`,
`next.reward`, `source` (who drove: 0 nobody, 1 the policy, 2 a person, 3 held) or `intervention`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vlrl.decoders import load_json
from vlrl.learning.pictures import Pictures
from vlrl.types import Observation, UserError

POLICY, PERSON = 1, 2  # of `Recorded.driver`
STATE, ACTION, IMAGES = "observation.state", "action", "observation.images."
OPTIONAL = ("next.success", "next.reward", "source", "intervention")


class UnreadableError(UserError):
    """No data set, or one that is not whole: damaged, or being written now."""


@dataclass(frozen=True)
class About:
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
class Recorded:
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

    def shown(self, t: int) -> Observation:
        """What a policy would see at frame t."""
        return Observation((*(camera[t] for camera in self.pictures), self.task), self.state[t])


def about(path: str | Path) -> About:
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
    return About(
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
