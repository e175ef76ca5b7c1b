"""Cameras in processes of their own, and the check that their images arrive."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from types import MappingProxyType
from typing import Any

import numpy as np

from robot.types import Channel
from vlrl.decoders import wire_pack, wire_unpack
from vlrl.system.children import end_child, start_child
from vlrl.system.clock import boottime
from vlrl.types import UserError

# A child process that holds devices and sends what they say; one that dies is started again.

AGAIN = 1.0  # seconds until one that died is started again
FAREWELL = 1.0  # seconds for it to end by itself


class PipedChild:
    """`python -m MODULE PIPE`: is sent an order once, answers {} or {"user_error"}, and then talks.

    Args:
        order: what JSON can hold.
        hear: called with each message, from a thread of ours.
        died: called when it has ended by itself; it is started again until it comes back.
        patience: seconds until it answers.

    Raises:
        UserError: what it says of the order, or it does not start.
    """

    def __init__(
        self,
        module: str,
        order: Mapping[str, Any],
        hear: Callable[[Mapping[str, Any], Mapping[str, np.ndarray]], None],
        died: Callable[[], None],
        patience: float = 60.0,
    ):
        self._module, self._order, self._hear, self._died, self._patience = module, dict(order), hear, died, patience
        self._closed = threading.Event()
        self._start()
        self._thread = threading.Thread(target=self._read, name=module, daemon=True)
        self._thread.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def close(self) -> None:
        """May be called twice."""
        self._closed.set()
        self._end()
        self._thread.join(FAREWELL)

    def _start(self) -> None:
        self._pipe, theirs = Pipe()
        self._process = start_child(
            [sys.executable, "-m", self._module, str(theirs.fileno())],
            pass_fds=(theirs.fileno(),),
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,  # drivers print each failed read; the child's messages say it once
            patience=FAREWELL,  # it sees that its pipe is closed, unless it hangs
        )
        theirs.close()
        answer: dict[str, Any] = {"user_error": f"{self._module} did not start in {self._patience:g} s"}
        with contextlib.suppress(EOFError, OSError):
            self._pipe.send_bytes(wire_pack(self._order))
            if self._pipe.poll(self._patience):
                answer, _ = wire_unpack(self._pipe.recv_bytes())
        if "user_error" in answer:
            self._end()
            raise UserError(answer["user_error"])

    def _end(self) -> None:
        self._pipe.close()
        end_child(self._process, FAREWELL)

    def _read(self) -> None:
        while not self._closed.is_set():
            try:
                self._hear(*wire_unpack(self._pipe.recv_bytes()))
            except (EOFError, OSError, ValueError, TypeError):  # TypeError: closed by `close` meanwhile
                self._revive()

    def _revive(self) -> None:
        if not self._closed.is_set():
            self._died()
        while not self._closed.wait(AGAIN):
            self._end()
            with contextlib.suppress(UserError):
                return self._start()
        return None


class Sender:
    """The child's side: messages of several threads on one pipe."""

    def __init__(self, pipe: Any):
        self._pipe, self._lock = pipe, threading.Lock()

    def send(self, fields: Mapping[str, Any], arrays: Mapping[str, np.ndarray] | None = None) -> None:
        """Ends the process where nobody listens any more."""
        try:
            with self._lock:
                self._pipe.send_bytes(wire_pack(fields, arrays))
        except OSError:
            os._exit(0)


def until_closed(pipe: Any) -> None:
    """Ends the child when the other side is gone; a driver's thread may hang, so it is not waited for."""
    with contextlib.suppress(EOFError, OSError):
        pipe.recv_bytes()  # nothing is sent any more
    os._exit(0)


# The process that holds the cameras: lerobot's own, by their config's type names. It may load torch; we do not.
#
# Started as `python -m robot.deploy.cameras PIPE` with an inherited file descriptor. It is sent {"cameras": {name:
# config}}
# once, answers {} or {"user_error"}, and from then on sends each new picture, {"camera", "seq", "t", "changed"} and the
# array `picture`, and each change of a camera's trouble, {"camera", "trouble"}. It ends when the pipe does.

PATIENCE_MS = 500  # for a new picture, before a camera is said to be silent
SILENT = 4  # times in a row after which it is opened again
RETRY = (0.5, 5.0)  # seconds until a camera that cannot be opened is tried again: first, and at most


