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

BACK_S = 2.0  # seconds in which a stuck robot goes back


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
    stuck: int = 0  # in this episode
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
        self.rig.ledger.recoveries += 1
        if self.stuck > self.config.stuck.tries:
            return f"stuck {self.stuck} times"
        self.rig.say("stuck: back to where it was free")
        ramp(self.rig, self._jam.free(), BACK_S)
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
            ramp(rig, self._pose, reset.seconds)
            rig.motion.idle()
        if self.resetter is not None:
            self._by_policy(number, seed)
        return rig.motion.alive and not rig.motion.latest().stopped and not rig.ender.code

    def _by_policy(self, number: int, seed: int) -> None:
        rig = self.rig
        chunks = Chunks(rig.config.policy, self.resetter.spec, rig.motion.about.hz)
        first = rig.motion.begin(seed)
        rig.say("the reset policy plays")
        Episode(
            rig, number, seconds=self.config.reset.seconds, client=self.resetter, chunks=chunks,
            judge=lambda ticked: Signals(),
        ).play(first)  # fmt: skip

    def _renew(self) -> None:
        about, self.stuck = self.rig.motion.about, 0
        self._jam = Jam(self.config.stuck, about.channels, about.hz) if self.config.stuck else None


def check(config: Practice, by_person: bool) -> None:
    """Raises UserError where nobody is there who could reset."""
    if config.reset.person and not by_person:
        raise UserError("practice.reset.person: nobody can say that the scene is ready: needs a terminal or view")
