"""The robot's own limits of position in the governor's: the narrower of the two holds."""

from __future__ import annotations

import math
from collections.abc import Mapping

from robot.motion.limits import ChannelLimits, Safety


def narrowed(safety: Safety, ranges: Mapping[str, tuple[float, float]]) -> Safety:
    """`safety` with every channel in `ranges` held to low and high, in its unit, unless it is held tighter anyway."""
    channels = dict(safety.channels)
    for name, (low, high) in ranges.items():
        own = channels.get(name, ChannelLimits())
        ends = {
            "low": max(low, _said(own, safety, "low", -math.inf)),
            "high": min(high, _said(own, safety, "high", math.inf)),
        }
        channels[name] = own.model_copy(update=ends)
    return safety.model_copy(update={"channels": channels})


def _said(own: ChannelLimits, safety: Safety, end: str, unless: float) -> float:
    """What the config says of an end itself."""
    for limits in (own, safety.default):
        if end in limits.model_fields_set:
            return getattr(limits, end)
    return unless
