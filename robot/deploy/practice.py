"""Practice without a person: the scene comes back by itself, a robot that is stuck frees itself, all is counted.

The loop of FastRLAP (arXiv 2304.09831): try, notice being stuck, recover, go on. A stop still needs a person.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from robot.deploy.chunks import Chunks
from robot.deploy.config import Practice
from robot.deploy.episode import Episode
from robot.deploy.reset import Jam, pose_of, ramp
from robot.deploy.rig import Rig
from robot.motion.body import Ticked
from robot.robot import Signals
from robot.serving.client import Client
from vlrl.types import UserError

MISSES = 3  # resets in a row that did not arrive: then a person is needed


@dataclass(eq=False)
class Practising:
    """Watches the ticks of an episode, and resets after it.

    Args:
        resetter: of the policy that resets, where the config names one.

    Raises:
        UserError: a pose of channels that the robot has not.
    """

    rig: Rig
    config: Practice
    resetter: Client | None = None
    resets: int = 0
    missed: int = 0  # resets to a pose that did not arrive
    stuck: int = 0  # in this episode
    _in_a_row: int = field(default=0, init=False)  # of `missed`
    _jam: Jam | None = field(default=None, init=False)

    def __post_init__(self):
        about = self.rig.motion.about
        pose = self.config.reset.pose
        self._pose = None if pose is None else pose_of(pose, about.channels, "practice.reset.pose")
        self._renew()

    def watch(self, ticked: Ticked) -> str:
        """After each tick: why the episode should end, or ''. Frees a robot that is stuck."""
        if self._jam is None or not self._jam.see(ticked):
            return ""
        self.stuck += 1
        if self.stuck > self.config.stuck.tries:
            return f"stuck {self.stuck} times"
        self.rig.ledger.recoveries += 1
        self.rig.say("stuck: back to where it was free")
        ramp(self.rig, self._jam.free(), self.config.stuck.back_s)
        self.rig.motion.plan(self.rig.chunks.nothing(len(self.rig.motion.about.controls)))
        return ""

    def reset(self, number: int, seed: int) -> bool:
        """Brings the scene back -> whether the next episode can begin."""
        rig, reset = self.rig, self.config.reset
        self._renew()
        self.resets += 1
        if reset.person:
            rig.say("reset the scene, then press n")
            rig.idle(lambda: "next" in rig.orders())
            return not rig.ender.code
        if self._pose is not None:
            rig.motion.begin(seed)
            self._count(ramp(rig, self._pose, reset.seconds))
            rig.motion.idle()
        if self.resetter is not None:
            self._by_policy(number, seed)
        free = self._in_a_row < MISSES and not rig.motion.latest().stopped
        return free and rig.motion.alive and not rig.ender.code

    def _count(self, arrived: bool) -> None:
        self._in_a_row = 0 if arrived else self._in_a_row + 1
        if not arrived:
            self.missed += 1
            self.rig.say("the reset pose was not reached", bad=True)

    def _by_policy(self, number: int, seed: int) -> None:
        rig = self.rig
        chunks = Chunks(rig.config.policy, self.resetter.spec, rig.motion.about.hz)
        first = rig.motion.begin(seed)
        rig.say("the reset policy plays")
        Episode(
            rig, number, seconds=self.config.reset.seconds, client=self.resetter, chunks=chunks,
            judge=lambda ticked, images: Signals(),
        ).play(first)  # fmt: skip

    def _renew(self) -> None:
        about, self.stuck = self.rig.motion.about, 0
        self._jam = Jam(self.config.stuck, about.channels, about.hz) if self.config.stuck else None


def check(config: Practice, by_person: bool) -> None:
    """Raises UserError where nobody is there who could reset."""
    if config.reset.person and not by_person:
        raise UserError("practice.reset.person: nobody can say that the scene is ready: needs a terminal or view")
