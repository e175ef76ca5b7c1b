"""A person's hand on the robot: lerobot's teleoperators, in a process of their own.

Started as `python -m robot.deploy.teleop PIPE`: is sent {"type", "options", "channels"}, answers {} or {"user_error"},
and then sends {"takes"} with the array `action` float32 [A] RATE times a second, or {"trouble"}. `takes`: the device
itself says that a person intervenes.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from difflib import SequenceMatcher
from importlib import import_module
from multiprocessing.connection import Connection
from pkgutil import iter_modules
from typing import Any

import numpy as np

from robot.deploy.cameras import PipedChild, Sender, until_closed
from vlrl.decoders import wire_unpack
from vlrl.system.clock import boottime
from vlrl.types import UserError

RATE = 60  # actions a second
OLD_S = 0.3  # an action older than this is no hand
FOR_S = 0.15  # seconds for which one counts
RETRY_S = 2.0


class TeleopDevice:
    """The newest action of a teleoperator.

    Args:
        kind, options: of lerobot's config.
        channels: names of the robot's targets, in order.

    Raises:
        UserError: lerobot knows no such device, or it lacks a channel.
    """

    def __init__(self, kind: str, options: Mapping[str, Any], channels: Sequence[str]):
        self._lock = threading.Lock()
        self._action: np.ndarray | None = None
        self._at, self._takes, self.trouble = 0.0, False, "no action yet"
        order = {"type": kind, "options": dict(options), "channels": list(channels)}
        self._child = PipedChild("robot.deploy.teleop", order, self._hear, self._died)

    @property
    def takes(self) -> bool | None:
        """Whether the device says that a person intervenes; None where it says nothing."""
        with self._lock:
            return self._takes if boottime() - self._at < OLD_S else None

    def target(self) -> np.ndarray | None:
        """float32 [A]; None where the device says nothing."""
        with self._lock:
            return self._action if boottime() - self._at < OLD_S else None

    def close(self) -> None:
        self._child.close()

    def _hear(self, fields: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
        with self._lock:
            if "trouble" in fields:
                self.trouble = fields["trouble"]
                return
            self._action, self.trouble = arrays["action"], ""
            self._at, self._takes = boottime(), fields["takes"]

    def _died(self) -> None:
        self.trouble = "the teleoperator's process died"


def make_teleoperator(kind: str, options: Mapping[str, Any]) -> Any:
    """lerobot's teleoperator, not yet connected.

    Raises:
        UserError: lerobot is missing, or does not know it.
    """
    try:
        import draccus
        import lerobot.teleoperators
        from lerobot.teleoperators.config import TeleoperatorConfig
        from lerobot.teleoperators.utils import make_teleoperator_from_config
        from lerobot.utils.import_utils import register_third_party_plugins
    except ImportError as error:
        raise UserError(f"teleop: needs lerobot: pip install 'vlrl[robot]' ({str(error).splitlines()[0]})") from None
    names = [module.name for module in iter_modules(lerobot.teleoperators.__path__)]
    for name in sorted(names, key=lambda name: -SequenceMatcher(None, kind, name).ratio()):  # all of them take seconds
        if kind in TeleoperatorConfig.get_known_choices():
            break
        with contextlib.suppress(Exception):  # each asks for libraries of its own
            import_module(f"lerobot.teleoperators.{name}")
    register_third_party_plugins()
    try:
        config = draccus.decode(TeleoperatorConfig, {"type": kind, **options})
        return make_teleoperator_from_config(config)
    except Exception as error:  # draccus and each device raise errors of their own
        raise UserError(f"teleop: {' '.join(str(error).split())}") from None


def check(device: Any, kind: str, channels: Sequence[str]) -> None:
    """Raises UserError where the device does not say one of the robot's targets."""
    known: list[str] = []
    with contextlib.suppress(Exception):  # some cannot say it before they are connected, and then say no joints
        known = [str(name) for name in device.action_features]
    for name in channels:
        if name not in known:
            says = ", ".join(known) or "nothing of the kind"
            raise UserError(f"teleop.type: {kind} does not say {name}, by which the robot is driven; it says {says}")


def follow(device: Any, channels: Sequence[str], sender: Sender) -> None:
    """Connects and sends what the hand does, for ever; what goes wrong is told and tried again."""
    while True:
        try:
            device.connect(calibrate=False)
            while True:
                began = boottime()
                action = device.get_action()
                numbers = np.array([action[name] for name in channels], np.float32)
                sender.send({"takes": _takes(device)}, {"action": numbers})
                time.sleep(max(0.0, began + 1 / RATE - boottime()))
        except Exception as error:  # the border to drivers, which raise what they like
            sender.send({"trouble": " ".join(str(error).split()) or type(error).__name__})
        with contextlib.suppress(Exception):
            device.disconnect()
        with contextlib.suppress(Exception):  # a bus that cannot be told so stays open, and would never be tried again
            device.bus.port_handler.closePort()
        time.sleep(RETRY_S)


def _takes(device: Any) -> bool:
    events = getattr(device, "get_teleop_events", None)
    return bool(events and any(value and "intervention" in str(name) for name, value in events().items()))


def main(descriptor: int) -> None:
    pipe = Connection(descriptor)
    sender = Sender(pipe)
    fields, _ = wire_unpack(pipe.recv_bytes())
    try:
        device = make_teleoperator(fields["type"], fields["options"])
        check(device, fields["type"], fields["channels"])
    except UserError as error:
        sender.send({"user_error": str(error)})
        return
    sender.send({})
    threading.Thread(target=follow, args=(device, fields["channels"], sender), daemon=True).start()
    until_closed(pipe)


if __name__ == "__main__":
    main(int(sys.argv[1]))
