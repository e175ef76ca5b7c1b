"""Who makes the scene of an episode and says whether the job is done."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np

from robot.motion.body import Ticked
from robot.robot import Signals


class Scene(Protocol):
    """`ready`: a person must say that an episode may begin. `knows`: it says itself whether the job is done."""

    ready: bool
    knows: bool

    def begin(self, seed: int) -> None:
        """Makes the scene of this seed, where it is not the motion process that does."""

    def verdict(self, ticked: Ticked, images: Mapping[str, np.ndarray]) -> Signals:
        """How the job stands at this tick. images: uint8 [height, width, 3], the newest of each camera.

        Raises:
            RobotError: nobody can say so any more.
        """

    def order(self, text: str) -> None:
        """What the operator pressed: success or failure."""

    def close(self) -> None: ...


class Operator:
    """A person arranges the scene and says how it went."""

    ready, knows = True, False

    def __init__(self):
        self._said = ""

    def begin(self, seed: int) -> None:
        self._said = ""

    def verdict(self, ticked: Ticked, images: Mapping[str, np.ndarray]) -> Signals:
        if self._said == "failure":
            return Signals(failure="the operator says so")
        return Signals(success=self._said == "success", reward=float(self._said == "success"))

    def order(self, text: str) -> None:
        self._said = text

    def close(self) -> None:
        pass


class BodyScene(Operator):
    """A simulated body knows how its job stands; a person may still decide."""

    ready, knows = False, True

    def verdict(self, ticked: Ticked, images: Mapping[str, np.ndarray]) -> Signals:
        own = ticked.sensed.signals
        return own if own.success or own.failure or own.cut else super().verdict(ticked, images)
