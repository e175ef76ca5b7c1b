"""What robosuite keeps for the whole process: its generators, its time step, how it finishes a robot's model."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

FLAT: set[str] = set()  # names of meshes that are made shells
_LOCK = threading.RLock()


@contextmanager
def drawing(seed: int, timestep: float) -> Iterator[None]:
    """Within, the process' generators are at the seed and the time step is this one; afterwards all is as it was."""
    from robosuite import macros
    from robosuite.models.robots.robot_model import RobotModel

    with _LOCK, _set(RobotModel, "set_mujoco_model", _finish), _set(macros, "SIMULATION_TIMESTEP", timestep):
        before = np.random.get_state(), random.getstate()
        np.random.seed(seed)
        random.seed(seed)
        try:
            yield
        finally:
            np.random.set_state(before[0])
            random.setstate(before[1])


def _finish(model: Any) -> None:
    """In place of `RobotModel.set_mujoco_model`, which compiles each robot once more, for whole-body IK alone."""
    for mesh in model.asset.findall("mesh"):
        if mesh.get("name") in FLAT:
            mesh.set("inertia", "shell")


@contextmanager
def _set(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)
