"""What a policy behind a server sees and gives. Loads no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np


@dataclass(frozen=True)
class Feature:
    """One number of a state or an action. What a policy does not know of itself is '' and fits anything."""

    name: str = ""
    unit: str = ""


@dataclass(frozen=True)
class Picture:
    """A camera's picture. A size of 0 fits any."""

    name: str
    height: int = 0
    width: int = 0


@dataclass(frozen=True)
class Spec:
    """Exchanged at connect. Orders matter; nothing is ever put in another order silently."""

    state: tuple[Feature, ...]  # [S]
    pictures: tuple[Picture, ...]
    action: tuple[Feature, ...]  # [A]
    hz: float  # actions a second
    chunk: int  # actions of one answer, at most
    rtc: bool = False  # takes a prefix and a delay (real-time chunking, arXiv 2506.07339)


@dataclass(frozen=True, eq=False)
class Asked:
    """One observation to be answered by a chunk."""

    session: str  # whose; '' with one client
    episode: int
    task: str  # the instruction
    state: np.ndarray  # float32 [S]
    images: Mapping[str, np.ndarray] = field(default_factory=dict)  # uint8 [height, width, 3], RGB
    prefix: np.ndarray | None = None  # float32 [P, A]: actions of the last chunk that are still to be executed
    delay: int = 0  # of them, those that will be executed before the answer arrives


class Servable(Protocol):
    """A policy as the server sees it. Called by one thread only."""

    name: str
    version: str  # of the weights: a hash
    spec: Spec

    def infer(self, asked: Sequence[Asked]) -> list[np.ndarray]:
        """One chunk float32 [K, A] for each observation, in physical units. May raise UserError."""

    def forget(self, session: str) -> None:
        """A client's episode has ended, or the client is gone."""
