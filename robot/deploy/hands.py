"""A person's hand on the robot: lerobot's teleoperators, in a process of their own.

Started as `python -m robot.deploy.hands PIPE`: is sent {"type", "options"}, and then sends {"names", "takes"} with the
array `action` RATE times a second, or {"trouble"}. `takes`: the device itself says that a person intervenes.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from importlib import import_module
from multiprocessing.connection import Connection
from pkgutil import iter_modules
from typing import Any

import numpy as np

from robot.deploy.child import Child, Sender, until_closed
from robot.wire import unpack
from vlrl.types import UserError

RATE = 60  # actions a second
OLD_S = 0.3  # an action older than this is no hand
FOR_S = 0.15  # seconds for which one counts
RETRY_S = 2.0


class Hands:
    """The newest action of a teleoperator.

    Args:
        kind, options: of lerobot's config.
        channels: names of the robot's targets, in order.

    Raises:
        UserError: lerobot knows no such device, or it lacks a channel.
    """

    def __init__(self, kind: str, options: Mapping[str, Any], channels: Sequence[str]):
        self._channels, self._lock = tuple(channels), threading.Lock()
        self._action: np.ndarray | None = None
        self._at, self._takes, self.trouble = 0.0, False, "no action yet"
        self._child = Child("robot.deploy.hands", {"type": kind, "options": dict(options)}, self._hear, self._died)

    @property
    def takes(self) -> bool:
        """The device says that a person intervenes."""
        with self._lock:
            return self._takes and time.monotonic() - self._at < OLD_S

    def target(self) -> np.ndarray | None:
        """float32 [A]; None where the device says nothing."""
        with self._lock:
            return self._action if time.monotonic() - self._at < OLD_S else None

    def close(self) -> None:
        self._child.close()

    def _hear(self, fields: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
        with self._lock:
            if "trouble" in fields:
                self.trouble = fields["trouble"]
                return
            said = dict(zip(fields["names"], arrays["action"], strict=True))
            missing = [name for name in self._channels if name not in said]
            self.trouble = f"it does not give {missing[0]}" if missing else ""
            if not missing:
                self._action = np.array([said[name] for name in self._channels], np.float32)
                self._at, self._takes = time.monotonic(), fields["takes"]

    def _died(self) -> None:
        self.trouble = "the teleoperator's process died"


def made(kind: str, options: Mapping[str, Any]) -> Any:
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
    for module in iter_modules(lerobot.teleoperators.__path__):
        with contextlib.suppress(Exception):  # each asks for libraries of its own
            import_module(f"lerobot.teleoperators.{module.name}")
    register_third_party_plugins()
    try:
        config = draccus.decode(TeleoperatorConfig, {"type": kind, **options})
        return make_teleoperator_from_config(config)
    except Exception as error:  # draccus and each device raise errors of their own
        raise UserError(f"teleop: {' '.join(str(error).split())}") from None


def follow(device: Any, sender: Sender) -> None:
    """Connects and sends what the hand does, for ever; what goes wrong is told and tried again."""
    while True:
        try:
            if not device.is_connected:
                device.connect(calibrate=False)
            while True:
                began = time.monotonic()
                action = {name: float(value) for name, value in device.get_action().items()}
                takes = _takes(device)
                numbers = np.array(list(action.values()), np.float32)
                sender.send({"names": list(action), "takes": takes}, {"action": numbers})
                time.sleep(max(0.0, began + 1 / RATE - time.monotonic()))
        except Exception as error:  # the border to drivers, which raise what they like
            sender.send({"trouble": " ".join(str(error).split()) or type(error).__name__})
        with contextlib.suppress(Exception):
            device.disconnect()
        time.sleep(RETRY_S)


def _takes(device: Any) -> bool:
    events = getattr(device, "get_teleop_events", None)
    return bool(events and any(value and "intervention" in str(name) for name, value in events().items()))


def main(descriptor: int) -> None:
    pipe = Connection(descriptor)
    sender = Sender(pipe)
    fields, _ = unpack(pipe.recv_bytes())
    try:
        device = made(fields["type"], fields["options"])
    except UserError as error:
        sender.send({"user_error": str(error)})
        return
    sender.send({})
    threading.Thread(target=follow, args=(device, sender), daemon=True).start()
    until_closed(pipe)


if __name__ == "__main__":
    main(int(sys.argv[1]))
