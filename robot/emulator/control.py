"""What may be asked of a running emulator, in JSON lines over a Unix socket or in words on a terminal.

A request is {"do": word, options}; the answer {"ok": result} or {"error": one line}. Only its user may open the socket.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import select
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from robot.emulator.faults import KINDS
from robot.emulator.machine import Machine, Setup
from robot.emulator.servo import write_calibration
from robot.sim.so101 import JOINTS
from vlrl.decoders import parse_json
from vlrl.system.children import end_child, start_child
from vlrl.types import UserError

LONGEST = 1 << 20  # bytes of a request
HELP = (
    "fault KIND [servo=NAME] [count=N] [probability=P] [seconds=S] ... | clear [KIND] | scene SEED | truth | stats | "
    "leader SECONDS JOINT=DEGREES ... | quit; kinds: " + ", ".join(KINDS)
)


class Control:
    """Carries out requests. `quitting` is set by `quit`."""

    def __init__(self, machine: Machine):
        self.machine, self.quitting = machine, threading.Event()
        self._does: dict[str, Callable[..., Any]] = {
            "about": machine.describe,
            "fault": machine.fault,
            "clear": machine.clear,
            "scene": self._scene,
            "truth": machine.truth,
            "stats": machine.stats,
            "log": lambda since=0.0: machine.record.events(float(since)),
            "samples": lambda since=0.0: machine.record.samples(float(since)),
            "leader": self._leader,
            "calibration": machine.calibration,
            "quit": self.quitting.set,
        }

    def do(self, request: Any) -> Any:
        """Raises UserError for what cannot be done, with what can."""
        if not isinstance(request, Mapping) or not isinstance(request.get("do"), str):
            raise UserError('a request is {"do": word, options}')
        options = {str(key): value for key, value in request.items() if key != "do"}
        if request["do"] not in self._does:
            raise UserError(f"unknown request {request['do']!r}: must be one of {', '.join(self._does)}")
        try:
            return self._does[request["do"]](**options)
        except (TypeError, ValueError, OverflowError) as error:
            raise UserError(f"{request['do']}: {error}") from None

    def _scene(self, seed: int) -> dict[str, Any]:
        if not isinstance(seed, int) or seed < 0:
            raise UserError(f"scene: {seed!r}: must be a whole number of at least 0")
        return self.machine.scene(seed)

    def _leader(self, path: list[tuple[float, list[float]]]) -> None:
        for seconds, pose in path:
            if not 0 <= float(seconds) <= 3600 or len(pose) != len(JOINTS):
                raise UserError(f"leader: a path is of [seconds, [{len(JOINTS)} degrees]]")
        self.machine.lead([(float(seconds), [float(each) for each in pose]) for seconds, pose in path])

    def line(self, text: str) -> Any:
        """Carries out a line as a person types it, such as `fault late ms=80 count=1`."""
        word, *rest = text.split()
        plain = [each for each in rest if "=" not in each]
        named = {key: _value(value) for key, _, value in (each.partition("=") for each in rest if "=" in each)}
        if word == "leader" and len(plain) == 1:
            pose = self.machine.leader.pose() | named
            if len(pose) == len(JOINTS):
                return self.do({"do": "leader", "path": [[_value(plain[0]), list(pose.values())]]})
        first = {"fault": "kind", "clear": "kind", "scene": "seed"}.get(word)
        if word not in ("fault", "clear", "scene", "truth", "stats", "quit") or len(plain) > (first is not None):
            raise UserError(HELP)
        return self.do({"do": word, **({first: _value(plain[0])} if plain else {}), **named})


def _value(text: str) -> Any:
    """A number where it is one, else the text."""
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(text)
    return text


class Listener:
    """Answers requests at a Unix socket, each connection in a thread of its own. To be closed."""

    def __init__(self, control: Control, path: Path):
        self._control, self._socket = control, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.bind(str(path))
            path.chmod(0o600)
        except OSError as error:
            raise UserError(f"cannot listen at {path}: {error.strerror or error}") from None
        self._socket.listen()
        threading.Thread(target=self._accept, name="control", daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:  # closed
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rwb") as stream, contextlib.suppress(OSError):
            while line := stream.readline(LONGEST):
                stream.write(json.dumps(self._answer(line)).encode() + b"\n")
                stream.flush()

    def _answer(self, line: bytes) -> dict[str, Any]:
        try:
            return {"ok": self._control.do(parse_json(line))}
        except UserError as error:
            return {"error": str(error)}
        except ValueError as error:
            return {"error": f"not JSON: {error}"}

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


# The other end of an emulator's control socket.

TALK_PATIENCE = 10.0  # seconds for an answer


class Talk:
    """Asks at a control socket (`robot.emulator.control`), connected when first needed. To be closed."""

    def __init__(self, path: str):
        self._path, self._stream = path, None

    def ask(self, request: Mapping[str, Any]) -> Any:
        """The result of a request.

        Raises:
            UserError: it cannot be done, or nobody answers.
        """
        try:
            line = self._exchange(json.dumps(request).encode() + b"\n")
        except OSError as error:
            self.close()
            raise UserError(f"emulator: gone ({self._path}: {error.strerror or error})") from None
        if not line:
            raise UserError(f"emulator: gone ({self._path} was closed)")
        reply = json.loads(line)
        if "error" in reply:
            raise UserError(reply["error"])
        return reply["ok"]

    def _exchange(self, line: bytes) -> bytes:
        if self._stream is None:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as plug:
                plug.settimeout(TALK_PATIENCE)
                plug.connect(self._path)
                self._stream = plug.makefile("rwb")
        self._stream.write(line)
        self._stream.flush()
        return self._stream.readline()

    def close(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.close()


# An emulator in a process of its own, for tests and programs.

FAREWELL = 10.0  # seconds for it to end by itself
CLIENT_PATIENCE = 60.0  # seconds until it is ready: with cameras it loads a renderer


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
            line = self._process.stdout.readline() if selector.select(CLIENT_PATIENCE) else b""
        reply = json.loads(line) if line.startswith(b"{") else {"error": "the emulator did not start"}
        if "error" in reply:
            raise UserError(reply["error"])
        return reply

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
        """Events after a time of time.monotonic(): writes of goals and torque, faults (`robot.emulator.servo`)."""
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


# `vlrl emulate so101`: an emulator in a terminal. Commands are typed, one a line.


def main(options: argparse.Namespace) -> int:
    """Runs until `quit`, the end of its input or Ctrl-C.

    Raises:
        UserError: an option that cannot be.
    """
    cameras, ports = _cameras(options.camera)
    if not 0 < options.fps <= 240:
        raise UserError(f"--fps {options.fps}: must be more than 0 and at most 240")
    if options.seed < 0:
        raise UserError(f"--seed {options.seed}: must be at least 0")
    with tempfile.TemporaryDirectory(prefix="so101-") as scratch:
        folder = options.link or Path(scratch)
        _empty(folder)
        machine = Machine(Setup(folder, cameras, ports, options.fps, options.job, options.seed,
                                not options.uncalibrated))  # fmt: skip
        control = Control(machine)
        listener = Listener(control, folder / "control")
        before = signal.signal(signal.SIGTERM, lambda *_: control.quitting.set())
        try:
            print(_format_connection(machine, options), flush=True)
            _converse(control)
        except KeyboardInterrupt:
            print()
        finally:
            signal.signal(signal.SIGTERM, before)
            listener.close()
            machine.close()
            (folder / "control").unlink(missing_ok=True)
    return 0


def _cameras(texts: list[str]) -> tuple[dict[str, tuple[int, int]], dict[str, int]]:
    sizes, ports = {}, {}
    for text in texts:
        name, _, rest = text.partition("=")
        size, _, port = rest.partition(":")
        width, _, height = size.partition("x")
        if not (width.isdecimal() and height.isdecimal() and (port.isdecimal() or not port)):
            raise UserError(f"--camera {text!r}: write NAME=WIDTHxHEIGHT or NAME=WIDTHxHEIGHT:PORT, as front=640x480")
        sizes[name] = (int(width), int(height))
        if port:
            ports[name] = int(port)
    return sizes, ports


def _empty(folder: Path) -> None:
    """Makes the folder; links of an emulator that was killed are removed, anything else is not."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("so101", "so101_leader", "control"):
            left = folder / name
            if left.is_symlink() or left.is_socket():
                left.unlink()
            elif left.exists():
                raise UserError(f"--link {folder}: {name} is there and is no link: choose another folder")
    except OSError as error:
        raise UserError(f"--link {folder}: {error.strerror}") from None


