"""The stage that keeps the robot's parts in their workspace."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from robot.motion.stages.tick import Found, Look, Tick

_SLACK = 1e-4  # metres: of rounding and of the little that a braking path bends


def workspace(depth: Callable[[np.ndarray], tuple[float, str]]) -> Look:
    """The robot is inside its workspace at the target, and where it would come to rest if it braked from there.

    clip: channels go on one by one as far as that leads no part out, and the others brake. A robot that is outside may
    only move where it is no deeper outside.

    Args:
        depth: how far in metres targets float64 [A] are outside (negative: inside), and what is worst about them.
    """

    def look(tick: Tick, target: np.ndarray | None) -> Found | None:
        if target is None:
            return None
        allowed = max(0.0, depth(tick.at)[0]) + _SLACK

        def leads_to(rate: np.ndarray) -> tuple[float, str]:
            return max(depth(tick.target(rate)), depth(np.where(tick.bounds.speeds, rate, tick.stopping(rate))))

        asked = tick.rate_to(target)
        deep, cause = leads_to(asked)
        if deep <= allowed:
            return None
        rate = tick.rest()
        for i in np.flatnonzero(~tick.bounds.speeds):
            trial = rate.copy()
            trial[i] = asked[i]
            if leads_to(trial)[0] <= allowed:
                rate = trial
        return Found(cause, tick.target(np.where(tick.bounds.speeds, asked, rate)))

    return look
