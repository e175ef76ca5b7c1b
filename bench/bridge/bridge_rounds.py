"""Rounds of `bench/bridge.py costs`: round trips and loops of several bridges, taken in turn."""

from __future__ import annotations

import contextlib
import sys
from dataclasses import dataclass
from typing import Any

import bridge_table as table
from bridge_worker import Counter, Worker, hogs

WARM = 2  # round trips before each round that do not count


@dataclass(frozen=True)
class Arm:
    """One of the bridges: its server, its robot's computer, and how that is called."""

    name: str
    server: Worker
    robot: Worker
    options: dict[str, Any]


@dataclass(frozen=True)
class Setup:
    """What is served and shown."""

    kind: str  # of bridge_policy.KINDS
    height: int
    width: int
    folder: str
    wait_s: float = 0.0


def round_trips(arms: list[Arm], setup: Setup, rounds: int, requests: int) -> list[dict[str, Any]]:
    """A row for each arm."""
    print(f"round trips: {setup.kind}, {setup.width}x{setup.height}", file=sys.stderr)
    ports = _serve(arms, setup)
    shown = {"folder": setup.folder, "height": setup.height, "width": setup.width}
    for arm in arms:
        arm.robot("meet", port=ports[arm.server], **shown, **arm.options)
    taken: dict[str, list[dict[str, Any]]] = {arm.name: [] for arm in arms}
    for number in range(rounds):
        for arm in arms[number % len(arms) :] + arms[: number % len(arms)]:
            taken[arm.name].append(_round(arm, requests))
    rows = []
    for arm in arms:
        arm.robot("part")
        sent, received = _bytes(arm, ports[arm.server], shown)
        about = {"kind": setup.kind, "pictures": f"{setup.width}x{setup.height}", "arm": arm.name}
        rows.append(about | {"sent": sent, "received": received} | table.trips(taken[arm.name], requests))
    return rows


def _round(arm: Arm, requests: int) -> dict[str, Any]:
    arm.robot("trips", count=WARM)
    arm.server("taken")
    began = arm.server.cpu(), arm.robot.cpu()
    trips = arm.robot("trips", count=requests)
    used = arm.server.cpu() - began[0], arm.robot.cpu() - began[1]
    return {"trips": trips, "server_cpu": used[0], "robot_cpu": used[1]} | arm.server("taken")


def _bytes(arm: Arm, port: int, shown: dict[str, Any], requests: int = 10) -> tuple[int, int]:
    """Bytes of a round trip on the wire, both ways, without those of TCP itself."""
    with contextlib.closing(Counter("127.0.0.1", port)) as counter:
        arm.robot("meet", port=counter.port, **shown, **arm.options)
        arm.robot("trips", count=WARM)
        before = counter.sent, counter.received
        arm.robot("trips", count=requests)
        after = counter.sent, counter.received
        arm.robot("part")
    return (after[0] - before[0]) // requests, (after[1] - before[1]) // requests


def loops(arms: list[Arm], setup: Setup, rounds: int, hz: float, seconds: float, threshold: float, busy: int
          ) -> list[dict[str, Any]]:  # fmt: skip
    """A row for each arm."""
    print(f"loops: {hz} Hz, asks at {threshold:.0%}, {busy} hogs", file=sys.stderr)
    ports = _serve(arms, setup)
    asked = {"height": setup.height, "width": setup.width, "hz": hz, "seconds": seconds + 1, "threshold": threshold}
    taken: dict[str, list[dict[str, Any]]] = {arm.name: [] for arm in arms}
    for number in range(rounds):
        for arm in arms[number % len(arms) :] + arms[: number % len(arms)]:
            arm.server("taken")
            with hogs(busy):
                told = arm.robot("loop", port=ports[arm.server], folder=setup.folder, **asked, **arm.options)
            taken[arm.name].append(told | {"inferences": len(arm.server("taken")["policy"])})
    about = {"hz": hz, "threshold": threshold, "hogs": busy}
    return [about | {"arm": arm.name} | table.loops(taken[arm.name], hz, seconds) for arm in arms]


def _serve(arms: list[Arm], setup: Setup) -> dict[Worker, int]:
    """Server -> port."""
    servers = {arm.server for arm in arms}
    return {each: each("serve", folder=setup.folder, kind=setup.kind, wait_s=setup.wait_s) for each in servers}
