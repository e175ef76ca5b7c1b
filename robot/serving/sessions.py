"""What the server holds of a client, and whether an observation is one that its policy can be shown."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from robot.serving.arrays import Jpeg, Numbers, picture_of, size_of, unpack
from robot.serving.messages import Observe, Refused, Reset
from robot.serving.spec import Asked, Spec
from vlrl.system.clock import boottime


@dataclass(frozen=True)
class Limits:
    """What one server takes."""

    clients: int = 8
    pixels: int = 2**21  # of a picture whose size the policy leaves open
    batch: int = 8  # observations of several clients in one inference
    hello_s: float = 5.0  # for the handshakes of TLS and websocket each, and until a client's Hello
    idle_s: float = 30.0  # without a message; then a client makes room for another where all places are taken
    bad: int = 16  # refused messages of a connection, then it is closed
    rate: float = 500.0  # messages a second of a connection; what is above waits in the client
    answers: int = 8  # that a client has not read, then its connection is closed

    def message(self, spec: Spec) -> int:
        """Bytes of the largest message: all pictures raw, and what else belongs to an observation."""
        pictures = sum(3 * (p.height * p.width or self.pixels) for p in spec.pictures)
        return pictures + 4 * len(spec.state) + 4 * spec.chunk * len(spec.action) + 2**16


@dataclass(frozen=True, eq=False)
class Request:
    """An observation that was found good, its pictures not yet decoded."""

    session: str
    seq: int
    t: float  # the client's clock
    episode: int
    task: str
    state: np.ndarray  # float32 [S]
    pictures: Mapping[str, Numbers | Jpeg]  # in the spec's order
    prefix: np.ndarray | None = None  # float32 [P, A]
    delay: int = 0
    arrived: float = field(default_factory=boottime)

    @property
    def shape(self) -> tuple[object, ...]:
        """What observations of one batch have in common."""
        sizes = tuple(size_of(picture) for picture in self.pictures.values())
        return sizes, None if self.prefix is None else len(self.prefix), self.delay

    def asked(self) -> Asked:
        """With its pictures decoded. Raises Refused for a damaged one."""
        try:
            images = {name: picture_of(picture) for name, picture in self.pictures.items()}
        except ValueError as error:
            raise Refused("picture", f"a picture {error}", seq=self.seq) from None
        return Asked(self.session, self.episode, self.task, self.state, images, self.prefix, self.delay)


class Session:
    """One connection of a client.

    Args:
        names: of its pictures, in the policy's order; '' for one that has none.
    """

    def __init__(self, spec: Spec, limits: Limits, names: tuple[str, ...]):
        self.id, self.episode, self.seq = secrets.token_urlsafe(16), 0, -1
        self._spec, self._limits, self._names = spec, limits, names

    def known(self, session: str) -> None:
        """Raises Refused for a message that names another session."""
        if not secrets.compare_digest(session.encode(), self.id.encode()):
            raise Refused("session", "the message names a session that is not this connection's")

    def reset(self, reset: Reset) -> None:
        """An episode begins. Raises Refused for another session's, and for one that is over."""
        self.known(reset.session)
        if reset.episode < self.episode:
            raise Refused("episode", f"episode {reset.episode} is over, this is {self.episode}")
        self.episode = reset.episode

    def request(self, observe: Observe) -> Request:
        """The observation, checked.

        Raises:
            Refused: of another session, not newer than the last, or of another shape than the policy sees.
        """
        self.known(observe.session)
        if observe.seq <= self.seq:
            raise Refused("seq", f"observation {observe.seq} is not newer than {self.seq}", seq=observe.seq)
        if observe.episode < self.episode:
            reason = f"observation {observe.seq} is of episode {observe.episode}, which is over"
            raise Refused("episode", reason, seq=observe.seq)
        self.seq, self.episode = observe.seq, observe.episode
        try:
            state, pictures, prefix = self._state(observe), self._pictures(observe), self._prefix(observe)
        except ValueError as error:
            raise Refused("shape", str(error), seq=observe.seq) from None
        return Request(
            self.id, observe.seq, observe.t, observe.episode, observe.task, state, pictures, prefix, observe.delay
        )

    def _state(self, observe: Observe) -> np.ndarray:
        state = _named("the state", observe.state, 1)
        if len(state) != len(self._spec.state):
            raise ValueError(f"the state has {len(state)} numbers, the policy sees {len(self._spec.state)}")
        return state

    def _pictures(self, observe: Observe) -> dict[str, Numbers | Jpeg]:
        given, wanted = observe.images, self._names
        fits = set(given) == set(wanted) or all(w in ("", g) for w, g in zip(wanted, given, strict=False))
        if len(given) != len(wanted) or not fits:
            raise ValueError(f"pictures {sorted(given)}, the policy sees {sorted(wanted)}")
        chosen = {name: given[name] for name in wanted} if set(given) == set(wanted) else dict(given)
        for (name, picture), want in zip(chosen.items(), self._spec.pictures, strict=True):
            try:
                height, width = size_of(picture)
            except ValueError as error:
                raise ValueError(f"picture {name!r} {error}") from None
            fits = want.height in (0, height) and want.width in (0, width)
            if not fits or height * width > (want.height * want.width or self._limits.pixels) or not height * width:
                allowed = f"{want.width}x{want.height}" if want.height else f"{self._limits.pixels} pixels at most"
                raise ValueError(f"picture {name!r} is {width}x{height}, the policy sees {allowed}")
        return chosen

    def _prefix(self, observe: Observe) -> np.ndarray | None:
        if observe.prefix is None and not observe.delay:
            return None
        if not self._spec.rtc or observe.prefix is None:
            raise ValueError("a delay has no prefix" if self._spec.rtc else "this policy takes no prefix and no delay")
        prefix = _named("the prefix", observe.prefix, 2)
        if len(prefix) > self._spec.chunk or prefix.shape[1] != len(self._spec.action) or observe.delay > len(prefix):
            most = f"[{self._spec.chunk} at most, {len(self._spec.action)}]"
            raise ValueError(f"a prefix {list(prefix.shape)} with a delay of {observe.delay}, the policy takes {most}")
        return prefix if len(prefix) else None


def _named(name: str, numbers: Numbers, dims: int) -> np.ndarray:
    try:
        return unpack(numbers, "<f4", dims)
    except ValueError as error:
        raise ValueError(f"{name} {error}") from None
