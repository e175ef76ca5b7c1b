"""What the numbers of a control mean, and which of them a robot may carry out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


class BadControlError(ValueError):
    """A control that no robot may carry out: of another shape, not of numbers, or not finite."""


@dataclass(frozen=True, eq=False)
class Controls:
    """What one control says, dimension by dimension, and its limits, which are sent as they are."""

    names: tuple[str, ...]  # [A]
    units: tuple[str, ...]  # [A], for example m/s, rad, N
    low: np.ndarray  # float32 [A]
    high: np.ndarray  # float32 [A]

    def __post_init__(self):
        for name in ("low", "high"):
            object.__setattr__(self, name, np.array(getattr(self, name), np.float32))
        shapes = {(len(self.names),), (len(self.units),), self.low.shape, self.high.shape}
        if len(shapes) != 1 or not (np.isfinite([self.low, self.high]).all() and (self.low < self.high).all()):
            raise ValueError(f"controls {self.names}: each needs a unit and finite limits, low < high")

    def __len__(self) -> int:
        return len(self.names)

    def checked(self, control: np.ndarray) -> np.ndarray:
        """The control as float32 [A], within the limits.

        Raises:
            BadControlError: of another shape, not of numbers, not finite.
        """
        return self.chunk(np.asarray(control)[None])[0].clip(self.low, self.high)

    def chunk(self, action: object) -> np.ndarray:
        """An action as controls float32 [K, A], K at least 1, not yet within the limits; [A] is one control.

        Raises:
            BadControlError: of another shape, not of numbers, not finite.
        """
        if not isinstance(action, np.ndarray) or action.dtype.kind not in "fiu":
            raise BadControlError("not an array of numbers")
        controls = action[None] if action.ndim == 1 else action
        if controls.ndim != 2 or controls.shape[1] != len(self) or not len(controls):
            raise BadControlError("wrong shape")
        with np.errstate(over="ignore"):  # beyond float32 is infinite
            controls = controls.astype(np.float32)
        if not np.isfinite(controls).all():
            raise BadControlError("not finite")
        return controls
