"""What the live page says of a run."""

from __future__ import annotations

import math
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from robot.motion.body import Ticked

if TYPE_CHECKING:
    from robot.deploy.rig import Rig

RANGES = MappingProxyType({"deg": (-180.0, 180.0), "rad": (-math.pi, math.pi), "%": (0.0, 100.0)})


def told(rig: Rig, ticked: Ticked, now: float) -> dict[str, Any]:
    """The keys of `robot.deploy.view.EMPTY`."""
    config, ledger = rig.config, rig.ledger
    won = sum(bool(episode["success"]) for episode in ledger.episodes)
    facts = [
        ("Episode", f"{len(ledger.episodes) + 1} of {config.episodes}"),
        ("Success so far", f"{won} of {len(ledger.episodes)}"),
        ("Drives", ticked.source),
        ("Age of the action", f"{1000 * ticked.age:.0f} ms"),
        ("Latency, 95 %", f"{1000 * rig.chunks.latency():.0f} ms"),
        ("Policy server", rig.client.lost or "connected"),
    ]
    seen = rig.seen()
    cameras = [(name, each.seq, round(now - each.t, 3)) for name, each in seen.items()]
    cameras += [(name, ticked.tick, round(now - ticked.sensed.t, 3)) for name in ticked.sensed.images]
    return {
        "title": config.task or rig.motion.task or "vlrl deploy",
        "said": ticked.stopped or rig.said,
        "bad": bool(ticked.stopped) or rig.bad,
        "facts": facts,
        "cameras": cameras,
        "joints": _joints(rig, ticked),
        "events": [_event(what, *rest) for what, rest in rig.events.items()],
    }


def _event(what: str, count: int, cause: str) -> str:
    times = f" ({count} times)" if count > 1 else ""
    return f"{what}{times}: {cause}" if cause else f"{what}{times}"


def _joints(rig: Rig, ticked: Ticked) -> list[tuple[str, float, str, float]]:
    """Name, value, unit, and where in what such a number spans; without those that the robot does not say."""
    rows = []
    for channel, value in zip(rig.motion.about.channels, ticked.sensed.measured.tolist(), strict=True):
        if math.isfinite(value):
            low, high = RANGES.get(channel.unit, (-1.0, 1.0))
            rows.append((channel.name, value, channel.unit, min(1.0, max(0.0, (value - low) / (high - low)))))
    return rows
