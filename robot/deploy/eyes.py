"""The process that holds the cameras: lerobot's own, by their config's type names. It may load torch; we do not.

Started as `python -m robot.deploy.eyes PIPE` with an inherited file descriptor. It is sent {"cameras": {name: config}}
once, answers {} or {"user_error"}, and from then on sends each new picture, {"camera", "seq", "t", "changed"} and the
array `picture`, and each change of a camera's trouble, {"camera", "trouble"}. It ends when the pipe does.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Mapping
from importlib import import_module
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from robot.deploy.child import Sender, until_closed
from robot.wire import unpack
from vlrl.system.clock import boottime
from vlrl.types import UserError

PATIENCE_MS = 500  # for a new picture, before a camera is said to be silent
SILENT = 4  # times in a row after which it is opened again
RETRY = (0.5, 5.0)  # seconds until a camera that cannot be opened is tried again: first, and at most


def made(cameras: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """lerobot's cameras, not yet opened.

    Raises:
        UserError: lerobot is missing, or a config is not one of its.
    """
    try:
        import draccus
        from lerobot.cameras.configs import CameraConfig
        from lerobot.cameras.utils import make_cameras_from_configs
        from lerobot.utils.import_utils import register_third_party_plugins
    except ImportError as error:
        raise UserError(f"cameras: needs lerobot: pip install 'vlrl[robot]' ({str(error).splitlines()[0]})") from None
    for package in ("opencv", "zmq", "realsense", "reachy2_camera"):
        with contextlib.suppress(ImportError):  # each asks for a library of its own
            import_module(f"lerobot.cameras.{package}")
    register_third_party_plugins()
    built = {}
    for name, options in cameras.items():
        try:
            built |= make_cameras_from_configs({name: draccus.decode(CameraConfig, dict(options))})
        except Exception as error:  # draccus and each camera raise errors of their own
            raise UserError(f"cameras.{name}: {' '.join(str(error).split())}") from None
    return built


def watch(name: str, camera: Any, sender: Sender) -> None:
    """Opens a camera and sends what it shows, for ever; what goes wrong is told and tried again."""
    wait, seq, changed, last = RETRY[0], 0, boottime(), None
    while True:
        try:
            camera.connect()
            sender.send({"camera": name, "trouble": ""})
            for picture in shown(camera):
                now, wait = boottime(), RETRY[0]
                if last is None or not np.array_equal(picture, last):
                    changed, last = now, picture.copy()
                seq += 1
                sender.send({"camera": name, "seq": seq, "t": now, "changed": changed}, {"picture": last})
        except Exception as error:  # the border to drivers, which raise what they like
            sender.send({"camera": name, "trouble": " ".join(str(error).split()) or type(error).__name__})
        with contextlib.suppress(Exception):
            camera.disconnect()
        time.sleep(wait)
        wait = min(2 * wait, RETRY[1])


def shown(camera: Any) -> Any:
    """New pictures, uint8 [height, width, 3], as they come. Raises TimeoutError after SILENT times without one."""
    silent = 0
    while True:
        try:
            picture = camera.async_read(timeout_ms=PATIENCE_MS)
        except TimeoutError:
            silent += 1
            if silent >= SILENT:
                raise
            continue
        silent = 0
        yield np.ascontiguousarray(picture, np.uint8)


def main(descriptor: int) -> None:
    threading.excepthook = lambda arguments: None  # cameras' own threads end with tracebacks; `trouble` tells it
    pipe = Connection(descriptor)
    sender = Sender(pipe)
    fields, _ = unpack(pipe.recv_bytes())
    try:
        cameras = made(fields["cameras"])
    except UserError as error:
        sender.send({"user_error": str(error)})
        return
    sender.send({})
    for name, camera in cameras.items():
        threading.Thread(target=watch, args=(name, camera, sender), daemon=True).start()
    until_closed(pipe)


if __name__ == "__main__":
    main(int(sys.argv[1]))
