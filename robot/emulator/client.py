"""An emulator in a process of its own, for tests and programs."""

from __future__ import annotations

import json
import os
import selectors
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from robot.emulator.calibration import write_calibration
from robot.emulator.talk import Talk
from robot.so101_model import JOINTS
from vlrl.system.children import end_child, start_child
from vlrl.types import UserError

FAREWELL = 10.0  # seconds for it to end by itself
PATIENCE = 60.0  # seconds until it is ready: with cameras it loads a renderer


class Emulator:
    """Runs while its context is open; ends with this process, however that ends.

    Args:
        cameras: name (`front`, `top`) -> width, height in pixels.
        job: what the disc is for (`touch`).
        seed: of the first scene, and of faults by chance.
        fps: pictures a second of each camera.
        calibrated: False: servos as they left the factory, so that lerobot asks for calibration.

    Raises:
        UserError: on entering, it cannot be started.
    """

    port: str  # the follower's serial port: a link that is there while it is plugged in
    leader_port: str
    camera_ports: dict[str, int]  # TCP on 127.0.0.1, one for each camera
    socket: str  # where requests go, see `robot.emulator.control`

    def __init__(
        self,
        *,
        cameras: Mapping[str, tuple[int, int]] | None = None,
        job: str = "touch",
        seed: int = 0,
        fps: float = 30.0,
        calibrated: bool = True,
    ):
        self._setup = {"cameras": dict(cameras or {}), "job": job, "seed": seed, "fps": fps, "calibrated": calibrated}
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Emulator:
        self._folder = tempfile.mkdtemp(prefix="so101-")
        self.socket = os.path.join(self._folder, "control")
        self._talk = Talk(self.socket)
        setup = json.dumps(self._setup | {"folder": self._folder})
        path = os.pathsep.join(filter(None, sys.path))
        self._process = start_child(
            [sys.executable, "-m", "robot.emulator", setup],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
            patience=FAREWELL,  # it sees that its standard input is closed
        )
        try:
            about = self._ready()
        except BaseException:
            self.close()
            raise
        self.port, self.leader_port = about["port"], about["leader_port"]
        self.camera_ports = {name: where[2] for name, where in about["cameras"].items()}
        return self

    def _ready(self) -> dict[str, Any]:
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            line = self._process.stdout.readline() if selector.select(PATIENCE) else b""
        said = json.loads(line) if line.startswith(b"{") else {"error": "the emulator did not start"}
        if "error" in said:
            raise UserError(said["error"])
        return said

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def camera_port(self) -> int:
        """The TCP port of its only camera."""
        if len(self.camera_ports) != 1:
            raise UserError(f"emulator: {len(self.camera_ports)} cameras, each has its own of camera_ports")
        return next(iter(self.camera_ports.values()))

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, do: str, **options: Any) -> Any:
        """A request and its result (`robot.emulator.control`).

        Raises:
            UserError: it cannot be done, or the emulator is gone.
        """
        return self._talk.ask({"do": do, **options})

    def fault(self, kind: str, **options: Any) -> dict[str, Any]:
        return self.ask("fault", kind=kind, **options)

    def clear(self, kind: str | None = None) -> list[str]:
        return self.ask("clear", kind=kind)

    def scene(self, seed: int) -> dict[str, Any]:
        return self.ask("scene", seed=seed)

    def truth(self) -> dict[str, Any]:
        return self.ask("truth")

    def log(self, since: float = 0.0) -> list[dict[str, Any]]:
        """Events after a time of time.monotonic(): writes of goals and torque, faults (`robot.emulator.record`)."""
        return self.ask("log", since=since)

    def samples(self, since: float = 0.0) -> list[tuple[float, list[float]]]:
        """Where the follower's joints truly were: (time.monotonic(), degrees and percent [6]), about 100 a second."""
        return [(t, pose) for t, pose in self.ask("samples", since=since)]

    def stats(self) -> dict[str, Any]:
        return self.ask("stats")

    def lead(self, path: Sequence[tuple[float, Mapping[str, float] | Sequence[float]]]) -> None:
        """Moves the leader's hand through poses (degrees and percent), each so many seconds after the one before."""
        poses = [(s, [pose[name] for name in JOINTS] if isinstance(pose, Mapping) else list(pose)) for s, pose in path]
        self.ask("leader", path=poses)

    def calibration(self, folder: str | Path, name: str, arm: str = "follower") -> Path:
        """Writes lerobot's calibration file of an arm, for `calibration_dir: folder` and `id: name`."""
        return write_calibration(Path(folder), name, self.ask("calibration", arm=arm))

    def close(self) -> None:
        """Ends it. May be repeated."""
        self._talk.close()
        if self._process is not None:
            self._process.stdin.close()
            end_child(self._process, FAREWELL)
            self._process.stdout.close()
            self._process = None
        shutil.rmtree(self._folder, ignore_errors=True)
