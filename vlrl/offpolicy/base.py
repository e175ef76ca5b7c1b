"""What all of off-policy learning shares: an agent, as the loop sees it, and the transitions that it learns from.

An agent is a plug-in of the kind `agent`: a class in vlrl/offpolicy/*.py marked `@method(source=...)` under a
name in lower case, or the user's own `my_module:MyAgent`. Its keyword-only parameters are its options. Modules of
plug-ins import torch late, in functions, since a mistake in a configuration is answered at once; `AgentSpec` at their
top, since an option's type is read together with it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from vlrl.methods import Agent
from vlrl.types import Observation, UserError


@dataclass(frozen=True, eq=False)
class AgentSpec:
    """The robot, the data and the job, as far as an agent needs them."""

    state: int  # S numbers of the state
    chunk: int  # K ticks of an action
    controls: tuple[str, ...]  # names of the A numbers of a control
    low: np.ndarray  # float32 [A], physical units
    high: np.ndarray  # float32 [A]
    mean: np.ndarray  # float32 [S], of the first states seen: the demonstrations', or a random policy's
    spread: np.ndarray  # float32 [S], their standard deviation, never 0
    gamma: float = 0.99  # discount of one tick: see `Transitions.discount`
    start: str | None = None  # folder of a policy to start from, or to build on; None: from nothing
    names: tuple[str, ...] = ()  # of the S numbers of the state; (): not known
    units: tuple[str, ...] = ()  # of the A numbers of a control
    hz: float = 0.0  # controls a second; 0: not known
    encoder: EncoderSettings | None = None  # images that the agent sees; None: the state alone
    base: Any = None  # `vlrl.policies.encoded.FrozenPolicy` of `start`, whose plan the state ends with; None: none


class AgentView:
    """What a run's agent sees of observations; sources that play or read images use it too (`RobotTask.view`).

    Args:
        cameras: width and height of each image that the agent learns to see (`AgentSpec.encoder`); (): none.
        encoder: frozen (`vlrl.policies.encoded`); its numbers stand behind the state's.
    """

    def __init__(self, cameras: Sequence[tuple[int, int]] = (), encoder: Any = None):
        self.cameras, self.encoder = tuple(cameras), encoder

    @property
    def needs_images(self) -> bool:
        return bool(self.cameras) or self.encoder is not None

    def __call__(self, observations: Sequence[Observation]) -> tuple[np.ndarray, np.ndarray]:
        """States float32 [B, S] and images uint8 [B, P].

        Raises:
            UserError: an observation has no state, or other images than the first that the robot showed.
        """
        state = np.stack([state_of(each) for each in observations])
        if self.encoder is not None:
            state = np.concatenate([state, self.encoder(observations)], 1)
        if not self.cameras:
            return state, np.zeros((len(state), 0), np.uint8)
        from vlrl.policies.robot_common import pixels

        return state, pixels(observations, self.cameras, "encoder")


def state_of(shown: Observation) -> np.ndarray:
    """float32 [S]. UserError where there is none."""
    if shown.state is None:
        raise UserError("task: off-policy agents learn from states, and this robot shows none")
    return np.asarray(shown.state, np.float32)


@dataclass(frozen=True)
class EncoderSettings:
    """How an agent turns images into numbers, which it learns together with their values."""

    cameras: tuple[tuple[int, int], ...]  # width and height of each image
    features: int = 64  # numbers of an image
    shift: int = 4  # pixels, at most, by which images are moved at random where they are learned from


class CoreAgent(Agent):
    """An agent whose options make another one, its `core`, which does the work."""

    core: Any

    def act(self, state: np.ndarray, explore: bool, *observations: Sequence[Observation]) -> np.ndarray:
        return self.core.act(state, explore, *observations)

    def warm(self, state: np.ndarray, *observations: Sequence[Observation]) -> np.ndarray | None:
        return self.core.warm(state, *observations)

    def update(self, online: Transitions | None, offline: Transitions | None) -> dict[str, float]:
        return self.core.update(online, offline)

    def state_dict(self) -> dict[str, Any]:
        return self.core.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.core.load_state_dict(state)

    def save(self, folder: Path) -> None:
        self.core.save(folder)


class ActorAgent(CoreAgent):
    """An agent whose core is an actor, perhaps beside critics, and learns from all alike; the actor also warms up."""

    @property
    def actor(self) -> Any:
        return self.core.actor

    def act(self, state: np.ndarray, explore: bool, *observations: Sequence[Observation]) -> np.ndarray:
        return self.actor.chunks(state, explore)

    def warm(self, state: np.ndarray, *observations: Sequence[Observation]) -> np.ndarray:
        return self.act(state, explore=True)

    def update(self, online: Transitions | None, offline: Transitions | None) -> dict[str, float]:
        return self.core.update(concat([part for part in (online, offline) if part is not None]))

    def save(self, folder: Path) -> None:
        self.actor.policy.save(folder)


# What off-policy learning remembers: transitions as columns, and the ring buffer that holds them.
#
# M transitions of a state of S numbers and an action of K ticks of A controls.

FLAGS, BYTES = ("terminal", "person"), ("images", "next_images")


@dataclass(frozen=True, eq=False)
class Transitions:
    """M decisions and what came of them. Every column is a numpy array of M rows.

    Raises:
        ValueError: columns of different lengths, or of other ranks than these.
    """

    state: np.ndarray  # float32 [M, S], when it was decided
    action: np.ndarray  # float32 [M, K, A], physical units
    reward: np.ndarray  # float32 [M]; of a source: 1 where the job was done, else 0
    terminal: np.ndarray  # bool [M], the job was done or lost: nothing follows. A time-out is NOT terminal
    next_state: np.ndarray  # float32 [M, S], after the action, also where the episode ended
    used: np.ndarray  # float32 [M] in (0, 1], the share of the action that was carried out, from its beginning
    person: np.ndarray  # bool [M], a human's hand
    paid: np.ndarray | None = None  # float32 [M], what the simulator itself paid, beside `reward`; None: 0
    returns: np.ndarray | None = (
        None  # float32 [M], discounted rewards to the episode's end, where an agent learns from them; None: 0
    )
    images: np.ndarray | None = None  # uint8 [M, P], beside `state` (`robot_common.pixels`); None: none, so P is 0
    next_images: np.ndarray | None = None  # uint8 [M, P], beside `next_state`

    def __post_init__(self):
        for name, column in self.columns().items():
            kind = np.bool_ if name in FLAGS else np.uint8 if name in BYTES else np.float32
            object.__setattr__(self, name, np.asarray(column, kind))
        rows = {len(column) for column in self.columns().values()}
        ranks = {name: column.ndim for name, column in self.columns().items()}
        dimensions = {"state": 2, "action": 3, "next_state": 2, "images": 2, "next_images": 2}
        if len(rows) != 1 or any(rank != dimensions.get(name, 1) for name, rank in ranks.items()):
            shapes = {name: column.shape for name, column in self.columns().items()}
            raise ValueError(f"transitions: columns do not belong together: {shapes}")

    def __len__(self) -> int:
        return len(self.reward)

    def columns(self) -> dict[str, np.ndarray]:
        """Name -> column, in the order of the fields."""
        nothing = np.zeros((len(self.reward), 0), np.uint8)
        return {
            "state": self.state, "action": self.action, "reward": self.reward, "terminal": self.terminal,
            "next_state": self.next_state, "used": self.used, "person": self.person,
            "paid": np.zeros(len(self.reward), np.float32) if self.paid is None else self.paid,
            "returns": np.zeros(len(self.reward), np.float32) if self.returns is None else self.returns,
            "images": nothing if self.images is None else self.images,
            "next_images": nothing if self.next_images is None else self.next_images,
        }  # fmt: skip

    def take(self, indices: np.ndarray | Sequence[int]) -> Transitions:
        """The rows of these indices or of this mask, in their order."""
        chosen = np.asarray(indices)
        chosen = chosen if chosen.dtype == np.bool_ else chosen.astype(np.int64)
        return Transitions(**{name: column[chosen] for name, column in self.columns().items()})

    def ticks(self) -> np.ndarray:
        """Controls carried out, int64 [M]."""
        return np.rint(self.used * self.action.shape[1]).astype(np.int64)

    def discount(self, gamma: float) -> np.ndarray:
        """What the next state's value counts, float32 [M]: 0 where terminal, else `gamma` to the ticks that passed."""
        return np.where(self.terminal, 0.0, gamma ** self.ticks()).astype(np.float32)


