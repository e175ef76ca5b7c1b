"""Short names of the robots that come with the package. Imports none of them, so no simulator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any

from vlrl.plugins import check_module
from vlrl.types import UserError


@dataclass(frozen=True)
class RobotEntry:
    """A robot that can be named."""

    target: str  # module:Class
    needs: str  # what to install
    summary: str


_ROBOTS = MappingProxyType(
    {
        "tabletop": RobotEntry(
            "robot.sim.tabletop:Tabletop", "vlrl[sim]", "A hand over a table: reach, touch, push, pick; with scripts."
        ),
        "so101": RobotEntry(
            "robot.sim.so101:So101", "vlrl[sim]", "An arm like the SO-101: touch a disc; docs/emulator.md."
        ),
        "robosuite": RobotEntry(
            "robot.sim.robosuite:RobosuiteRobot", "vlrl[sim]", "robosuite 1.5: 17 tasks, 10 arms, 3 scripts."
        ),
        "metaworld": RobotEntry(
            "robot.sim.metaworld:MetaWorldRobot", "vlrl[sims]", "Meta-World: 50 tasks, with scripts."
        ),
        "pusht": RobotEntry("robot.sim.gym:PushT", "vlrl[sims]", "gym-pusht: push a T onto its place."),
        "aloha": RobotEntry("robot.sim.gym:Aloha", "vlrl[sims]", "gym-aloha: two arms hand over a cube, insert a peg."),
        "hil": RobotEntry("robot.sim.gym:Hil", "vlrl[sims]", "gym-hil: a Panda lifts a cube, sorts boxes."),
        "gym": RobotEntry(
            "robot.sim.gym:GymRobot", "vlrl[sims]", "Any Gymnasium environment with actions of real numbers."
        ),
        "remote": RobotEntry(
            "robot.sim.remote:Remote", "vlrl[sims]", "A simulator of another interpreter; docs/simulators.md."
        ),
        "envhub": RobotEntry(
            "robot.sim.remote:EnvHub",
            "lerobot",
            "An environment of lerobot's EnvHub, by its name on the hub or a folder.",
        ),
        "libero": RobotEntry("robot.sim.gym:LiberoRobot", "lerobot[libero]", "LIBERO: 130 tasks; docs/simulators.md."),
    }
)


def robots() -> Mapping[str, RobotEntry]:
    """Every robot that has a short name."""
    return _ROBOTS


def chosen(robot: str | Mapping[str, Any]) -> tuple[str, str, dict[str, Any]]:
    """A robot as a YAML names it, by name or as {name: ..., options}: its name, `module:Class`, and the options.

    Raises:
        UserError: as `resolve`.
    """
    options = {"name": robot} if isinstance(robot, str) else dict(robot)
    name = options.pop("name", "")
    return name, resolve(name), options


def resolve(name: str) -> str:
    """`module:Class` of a short name, or of `my_module:MyRobot` itself, which is not looked for here.

    Raises:
        UserError: neither, with the nearest right name.
    """
    module, colon, attribute = name.partition(":")
    if not colon and name in _ROBOTS:
        return _ROBOTS[name].target
    if module and attribute.isidentifier():
        check_module("robot", name, "robot")
        return name
    near = get_close_matches(name, _ROBOTS, 1)
    meant = f"did you mean {near[0]!r}?" if near else f"must be one of {', '.join(_ROBOTS)}, or my_module:MyRobot"
    raise UserError(f"robot: unknown robot {name!r}: {meant}")
