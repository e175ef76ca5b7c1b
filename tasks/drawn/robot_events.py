"""What the robot did and when, read from the record of the simulator's state alone; the script is not asked.

Of an object that both fingers held in the air:
- reached: from when the hand began to come nearer until the object was between the fingers;
- grasped: from then until, between both fingers, it no longer touched what it stood on;
- lifted: from then until it had risen by all but a twentieth of what it rose in all;
- moved: from then until it was above the place where it came to rest;
- placed: from then until it lay at rest on its support and no finger touched it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tasks.drawn.robot_model import CONTROL, TARGETS
from tasks.drawn.robot_world import FIRST, PARTS, Thing
from tasks.drawn.story import Event

NEAR = 0.016  # metres between grip and object: it is between the fingers
SLACK = 0.01  # metres of the way to the object that do not count as coming nearer
OVER = 0.02  # metres beside the place of rest
RISEN = 0.95  # of the height gained
CALM = 5  # steps of control: a contact may flicker for as long, what lies still does so for longer
STILL = 0.002  # metres that an object at rest trembles at most
LIFTED = 0.03  # metres: to rise less is no lift
LEFT, RIGHT = PARTS.index("left"), PARTS.index("right")
STATIC = [PARTS.index(name) for name in ("table", *TARGETS)]


@dataclass(frozen=True, eq=False)
class Record:
    """The simulator's state at every step of control: step i is the state at i * CONTROL seconds."""

    qpos: np.ndarray  # float64 [n, nq]
    grip: np.ndarray  # float64 [n, 3], metres
    objects: np.ndarray  # float64 [n, SLOTS, 3], metres
    touch: np.ndarray  # bool [n, PARTS, PARTS], symmetric: which parts touch

    @property
    def duration(self) -> float:
        return len(self.qpos) * CONTROL


@dataclass(frozen=True)
class Handling:
    """One object's way through the hand: the steps at which its phases begin and end."""

    what: int
    support: int  # of PARTS: what it came to rest on
    steps: tuple[int, int, int, int, int, int]  # reach, grasp, lift, move, place, end


def handled(record: Record) -> tuple[Handling, ...]:
    """The objects that were lifted and put down again, in order of time.

    An object that was lifted and lost, or lifted twice, is told up to nothing: it is not in the list.
    """
    found: list[Handling] = []
    flights = [(start, end, what) for what in range(record.objects.shape[1]) for start, end in _flights(record, what)]
    for start, end, what in sorted(flights):
        if sum(other == what for _, _, other in flights) == 1:
            one = _handling(record, what, start, end, found[-1].steps[-1] if found else 0)
            found += [one] if one else []
    return tuple(found)


def events(done: Sequence[Handling], things: Sequence[Thing]) -> tuple[Event, ...]:
    """The handlings in words, with their times in seconds."""
    told = []
    for one in done:
        name, support = things[one.what].name, PARTS[one.support]
        support = things[one.support - FIRST].name if one.support >= FIRST else support
        actions = (
            f"reaches for the {name}",
            f"grasps the {name}",
            f"lifts the {name}",
            f"moves the {name} over the {support}",
            f"places the {name} {'in' if support == 'bin' else 'on'} the {support}",
        )
        spans = zip(one.steps, one.steps[1:], strict=False)
        told += [
            Event("robot", action, (a * CONTROL, b * CONTROL)) for action, (a, b) in zip(actions, spans, strict=True)
        ]
    return tuple(told)


def _flights(record: Record, what: int) -> list[tuple[int, int]]:
    """Steps [start, end): from when the object last left its support until the fingers no longer both touch it."""
    part, height = FIRST + what, record.objects[:, what, 2]
    both = record.touch[:, LEFT, part] & record.touch[:, RIGHT, part]
    supported = record.touch[:, part].sum(1) > both * 2
    found = []
    for start, end in _runs(both):
        high = np.flatnonzero(height[start:end] > height[start] + LIFTED)
        if len(high):
            below = np.flatnonzero(supported[start : start + high[0]])
            found.append((start + int(below[-1]) + 1 if len(below) else start, end))
    return found


def _runs(held: np.ndarray) -> list[tuple[int, int]]:
    """Steps [start, end) for which bool [n] is true, but for moments: a contact may flicker."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], held, [0]])))
    joined: list[tuple[int, int]] = []
    for start, end in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
        if joined and start - joined[-1][1] <= CALM:
            start = joined.pop()[0]
        joined.append((start, end))
    return joined


def _handling(record: Record, what: int, start: int, end: int, since: int) -> Handling | None:
    """The phases around a flight; None where one of them is missing."""
    spots = record.objects[:, what]
    apart = np.linalg.norm(record.grip - spots, axis=1)
    away = np.flatnonzero(apart[since:start] >= NEAR) + since
    rest = _rest(record, what, end)
    if not len(away) or rest is None:
        return None
    between = int(away[-1]) + 1
    reach = since + int(np.flatnonzero(apart[since:between] >= apart[since:between].max() - SLACK)[-1])
    gained = spots[start:end, 2] - spots[start, 2]
    risen = start + int(np.argmax(gained >= RISEN * gained.max()))
    over = risen + int(np.argmax(np.linalg.norm(spots[risen:rest, :2] - spots[rest, :2], axis=1) < OVER))
    steps = (reach, between, start, risen, over, rest)
    return Handling(what, _support(record, what, rest), steps) if list(steps) == sorted(set(steps)) else None


def _rest(record: Record, what: int, end: int) -> int | None:
    """The first step after a flight from which the object lies still for CALM steps, untouched by the fingers."""
    part, spots = FIRST + what, record.objects[:, what]
    for step in range(end, len(spots) - CALM):
        moved = np.abs(spots[step : step + CALM] - spots[step]).max()
        touched = record.touch[step : step + CALM, part].any(0)
        if moved < STILL and touched.any() and not touched[LEFT] and not touched[RIGHT]:
            return step
    return None


def _support(record: Record, what: int, step: int) -> int:
    """What the object lies on: a target before the table, and either before another object that it leans on."""
    touched = record.touch[step : step + CALM, FIRST + what].any(0)  # at rest a contact may flicker, too
    fixed = [part for part in STATIC if touched[part]]
    return fixed[-1] if fixed else FIRST + int(np.argmax(touched[FIRST:]))