def concat(parts: Sequence[Transitions]) -> Transitions:
    """All rows of at least one part, in order.

    Raises:
        ValueError: they are of different robots.
    """
    columns = [part.columns() for part in parts]
    return Transitions(**{name: np.concatenate([each[name] for each in columns]) for name in columns[0]})


class ReplayBuffer:
    """The latest `capacity` transitions; the oldest make room.

    Args:
        capacity: at least 1.
    """

    def __init__(self, capacity: int):
        self.capacity, self.added = capacity, 0  # added: ever
        self._columns: dict[str, np.ndarray] = {}

    def __len__(self) -> int:
        return min(self.added, self.capacity)

    def add(self, transitions: Transitions) -> None:
        """Remembers them, row after row."""
        skipped = max(0, len(transitions) - self.capacity)  # rows that would at once be overwritten
        places = (self.added + np.arange(skipped, len(transitions))) % self.capacity
        for name, rows in transitions.columns().items():
            if name not in self._columns:
                self._columns[name] = np.zeros((self.capacity, *rows.shape[1:]), rows.dtype)
            self._columns[name][places] = rows[skipped:]
        self.added += len(transitions)

    def sample(self, n: int, rng: np.random.Generator) -> Transitions:
        """`n` transitions, drawn evenly and with replacement. ValueError of an empty one."""
        if not self.added:
            raise ValueError("nothing to sample: the replay is empty")
        rows = rng.integers(len(self), size=n)
        return Transitions(**{name: column[rows] for name, column in self._columns.items()})

    def all(self) -> Transitions:
        """Everything remembered, oldest first. ValueError of an empty one."""
        if not self.added:
            raise ValueError("the replay is empty")
        first = self.added % self.capacity if self.added > self.capacity else 0
        rows = (first + np.arange(len(self))) % self.capacity
        return Transitions(**{name: column[rows] for name, column in self._columns.items()})

    def save(self, path: Path) -> None:
        """An .npz without pickle, whole or not at all; rows lie in it as here, so that sampling goes on the same."""
        path = Path(path)
        temporary = path.with_name(f".{path.name}.part")
        held = {name: column[: len(self)] for name, column in self._columns.items()}
        with temporary.open("wb") as file:
            np.savez(file, capacity=self.capacity, added=self.added, **held)
        os.replace(temporary, path)

    def load(self, path: Path) -> None:
        """What `save` wrote, instead of what is remembered.

        Raises:
            UserError: the file is missing, damaged, or of a replay of another capacity.
        """
        try:
            with Path(path).open("rb") as file, np.load(file, allow_pickle=False) as saved:
                columns = {name: saved[name] for name in saved.files}
            capacity, added = int(columns.pop("capacity")), int(columns.pop("added"))
            held = Transitions(**columns) if added else None
        except (OSError, ValueError, KeyError, TypeError, EOFError, BadZipFile) as error:
            raise UserError(f"the replay {path} is damaged ({error}): resume from an earlier checkpoint") from None
        if capacity != self.capacity or (held is not None and len(held) != min(added, capacity)):
            raise UserError(
                f"the replay {path} was made with capacity {capacity}: set capacity to that, not {self.capacity}"
            )
        self._columns, self.added = {}, 0
        if held is not None:
            self.add(held)
        self.added = added


