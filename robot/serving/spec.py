"""What a policy behind a server sees and gives. Loads no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np


@dataclass(frozen=True)
class Feature:
    """One number of a state or an action. What a policy does not know of itself is '' and fits anything.

    low, high: what a policy gives; null where it declares no range.
    """

    name: str = ""
    unit: str = ""
    low: float | None = None
    high: float | None = None


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
    hz: float  # actions a second; 0: the policy does not know, so the robot's own
    chunk: int  # actions of one answer, at most
    rtc: bool = False  # takes a prefix and a delay (real-time chunking, arXiv 2506.07339)


@dataclass(frozen=True)
class Wants:
    """What a client sends and which actions it takes, said at connect."""

    state: tuple[Feature, ...] = ()
    pictures: tuple[Picture, ...] = ()
    action: tuple[Feature, ...] = ()


@dataclass(frozen=True, eq=False)
class Asked:
    """One observation to be answered by a chunk."""

    session: str  # whose; '' with one client
    episode: int
    task: str  # the instruction
    state: np.ndarray  # float32 [S]
    # uint8 [height, width, 3], RGB; a policy gets them in its spec's order
    images: Mapping[str, np.ndarray] = field(default_factory=dict)
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


def declared(spec: Spec) -> np.ndarray:
    """The range of a policy's actions as it declares it, float32 [2, A]: low, high; NaN where it declares none."""
    ends = [[each.low for each in spec.action], [each.high for each in spec.action]]
    return np.array(ends, np.float32).reshape(2, -1)  # None becomes NaN


def difference(wants: Wants, spec: Spec) -> str:
    """The first thing in which a client and a policy do not fit, in one line; '' where they fit."""
    for what, ours, theirs in (("state", wants.state, spec.state), ("action", wants.action, spec.action)):
        if len(ours) != len(theirs):
            return (
                f"{what}: the robot has {len(ours)} numbers{_listed(ours)}, the policy {len(theirs)}{_listed(theirs)}"
            )
        for place, (mine, its) in enumerate(zip(ours, theirs, strict=True)):
            for part in ("name", "unit"):
                a, b = getattr(mine, part), getattr(its, part)
                if a and b and a != b:
                    return f"{what}, number {place}: the {part} is {a!r} on the robot, {b!r} in the policy"
    return _pictures_differ(wants.pictures, spec.pictures)


def _pictures_differ(ours: Sequence[Picture], theirs: Sequence[Picture]) -> str:
    if len(ours) != len(theirs):
        return f"pictures: the robot sends {len(ours)}{_listed(ours)}, the policy sees {len(theirs)}{_listed(theirs)}"
    for place, (mine, its) in enumerate(zip(ours, theirs, strict=True)):
        if its.name and mine.name != its.name:
            return f"picture {place}: it is {mine.name!r} on the robot, {its.name!r} in the policy"
        if any(a and b and a != b for a, b in ((mine.height, its.height), (mine.width, its.width))):
            sizes = f"{mine.width}x{mine.height} on the robot, {its.width}x{its.height} in the policy"
            return f"picture {mine.name or place}: it is {sizes}"
    return ""


def _listed(parts: Sequence[Feature] | Sequence[Picture]) -> str:
    names = [part.name for part in parts if part.name]
    return f" ({', '.join(names)})" if names else ""
