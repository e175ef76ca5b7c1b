"""A robot of lerobot from its configuration's name and options, made by lerobot itself."""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from collections.abc import Mapping
from typing import Any, Literal

from robot.motion.bodies.lerobot_bus import buses_of
from vlrl.strict import suggest
from vlrl.types import UserError


def made(kind: str, options: Mapping[str, Any]) -> Any:
    """`lerobot.robots.Robot` of a type and the options of its configuration; nothing is connected.

    Cameras that the options do not name are not opened. A read that fails is not repeated by the driver unless the
    options say so: each try takes longer than a tick, and the motion process asks again at the next one.

    Raises:
        UserError: lerobot is missing, there is no such type, or an option is wrong.
    """
    try:
        import draccus
        from lerobot.robots import RobotConfig, make_robot_from_config
    except ImportError as error:
        raise UserError(f"robot: needs lerobot: pip install 'vlrl[robot]' ({_line(error)})") from None
    config = _config_class(RobotConfig, kind)
    if "num_read_retries" in config.__dataclass_fields__:
        options = {"num_read_retries": 0} | dict(options)
    for name in options:
        if name not in config.__dataclass_fields__:
            raise UserError(
                f"robot.{name}: {kind} has no such option{suggest(name, list(config.__dataclass_fields__))}"
            )
    try:
        robot = make_robot_from_config(draccus.decode(config, dict(options)))
        if "cameras" not in options and robot.cameras and buses_of(robot):  # set by default, and separate from the bus
            robot = make_robot_from_config(draccus.decode(config, dict(options) | {"cameras": {}}))
        return robot
    except Exception as error:  # draccus and the robots' own checks raise what they like
        raise UserError(f"robot: {kind} cannot be made: {_line(error)}") from None


def drive_of(drive: str) -> Literal["position", "speed"]:
    """Raises UserError where it is neither."""
    if drive not in ("position", "speed"):
        raise UserError(f"robot.drive: {drive!r}: must be position or speed")
    return drive


def _config_class(configs: Any, kind: str) -> Any:
    """Imports lerobot's robots, the likeliest first, until one of them knows the name; then other people's packages."""
    import lerobot.robots

    modules = [each.name for each in pkgutil.iter_modules(lerobot.robots.__path__) if each.ispkg]
    modules.sort(key=lambda name: -difflib.SequenceMatcher(None, name, kind).ratio())
    for module in [f"lerobot.robots.{name}" for name in modules] + [None]:
        if kind in configs.get_known_choices():
            return configs.get_choice_class(kind)
        _load(module)
    if kind in configs.get_known_choices():
        return configs.get_choice_class(kind)
    raise UserError(f"robot.type: lerobot has no {kind!r}{suggest(kind, list(configs.get_known_choices()))}")


def _load(module: str | None) -> None:
    """A robot whose own libraries are missing does not stand in the way of the others."""
    from lerobot.utils.import_utils import register_third_party_plugins

    try:
        importlib.import_module(module) if module else register_third_party_plugins()
    except ImportError:
        return


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