# Episodes that were seen at every tick, as overlapping chunks: what recordings and scripts give.


def windows(
    states: np.ndarray, controls: np.ndarray, chunk: int, *, won: bool, ended: bool,
    person: np.ndarray | None = None, paid: np.ndarray | None = None, images: np.ndarray | None = None,
) -> Transitions:  # fmt: skip
    """An episode of T ticks as T transitions, one chunk from each tick (as in Q-chunking, arXiv 2507.07969).

    A chunk that reaches beyond the end repeats the last control, and counts as used up to the end.

    Args:
        states: float32 [T + 1, S], the last one after the last control.
        controls: float32 [T, A], physical units.
        chunk: K ticks of an action.
        won: the job was done, by the last control.
        ended: the job was done or lost; False of a time-out, and where a recording just stops.
        person: bool [T], a human's hand; a chunk is a person's where its first tick is. None: never.
        paid: float32 [T], what the simulator itself paid. None: nothing.
        images: uint8 [T + 1, P], beside the states. None: none.

    Raises:
        ValueError: not one state more than controls, or no control.
    """
    count = len(controls)
    if not count or len(states) != count + 1:
        raise ValueError(f"{len(states)} states with {count} controls: one more is needed, and at least one control")
    ticks = np.arange(count)[:, None] + np.arange(chunk)  # [T, K]
    inside = ticks < count
    final = ticks[:, -1] >= count - 1
    following = (ticks[:, -1] + 1).clip(max=count)
    return Transitions(
        state=states[:-1],
        action=controls[ticks.clip(max=count - 1)],
        reward=final * float(won),
        terminal=final & ended,
        next_state=states[following],
        used=inside.mean(1),
        person=np.zeros(count, bool) if person is None else person,
        paid=None if paid is None else (paid[ticks.clip(max=count - 1)] * inside).sum(1),
        images=None if images is None else images[:-1],
        next_images=None if images is None else images[following],
    )
