"""Observations and snapshots as what `robot.wire` and `robot.shared` carry."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from robot.robot import Snapshot
from robot.shared import Shared
from vlrl.types import Observation, Video

Packed = tuple[dict[str, Any], dict[str, np.ndarray]]


def write_observation(shown: Observation, memory: Shared) -> Packed:
    """Fields and arrays; the images go into the memory. `content` has texts, and None where an image stands."""
    if any(isinstance(part, Video) for part in shown.content):
        raise ValueError("a robot shows images, no videos")
    sizes = memory.write(shown.images)
    content = [part if isinstance(part, str) else None for part in shown.content]
    return {"content": content, "sizes": sizes}, {} if shown.state is None else {"state": shown.state}


def read_observation(fields: Mapping[str, Any], arrays: Mapping[str, np.ndarray], memory: Shared) -> Observation:
    images = memory.read(fields["sizes"])
    return Observation(tuple(next(images) if part is None else part for part in fields["content"]), arrays.get("state"))


def write_snapshot(snapshot: Snapshot) -> Packed:
    return {"seed": snapshot.seed}, dict(snapshot.arrays)


def read_start(seed: int, arrays: Mapping[str, np.ndarray]) -> int | Snapshot:
    """A seed, or with arrays a snapshot."""
    return Snapshot(seed, arrays) if arrays else seed
