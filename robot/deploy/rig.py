"""All that a run has open: the motion process, the policy's server, cameras, hands, the operator, the recording."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np

from robot.deploy.board import told
from robot.deploy.chunks import Chunks
from robot.deploy.config import Deploy
from robot.deploy.ending import Ender
from robot.deploy.hands import Hands
from robot.deploy.keys import Keys
from robot.deploy.ledger import Ledger
from robot.deploy.scene import Scene
from robot.deploy.sight import Eyes, Seen
from robot.deploy.takeover import Takeover
from robot.deploy.view import View
from robot.deploy.watch import Lookout
from robot.motion.body import Ticked
from robot.motion.process import Motion
from robot.motion.stages.bounds import bounds
from robot.serving.client import Client
from robot.serving.spec import Feature, Picture, Wants
from vlrl.system.clock import boottime
from vlrl.types import UserError

PAUSE_S = 0.003  # between two looks at everything; an answer ends it at once
SHOW_S = 0.1  # between two pictures of the run on the page

NOTHING: Mapping[str, Seen] = MappingProxyType({})


@dataclass(eq=False)
class Rig:
    """Shared by the episodes of a run; used by one thread."""

    config: Deploy
    motion: Motion
    client: Client
    chunks: Chunks
    scene: Scene
    ledger: Ledger
    ender: Ender
    keys: Keys
    eyes: Eyes | None = None
    hands: Hands | None = None
    view: View | None = None
    said: str = ""  # what the run is at, in one line
    bad: bool = False
    events: dict[str, tuple[int, str]] = field(default_factory=dict)  # what -> how often, the last cause; newest first
    _shown: float = 0.0

    @property
    def by_person(self) -> bool:
        """Whether there is somebody who can press something."""
        return self.view is not None or self.keys.open

    def lookout(self) -> Lookout:
        config = self.config
        return Lookout(tuple(config.cameras), self.motion.about.channels, config.cameras_stale_s, config.cameras_stop_s)

    def takeover(self) -> Takeover | None:
        """None without a teleoperator. A hand may be as far from the robot as the governor's first target may."""
        if self.hands is None:
            return None
        channels, hz = self.motion.about.channels, self.motion.about.hz
        return Takeover(self.hands, channels, bounds(channels, self.config.safety, hz).jump, hz)

    def seen(self) -> Mapping[str, Seen]:
        return self.eyes.latest() if self.eyes else NOTHING

    def images(self, ticked: Ticked) -> dict[str, np.ndarray]:
        """The cameras' newest pictures, then the body's own of this tick."""
        return {name: seen.picture for name, seen in self.seen().items()} | dict(ticked.sensed.images)

    def orders(self) -> list[str]:
        stop = ["stop"] if self.ender.stopped else []
        return [*stop, *self.keys.orders(), *(self.view.orders() if self.view else [])]

    def say(self, text: str, bad: bool = False) -> None:
        self.said, self.bad = text, bad
        print(text, file=sys.stderr, flush=True)

    def event(self, what: str, cause: str = "") -> None:
        """For the page: the last cause of each, and how often it was."""
        count = self.events.pop(what, (0, ""))[0] + 1
        self.events = dict([(what, (count, cause)), *list(self.events.items())[:11]])

    def show(self, ticked: Ticked | None) -> None:
        """To the page, now and then."""
        now = boottime()
        if self.view is not None and ticked is not None and now - self._shown > SHOW_S:
            self._shown = now
            self.view.show(told(self, ticked, now), self.images(ticked))

    def idle(self, until: Callable[[], bool]) -> None:
        """Waits for something between episodes: the robot holds, and is told that we are here."""
        while not until() and not self.ender.code and self.motion.alive:
            self.motion.pet()
            self.motion.ticks()
            self.show(self.motion.latest())
            time.sleep(10 * PAUSE_S)


def shown[P](pictures: Mapping[str, P], names: Sequence[str] | None) -> dict[str, P]:
    """Those of the pictures that the policy is to see, in its order.

    Raises:
        UserError: there is no such camera.
    """
    for name in names or ():
        if name not in pictures:
            raise UserError(f"policy.pictures: no camera {name!r}; there are {', '.join(pictures) or 'none'}")
    return {name: pictures[name] for name in (pictures if names is None else names)}


def told_of(names: Sequence[str], wanted: Sequence[str] | None) -> list[int]:
    """Places of the numbers of the state that the policy is told, in its order.

    Raises:
        UserError: there is no such number.
    """
    for name in wanted or ():
        if name not in names:
            raise UserError(f"policy.state: no number {name!r}; there are {', '.join(names)}")
    return [list(names).index(name) for name in (names if wanted is None else wanted)]


def wants(motion: Motion, state: Sequence[str], images: Mapping[str, Sequence[int]]) -> Wants:
    """What the robot sends and takes, for the server to compare. A state has the unit of the channel of its name."""
    about = motion.about
    units = {channel.name: channel.unit for channel in about.channels}
    return Wants(
        tuple(Feature(name, units.get(name, "")) for name in state),
        tuple(Picture(name, int(size[0]), int(size[1])) for name, size in images.items()),
        tuple(Feature(channel.name, channel.unit) for channel in about.controls),
    )
