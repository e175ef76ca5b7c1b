"""The cameras as the loop sees them: the newest picture of each, how old it is, and whether it still changes."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from robot.deploy.child import Child
from vlrl.types import UserError


@dataclass(frozen=True, eq=False)
class Seen:
    """A camera's newest picture."""

    picture: np.ndarray  # uint8 [height, width, 3], RGB
    seq: int
    t: float  # boottime() when it arrived
    changed: float  # boottime() since when it has been the same, pixel by pixel


class Eyes:
    """The camera process (`robot.deploy.eyes`). A camera or the process that dies is opened again for ever.

    Args:
        cameras: name -> lerobot's config of it.

    Raises:
        UserError: a config is not one of lerobot's.
    """

    def __init__(self, cameras: Mapping[str, Mapping[str, Any]]):
        self._cameras = {name: dict(options) for name, options in cameras.items()}
        self._seen: dict[str, Seen] = {}
        self._trouble: dict[str, str] = {}
        self._news = threading.Condition()
        self._base = 0  # added to the process' numbers, so that they grow also when it is started again
        self._child = Child("robot.deploy.eyes", {"cameras": self._cameras}, self._hear, self._died)

    @property
    def pid(self) -> int:
        return self._child.pid

    def latest(self) -> Mapping[str, Seen]:
        """Of those cameras that have shown something, the newest picture, in the order in which they are named."""
        with self._news:
            return {name: self._seen[name] for name in self._cameras if name in self._seen}

    def trouble(self) -> Mapping[str, str]:
        """What is wrong with which camera; {} while all is well."""
        with self._news:
            return {name: text for name, text in self._trouble.items() if text}

    def wait(self, seconds: float) -> None:
        """Until every camera has shown something.

        Raises:
            UserError: one has not.
        """
        with self._news:
            if self._news.wait_for(lambda: len(self._seen) == len(self._cameras), seconds):
                return
            name = next(name for name in self._cameras if name not in self._seen)
            raise UserError(f"cameras.{name}: no picture in {seconds:g} s: {self._trouble.get(name) or 'it is silent'}")

    def close(self) -> None:
        """May be called twice."""
        self._child.close()

    def _hear(self, fields: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
        with self._news:
            if "trouble" in fields:
                self._trouble[fields["camera"]] = fields["trouble"]
            else:
                seen = Seen(arrays["picture"], self._base + fields["seq"], fields["t"], fields["changed"])
                self._seen[fields["camera"]] = seen
            self._news.notify_all()

    def _died(self) -> None:
        with self._news:
            self._trouble = dict.fromkeys(self._cameras, "the camera process died")
            self._base = max([self._base, *(seen.seq for seen in self._seen.values())])
