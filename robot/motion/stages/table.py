"""Every stage of the governor, in order. A new one is a function of a `Tick` and a row here.

Reactions: `warn` only says; `clip` brings the target within the limit; `hold` brakes and stays where it is; `stop`
does so for good, until a person re-arms. The first of a row is the default. What a row leaves out would be harmful
(a NaN cannot be warned of and sent) or means nothing (an old action cannot be clipped); no stage can be switched off.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from robot.motion.body import Channel, Reaction
from robot.motion.stages import asked, pace, sensors, space
from robot.motion.stages.tick import Look

if TYPE_CHECKING:
    from robot.motion.limits import Safety

Make = Callable[["Safety", Sequence[Channel]], Look | None]  # None: the config asks for no such stage


@dataclass(frozen=True)
class Stage:
    name: str
    reactions: tuple[Reaction, ...]  # that may be chosen, the default first
    make: Make


def _plain(look: Look) -> Make:
    return lambda safety, channels: look


def _workspace(safety: Safety, channels: Sequence[Channel]) -> Look | None:
    from robot.motion.kinematics import Kinematics

    return space.workspace(Kinematics(safety.workspace, channels).depth) if safety.workspace else None


STAGES = (
    Stage("finite", ("hold", "stop"), _plain(asked.finite)),
    Stage("stale", ("hold", "stop"), lambda safety, _: asked.stale(safety.stale.hold_s)),
    Stage("jump", ("clip", "hold", "stop", "warn"), _plain(asked.jump)),
    Stage("position", ("clip", "hold", "stop"), _plain(pace.position)),
    Stage("step", ("clip", "hold", "stop"), _plain(pace.step)),
    Stage("speed", ("clip", "hold", "stop"), _plain(pace.speed)),
    Stage("acceleration", ("clip", "hold", "stop"), _plain(pace.acceleration)),
    Stage("lead", ("clip", "hold", "stop", "warn"), _plain(pace.lead)),
    Stage("workspace", ("clip", "hold", "stop", "warn"), _workspace),
    Stage("reading", ("hold", "stop"), _plain(sensors.reading)),
    Stage("age", ("hold", "stop", "warn"), lambda safety, _: sensors.age(safety.sensor.age_s)),
    Stage("frozen", ("hold", "stop", "warn"), lambda safety, _: sensors.frozen(safety.sensor.same_ticks)),
    Stage("stuck", ("stop", "hold", "warn"), lambda safety, _: sensors.stuck(safety.sensor.same_ticks)),
    Stage("disagree", ("stop", "hold", "warn"), lambda safety, _: sensors.disagree(safety.sensor.disagree_ticks)),
    Stage("health", ("stop", "hold", "warn"), lambda safety, _: sensors.health(safety.health)),
)