def _format_connection(machine: Machine, options: argparse.Namespace) -> str:
    """What to put into lerobot's or vlrl's config."""
    about, lines = machine.describe(), []
    names = {"follower": options.id, "leader": f"{options.id}_leader"}
    home = ""
    if options.calibration:
        home = f" calibration_dir={options.calibration}"
        for arm, name in names.items():
            write_calibration(options.calibration, name, machine.calibration(arm))
    lines.append(f"follower  type=so101_follower port={about['port']} id={names['follower']}{home}")
    lines.append(f"leader    type=so101_leader port={about['leader_port']} id={names['leader']}{home}")
    for name, (width, height, port) in about["cameras"].items():
        config = {"type": "zmq", "server_address": "127.0.0.1", "port": port, "camera_name": name, "width": width,
                  "height": height, "fps": round(options.fps)}  # fmt: skip
        lines.append(f"camera    {name}: {json.dumps(config)}")
    lines.append(f"control   {machine.setup.folder / 'control'}")
    return "\n".join([*lines, "commands: " + HELP])


def _converse(control: Control) -> None:
    """Lines from stdin, carried out one by one until stdin ends; what is wrong with one is said."""
    if os.path.samestat(os.fstat(sys.stdin.fileno()), os.stat(os.devnull)):  # in the background: a signal ends it
        control.quitting.wait()
        return
    rest = b""
    while not control.quitting.is_set():
        if not select.select([sys.stdin.fileno()], [], [], 0.1)[0]:
            continue
        read = os.read(sys.stdin.fileno(), 4096)
        *lines, rest = (rest + read).split(b"\n")
        for line in filter(str.strip, (each.decode(errors="replace") for each in lines)):
            try:
                done = control.line(line)
            except UserError as error:
                done = str(error)
            if done is not None:
                print(done if isinstance(done, str) else json.dumps(done), flush=True)
        if not read:
            return