def make_cameras(cameras: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
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
            for picture in read_frames(camera):
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


def read_frames(camera: Any) -> Any:
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
    fields, _ = wire_unpack(pipe.recv_bytes())
    try:
        cameras = make_cameras(fields["cameras"])
    except UserError as error:
        sender.send({"user_error": str(error)})
        return
    sender.send({})
    for name, camera in cameras.items():
        threading.Thread(target=watch, args=(name, camera, sender), daemon=True).start()
    until_closed(pipe)


# The cameras as the loop sees them: the newest picture of each, how old it is, and whether it still changes.


@dataclass(frozen=True, eq=False)
class CameraPicture:
    """A camera's newest picture."""

    picture: np.ndarray  # uint8 [height, width, 3], RGB
    seq: int
    t: float  # boottime() when it arrived
    changed: float  # boottime() since when it has been the same, pixel by pixel


class CameraProcess:
    """The camera process (`robot.deploy.cameras`). A camera or the process that dies is opened again for ever.

    Args:
        cameras: name -> lerobot's config of it.

    Raises:
        UserError: a config is not one of lerobot's.
    """

    def __init__(self, cameras: Mapping[str, Mapping[str, Any]]):
        self._cameras = {name: dict(options) for name, options in cameras.items()}
        self._pictures: dict[str, CameraPicture] = {}
        self._trouble: dict[str, str] = {}
        self._news = threading.Condition()
        self._base = 0  # added to the process' numbers, so that they grow also when it is started again
        self._child = PipedChild("robot.deploy.cameras", {"cameras": self._cameras}, self._hear, self._died)

    @property
    def pid(self) -> int:
        return self._child.pid

    def latest(self) -> Mapping[str, CameraPicture]:
        """Of those cameras that have shown something, the newest picture, in the order in which they are named."""
        with self._news:
            return {name: self._pictures[name] for name in self._cameras if name in self._pictures}

    def trouble(self) -> Mapping[str, str]:
        """What is wrong with which camera; {} while all is well."""
        with self._news:
            return {name: text for name, text in self._trouble.items() if text}

    def wait(self, seconds: float) -> None:
        """Until every camera has shown something.

        Raises:
            UserError: one has not.
        """
        with self._news:
            if self._news.wait_for(lambda: len(self._pictures) == len(self._cameras), seconds):
                return
            name = next(name for name in self._cameras if name not in self._pictures)
            raise UserError(f"cameras.{name}: no picture in {seconds:g} s: {self._trouble.get(name) or 'it is silent'}")

    def close(self) -> None:
        """May be called twice."""
        self._child.close()

    def _hear(self, fields: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
        with self._news:
            if "trouble" in fields:
                self._trouble[fields["camera"]] = fields["trouble"]
            else:
                picture = CameraPicture(arrays["picture"], self._base + fields["seq"], fields["t"], fields["changed"])
                self._pictures[fields["camera"]] = picture
            self._news.notify_all()

    def _died(self) -> None:
        with self._news:
            self._trouble = dict.fromkeys(self._cameras, "the camera process died")
            self._base = max([self._base, *(picture.seq for picture in self._pictures.values())])


# Whether the cameras still see what the robot does.

MOVED = MappingProxyType({"deg": 3.0, "rad": 0.05, "m": 0.01, "%": 5.0})  # so far, a camera must have noticed it
PLAIN = 6  # of 255: a picture without larger differences shows nothing: a cap, a broken sensor


@dataclass(frozen=True)
class CameraVerdict:
    """What is wrong with the cameras: '' or a cause in one line; hold first, then stop."""

    hold: str = ""
    stop: str = ""


class Lookout:
    """Judges each tick's pictures. A still robot before a noiseless camera is no fault: a picture that stays the same
    counts as frozen only once the robot has moved under it.

    Args:
        cameras: names that are to show something.
        stale_s, stop_s: seconds without a new picture until hold, and until stop.
    """

    def __init__(self, cameras: Sequence[str], channels: Sequence[Channel], stale_s: float, stop_s: float):
        self._cameras, self._stale_s, self._stop_s = tuple(cameras), stale_s, stop_s
        self._far = np.array([MOVED.get(channel.unit, np.inf) for channel in channels])
        self._far[[channel.kind == "speed" for channel in channels]] = np.inf
        # camera -> since when the same, where the robot was then, and whether it has moved since
        self._at: dict[str, tuple[float, np.ndarray, bool]] = {}
        self._plain: dict[str, float] = {}  # camera -> since when it shows one colour only
        self._start: float | None = None

    def judge(self, seen: Mapping[str, CameraPicture], measured: np.ndarray, now: float) -> CameraVerdict:
        """measured: float32 [A], where each channel is."""
        self._start = now if self._start is None else self._start
        gaps = [(*self._gap(name, seen.get(name), measured, now), name) for name in self._cameras]
        gap, what, name = max(gaps, default=(0.0, "", ""))
        cause = f"camera {name}: {what} for {gap:.1f} s"
        return CameraVerdict(cause if gap > self._stale_s else "", cause if gap > self._stop_s else "")

    def _gap(self, name: str, seen: CameraPicture | None, measured: np.ndarray, now: float) -> tuple[float, str]:
        if seen is None:
            return now - self._start, "no picture"
        since, there, moved = self._at.get(name, (None, measured, False))
        moved = since == seen.changed and (moved or bool((np.abs(measured - there) > self._far).any()))
        self._at[name] = (seen.changed, there if since == seen.changed else measured.copy(), moved)
        plain = np.ptp(seen.picture[::8, ::8]) < PLAIN
        self._plain[name] = self._plain.get(name, seen.t) if plain else now
        if moved and seen.t > seen.changed:
            return now - seen.changed, "the same picture while the robot moves"
        if plain and seen.t - self._plain[name] > now - seen.t:
            return now - self._plain[name], "one colour only"
        return now - seen.t, "no new picture"


if __name__ == "__main__":
    main(int(sys.argv[1]))
