"""The bodies that come with the package, by name. Imports none of them, so no driver and no simulator."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from robot.motion.body import Body
from vlrl.plugins import load_plugin
from vlrl.strict import suggest
from vlrl.types import UserError

BODIES = MappingProxyType(
    {
        "simulated": "robot.motion.bodies.simulated:Simulated",
        "lerobot": "robot.motion.bodies.lerobot_body:LerobotBody",
        "replay": "robot.motion.bodies.replay:Replay",
    }
)


def make(name: str, options: Mapping[str, Any]) -> Body:
    """A body by its name in BODIES, or as `my_module:MyBody` from anywhere on the Python path. It takes nothing yet.

    Raises:
        UserError: there is no such body, it does not take one of the options, or it cannot be made of them.
    """
    found = _find(BODIES.get(name, name))
    known = inspect.signature(found).parameters
    open_ended = any(each.kind is each.VAR_KEYWORD for each in known.values())
    named = [each.name for each in known.values() if each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL)]
    for option in options:
        if option not in known and not open_ended:
            raise UserError(f"robot.{option}: {name} has no such option{suggest(option, named)}")
    for each in known.values():
        if each.default is each.empty and each.name in named and each.name not in options:
            raise UserError(f"robot.{each.name}: is required for {name}")
    return found(**options)


def _find(target: str) -> Any:
    module, colon, attribute = target.partition(":")
    if not (colon and module and attribute.isidentifier()):
        raise UserError(f"robot.name: unknown body {target!r}{suggest(target, [*BODIES, 'my_module:MyBody'])}")
    return load_plugin("body", target, "robot.name")
