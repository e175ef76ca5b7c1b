"""What a robot did on a fault, read off the ticks of its motion process: recorded ones or those of a running one."""

import time
from dataclasses import dataclass

import numpy as np

from robot.deploy.recorder import LARGEST, MAGIC
from vlrl.decoders import wire_unpack

ACTING = ("policy", "person")


@dataclass(frozen=True, eq=False)
class Shown:
    """One tick."""

    tick: int
    t: float  # time.monotonic() when its reading was begun
    source: str
    sent: np.ndarray | None
    asked: np.ndarray | None
    measured: np.ndarray
    stopped: str
    events: tuple[tuple[str, str, str], ...]  # stage, reaction, cause

    @property
    def free(self):
        """Whether what a policy or a person asks is followed."""
        return (
            self.source in ACTING and not self.stopped and not any(each[1] in ("hold", "stop") for each in self.events)
        )


@dataclass(frozen=True)
class Safe:
    """Ticks and milliseconds from the tick in which a fault began."""

    held: int | None  # to the first in which what is asked no longer counts; None: it never was
    still: int | None  # to the first target that is the last one; None: it never came to rest
    ms: float
    cause: str


def of_ticked(ticked):
    events = tuple((each.stage, each.reaction, each.cause) for each in ticked.events)
    return Shown(ticked.tick, ticked.sensed.t, ticked.source, ticked.sent, ticked.requested, ticked.sensed.measured,
                 ticked.stopped, events)  # fmt: skip


class Tail:
    """Reads a spool that is being written. `header` and `end` are {} until they are there."""

    def __init__(self, folder):
        self._folder, self._place, self._file = folder, len(MAGIC), None
        self.header, self.end, self.ticks, self.notes = {}, {}, [], []

    def read(self):
        """Every tick so far."""
        paths = sorted(self._folder.glob("*.spool")) if self._file is None else []
        if paths:
            self._file = open(paths[-1], "rb")  # noqa: SIM115 - read on until the test ends
        while self._file is not None and (record := self._record()):
            self._take(*record)
        return self.ticks

    def close(self):
        if self._file is not None:
            self._file.close()

    def _record(self):
        self._file.seek(self._place)
        head = self._file.read(8)
        size = int.from_bytes(head[:4], "little")
        message = self._file.read(size) if len(head) == 8 and size <= LARGEST else b""
        if not message or len(message) < size:
            return None
        self._place += 8 + size
        return wire_unpack(message)

    def _take(self, fields, arrays):
        if fields["kind"] == "tick":
            told = (fields["tick"], fields["t"], fields["source"], arrays.get("sent"), arrays.get("asked"))
            events = tuple(map(tuple, fields["events"]))
            self.ticks.append(Shown(*told, arrays["measured"], fields["stopped"], events))
        elif fields["kind"] in ("header", "end"):
            setattr(self, fields["kind"], fields)
        else:
            self.notes.append(fields)


def safe(ticks, began, until=float("inf")):
    """How a robot came to be held after time.monotonic() `began`; what came after `until` does not count.

    Held from the first tick on after which nothing that a policy or a person asked was followed any more.
    """
    place = _start(ticks, began)
    origin = ticks[place].tick
    after = [each for each in ticks[place + 1 :] if each.t < until]
    last = max((i for i, each in enumerate(after) if each.free), default=-1)
    if last + 1 >= len(after):
        return Safe(None, None, float("nan"), "")
    first = after[last + 1]
    return Safe(first.tick - origin, _still(after, last + 1, origin), 1e3 * (first.t - began), cause_of(first))


def _start(ticks, began):
    """Where the tick is in which something began; one without a reading repeats the time of the one before."""
    fresh = [i for i in range(len(ticks)) if ticks[i].t <= began and (i == 0 or ticks[i].t > ticks[i - 1].t)]
    return fresh[-1]


def _still(after, first, origin):
    """Ticks until the target was the same as ever after; a tick in which nothing was sent leaves it as it was."""
    sent = [(each.tick, each.sent) for each in after if each.sent is not None]
    if not sent or sent[-1][0] < after[first].tick:
        return after[first].tick - origin
    moved = [i for i in range(1, len(sent)) if np.abs(sent[i][1] - sent[i - 1][1]).max() > 1e-3]
    if moved and moved[-1] == len(sent) - 1 and not after[-1].stopped:
        return None
    return max(sent[moved[-1]][0] if moved else 0, after[first].tick) - origin


def cause_of(tick):
    """Why a tick is held, in one line."""
    told = [f"{stage} {reaction}: {cause}" for stage, reaction, cause in tick.events if reaction in ("hold", "stop")]
    return told[0] if told else tick.stopped or tick.source


def largest_steps(ticks):
    """The largest change of the target from tick to tick and the largest change of that, float [A] each."""
    sent = np.array([each.sent for each in ticks if each.sent is not None], np.float64)
    steps = np.diff(sent, axis=0)
    return np.abs(steps).max(0), np.abs(np.diff(steps, axis=0)).max(0)


def eventually(check, what, seconds=30.0):
    """check() once it is true."""
    until = time.monotonic() + seconds
    while not (found := check()):
        assert time.monotonic() < until, f"it did not come: {what() if callable(what) else what}"
        time.sleep(0.01)
    return found
