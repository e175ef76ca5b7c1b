"""What a client remembers of its observations: which answers it takes, and how long each took."""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from dataclasses import dataclass, field

import numpy as np

from robot.serving.dialects import Reply

KEPT = 4096


@dataclass(frozen=True, eq=False)
class Answer:
    """A chunk for the newest observation that has been answered."""

    seq: int
    actions: np.ndarray  # float32 [K, A]
    hz: float  # of the actions; 0: the server does not know
    sent_at: float  # boottime() when the observation was asked
    received_at: float
    queue_s: float  # in the server
    infer_s: float
    version: str  # of the policy's weights
    expires_s: float  # after sent_at, from then on all of it is late, where actions are bound to their times


@dataclass(frozen=True)
class Timing:
    """How long one answer took, in seconds. What is in neither part was on the way."""

    seq: int
    round_trip_s: float
    queue_s: float
    infer_s: float


@dataclass
class Stats:
    """Counts of one client since it was made. `dropped` has chunks by why they were not taken."""

    asked: int = 0
    sent: int = 0
    replaced: int = 0  # observations that a newer one took the place of before they were sent
    answered: int = 0
    failures: int = 0  # observations and messages that the server refused
    connections: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    timings: deque[Timing] = field(default_factory=lambda: deque(maxlen=KEPT))
    pings: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT))  # round trips without an inference, s


class Ledger:
    """Judges answers by what was asked. Clocks are this machine's."""

    def __init__(self, stats: Stats):
        self._stats, self._episode, self._newest = stats, 0, -1
        self._open: OrderedDict[int, tuple[float, int]] = OrderedDict()  # seq -> when, episode

    def asked(self, seq: int, at: float, episode: int) -> None:
        self._open[seq] = (at, episode)
        self._episode = episode
        while len(self._open) > KEPT:
            self._open.popitem(last=False)

    def reset(self, episode: int) -> None:
        self._episode = episode

    def disconnected(self) -> None:
        """What was asked on the old connection is answered by nobody."""
        self._open.clear()

    def judge(self, reply: Reply, now: float) -> Answer | None:
        """The answer, or None for one that a newer one or another episode has overtaken; why is counted.

        An answer older than its chunk is long is one still: what carries it out knows whether it is of use.
        """
        at, episode = self._open.get(reply.seq, (now, self._episode))
        why = ""
        if reply.seq not in self._open:
            why = "older" if reply.seq <= self._newest else "not asked on this connection"
        elif episode != self._episode:
            why = "episode"
        self._newest = max(self._newest, reply.seq)
        for seq in [each for each in self._open if each <= reply.seq]:
            del self._open[seq]
        if why:
            self._stats.dropped[why] += 1
            return None
        self._stats.answered += 1
        self._stats.timings.append(Timing(reply.seq, now - at, reply.queue_s, reply.infer_s))
        return Answer(
            reply.seq, reply.actions, reply.hz, at, now, reply.queue_s, reply.infer_s, reply.version, reply.expires_s
        )
