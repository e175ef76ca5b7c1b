"""What can be known to go wrong before anything moves."""

from __future__ import annotations

import math

from robot.deploy.config import Deploy
from robot.deploy.rig import Rig
from robot.motion.messages import About
from robot.serving.client import Client
from vlrl.types import UserError


def check(config: Deploy, about: About, client: Client, hz: float) -> None:
    """Raises UserError for what cannot work. `hz`: actions a second."""
    policy, spec, stale = config.policy, client.spec, config.safety.stale
    if len(spec.action) != len(about.controls):
        raise UserError(
            f"policy: its actions have {len(spec.action)} numbers, the robot takes {len(about.controls)}: "
            + ", ".join(each.name for each in about.controls)
        )
    if policy.mode == "rtc" and not spec.rtc:
        raise UserError(f"policy.mode: {client.model} cannot in-paint (real-time chunking): choose async or blend")
    actions = min(policy.execute or spec.chunk, spec.chunk)
    if policy.mode == "sync" and actions / hz > stale.hold_s:
        fit = max(1, math.floor(stale.hold_s * hz * 0.8))
        raise UserError(
            f"policy.mode sync: {actions} actions last {actions / hz:.1f} s, but safety.stale.hold_s is "
            f"{stale.hold_s:g} s: set policy.execute to {fit} or raise the other"
        )
    if policy.execute and policy.execute > spec.chunk:
        raise UserError(f"policy.execute: {policy.execute}: the policy gives {spec.chunk} actions at a time")


def checklist(rig: Rig) -> str:
    """What a dry run found, for people."""
    about, client, config = rig.motion.about, rig.client, rig.config
    ticked = rig.motion.latest()
    spec, mode = client.spec, config.policy.mode
    where = zip(about.channels, ticked.sensed.measured.tolist() if ticked else [], strict=False)
    lines = [
        f"robot: {about.hz:g} ticks a second, scheduled {about.priority}; {len(about.channels)} channels",
        *(f"  {channel.name}: {value:.2f} {channel.unit}" for channel, value in where),
        f"policy: {client.model}, {rig.chunks.hz:g} actions a second in chunks of {spec.chunk}, {mode}",
        *(f"camera {name}: {size[1]}x{size[0]}" for name, size in _sizes(rig).items()),
        f"recording: {config.record.out if config.record else 'none'}",
        "all is ready; nothing was sent",
    ]
    return "\n".join(lines)


def _sizes(rig: Rig) -> dict[str, tuple[int, ...]]:
    return {name: seen.picture.shape for name, seen in rig.seen().items()} | dict(rig.motion.about.images)
