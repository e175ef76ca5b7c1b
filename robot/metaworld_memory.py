"""What a Meta-World environment remembers beside MuJoCo's state: marks of its reward, the last observation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np


def remember(env: Any) -> dict[str, np.ndarray]:
    """Everything that `recall` needs."""
    return {f"env.{name}": np.array(value) for name, value in vars(env).items() if _kept(value) and value is not None}


def recall(env: Any, arrays: Mapping[str, np.ndarray]) -> None:
    """Puts back what `remember` gave, for an environment of the same task and scene."""
    for name, value in list(vars(env).items()):
        if _kept(value):
            then = arrays.get(f"env.{name}")
            setattr(env, name, None if then is None else then.copy() if then.ndim else then.item())


def _kept(value: Any) -> bool:
    """Not arrays that show a part of others: these are MuJoCo's own, or stay as they are within a scene."""
    plain = value is None or isinstance(value, bool | int | float | np.bool_ | np.number)
    return plain or (isinstance(value, np.ndarray) and value.base is None)
