"""What robosuite remembers from tick to tick beside MuJoCo's state, as arrays by name: goals of controllers, what a
gripper was told, clocks, recent values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

PLAIN = (bool, int, float, np.bool_, np.number, np.ndarray)
FOLLOWED = tuple(f"robosuite.{name}" for name in ("robots", "controllers", "utils.buffers", "utils.traj_utils"))
GRIPPERS = "robosuite.models.grippers"  # remember what they were told, and hold a model besides


def remember(env: Any) -> dict[str, np.ndarray]:
    """Everything that `recall` needs."""
    plain = {
        f"{path}.{name}": np.array(value)
        for path, part in _parts(env)
        for name, value in vars(part).items()
        if isinstance(value, PLAIN)
    }
    if hasattr(env, "wiped_markers"):  # Wipe alone keeps objects, and what it wiped is no longer to be seen
        plain["wiped"] = np.array([marker in env.wiped_markers for marker in env.model.mujoco_arena.markers])
        plain["colors"] = np.array(env.sim.model.geom_rgba)
    return plain


def recall(env: Any, arrays: Mapping[str, np.ndarray]) -> None:
    """Puts back what `remember` gave, for an environment with the same options and scene."""
    for path, part in _parts(env):
        for name, value in vars(part).items():
            if value is None or isinstance(value, PLAIN):
                then = arrays.get(f"{path}.{name}")
                setattr(part, name, None if then is None else then.copy() if then.ndim else then.item())
    if "wiped" in arrays:
        markers = zip(env.model.mujoco_arena.markers, arrays["wiped"], strict=True)
        env.wiped_markers = [marker for marker, wiped in markers if wiped]
        env.sim.model.geom_rgba[:] = arrays["colors"]


def _parts(env: Any) -> list[tuple[str, Any]]:
    """The objects that remember, each once, by the path to it."""
    found: list[tuple[str, Any]] = [("env", env)]
    known = set()
    waiting = [(f"robot{index}", each) for index, each in enumerate(env.robots)]
    while waiting:
        path, part = waiting.pop()
        if id(part) not in known:
            known.add(id(part))
            found.append((path, part))
            waiting += _below(path, part)
    return found


def _below(path: str, part: Any) -> Iterator[tuple[str, Any]]:
    if type(part).__module__.startswith(GRIPPERS):
        return
    for name, value in vars(part).items():
        for key, each in value.items() if isinstance(value, dict) else [("", value)]:
            if type(each).__module__.startswith((*FOLLOWED, GRIPPERS)) and hasattr(each, "__dict__"):
                yield f"{path}.{name}{key and f'.{key}'}", each
