"""The motion process as the deployment loop sees it: started, sent plans and petted, its ticks read."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, BinaryIO

import numpy as np

from robot.control import messages
from robot.control.messages import ActionPlan, MappedPictures, MotionInfo, MotionTiming, PipeEnd, memory
from robot.drivers.lerobot import hold_ports
from robot.safety.limits import Safety
from robot.types import RobotError, TickRecord
from vlrl.decoders import wire_pack
from vlrl.placement.workers import ALONE
from vlrl.types import UserError

KEPT = 10_000  # ticks that nobody has read
SEEN = 100  # of them, those that keep their pictures, which would fill the memory
FAREWELL = 10.0  # seconds for the process to leave its robot safe


@dataclass(frozen=True)
class Exit:
    """How the motion process ended.

    code: 0 asked to; 1 whoever started it was gone; 2 user error; 3 the governor stopped; 4 the robot was lost;
    6 emergency stop; 130, 143 by SIGINT, SIGTERM; negative: killed by that signal, its guardian left the robot safe.
    """

    code: int
    cause: str


class Motion:
    """A motion process and its robot, connected.

    Args:
        body: `{name: simulated, robot: tabletop}` and the like (`robot.drivers.lerobot`).
        patience: seconds for the robot to be connected, and for a first tick of an episode.

    Attributes:
        about: what it drives.
        task: the instruction of the scene, where the robot says one.
        lost: ticks that nobody read in time, `KEPT` of them are kept; dark: ticks whose pictures came too late, or
            were not read within `SEEN` ticks.

    Raises:
        UserError: there is no such body, it cannot be made, connected or held to these limits, or its port is in use.
        RobotError: the process died.
    """

    def __init__(self, body: Mapping[str, Any], safety: Safety, *, patience: float = 30.0):
        self._patience, self.task, self.lost, self.dark = patience, "", 0, 0
        self._news, self._sending = threading.Condition(), threading.Lock()
        self._ticks: deque[TickRecord] = deque(maxlen=KEPT)
        self._timings: deque[MotionTiming] = deque(maxlen=KEPT)
        self._latest: TickRecord | None = None
        self._began = self._first = self._asked = 0
        self._info: MotionInfo | None = None
        self._last_words: Mapping[str, Any] | None = None
        self._failed, self._gone = "", False
        self._ports = contextlib.ExitStack()
        leases = self._ports.enter_context(hold_ports(body, "robot"))
        self._memory = memory()
        self._pictures = MappedPictures(self._memory.fileno())
        self._process, self._line, self._alive = _start(self._memory.fileno(), leases)
        self._reader = threading.Thread(target=self._read, name="motion", daemon=True)
        self._reader.start()
        self._tell("first", {"body": dict(body), "safety": safety.model_dump(mode="json", exclude_unset=True)})
        try:
            self._await(lambda: self._info is not None, patience, "connecting the robot")
        except BaseException:
            self.close()
            raise

    @property
    def info(self) -> MotionInfo:
        return self._info

    @property
    def alive(self) -> bool:
        """Whether it still ticks, as far as is known."""
        return not self._gone

    @property
    def fault(self) -> str:
        """Why it is gone, in one line; '' while it is alive and after a close that was asked for."""
        if not self._gone:
            return ""
        ended = self._exit()
        return "" if ended.code == 0 else ended.cause

    @property
    def pid(self) -> int:
        return self._process.pid

    def begin(self, seed: int) -> TickRecord:
        """Begins an episode -> its first tick. Plans of the one before are forgotten.

        Raises:
            RobotError: the scene cannot be made, or the process is gone.
        """
        self._asked, self._failed = self._asked + 1, ""
        self._tell("begin", {"seed": seed})
        self._await(lambda: self._began >= self._asked or self._failed, self._patience, "beginning an episode")
        if self._failed:
            self._asked -= 1
            raise RobotError(self._failed)
        return self._first

    def idle(self) -> None:
        """No plans follow until the next `begin`; the robot holds, and that is no fault."""
        self._tell("idle", {})

    def plan(self, plan: ActionPlan) -> None:
        """Raises ValueError: not as many numbers as `about.controls`."""
        if plan.actions.shape[1] != len(self.info.controls):
            raise ValueError(f"actions of {plan.actions.shape[1]} numbers for {len(self.info.controls)} controls")
        self._send(messages.pack_plan(plan))

    def hand(self, target: np.ndarray, for_s: float) -> None:
        """A person's target, float32 [A] of `about.channels`; it counts before any plan for so many seconds."""
        target = np.asarray(target, np.float32)
        if target.shape != (len(self.info.channels),):
            raise ValueError(f"a target of shape {target.shape} for {len(self.info.channels)} channels")
        self._tell("hand", {"for_s": for_s}, {"target": target})

    def pet(self) -> None:
        """Says that somebody is there; all other messages say so too. Needed every `safety.silence_s` in an episode."""
        self._tell("pet", {})

    def held(self) -> None:
        """A sign of the dead man, where `safety.dead_man` is a key of the terminal; needed every `within_s`."""
        self._tell("held", {})

    def stop(self, cause: str, *, emergency: bool = False) -> None:
        """Brakes and holds until `rearm`. An emergency shows in the exit code."""
        self._tell("stop", {"cause": cause, "emergency": emergency})

    def rearm(self) -> None:
        """A person says that the robot may move again."""
        self._tell("rearm", {})

    def latest(self) -> TickRecord | None:
        return self._latest

    def ticks(self) -> list[TickRecord]:
        """Those since the last call, in order."""
        with self._news:
            ticks = list(self._ticks)
            self._ticks.clear()
        return ticks

    def timings(self) -> list[MotionTiming]:
        """How punctual those since the last call were, in order."""
        with self._news:
            timings = list(self._timings)
            self._timings.clear()
        return timings

    def wait(self, tick: int, timeout: float) -> TickRecord:
        """The newest tick, once it is `tick` or a later one.

        Raises:
            RobotError: it did not come in time, or the process is gone.
        """
        self._await(lambda: self._latest is not None and self._latest.tick >= tick, timeout, f"waiting for tick {tick}")
        return self._latest

    def close(self) -> Exit:
        """Leaves the robot safe and ends the process and its guardian. May be called twice."""
        if not self._gone:
            self._tell("close", {})
        try:
            self._process.wait(FAREWELL)
        except subprocess.TimeoutExpired:
            self._process.kill()  # its guardian does the rest
            self._process.wait()
        self._reader.join()
        if not self._alive.closed:  # its guardian may still be at work, with the port
            select.select([self._alive], [], [], FAREWELL)
            self._alive.close()
        self._line.close()
        self._memory.close()
        self._ports.close()
        return self._exit()

    def _exit(self) -> Exit:
        code = self._process.wait()
        if code < 0:
            return Exit(code, f"the motion process died (signal {-code})")
        reply = self._last_words or {}
        return Exit(code, reply.get("cause") or ("" if code == 0 else f"the motion process ended (exit status {code})"))

    def _tell(self, kind: str, fields: Mapping[str, Any], arrays: Mapping[str, np.ndarray] | None = None) -> None:
        self._send(wire_pack({"kind": kind, **fields}, arrays))

    def _send(self, message: bytes) -> None:
        """To a process that is gone nothing is sent: `alive` says so."""
        with self._sending:
            try:
                self._line.send(message)
            except (EOFError, OSError):
                return

    def _await(self, done: Callable[[], Any], timeout: float, what: str) -> None:
        with self._news:
            self._news.wait_for(lambda: done() or self._gone, timeout)
        if done():
            return
        if self._gone and (self._last_words or {}).get("kind") == "user_error":
            raise UserError(self._last_words["cause"])
        raise RobotError(f"{what}: {self.fault if self._gone else f'nothing came in {timeout:g} s'}")

    def _read(self) -> None:
        """The reader thread's whole life."""
        try:
            while True:
                select.select([self._line], [self._line] if self._line.pending else [], [], 0.05)
                for message in self._line.receive():
                    self._take(*messages.read(message))
                with self._sending:
                    self._line.flush()
        except (EOFError, OSError, ValueError):
            pass
        with self._news:
            self._gone = True
            self._news.notify_all()

    def _take(self, kind: str, fields: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
        with self._news:
            if kind == "tick":
                self._tick(fields, arrays)
            elif kind == "about":
                self._info = messages.read_info(fields["about"])
            elif kind == "failed":
                self._failed = fields["cause"]
            else:
                self._last_words = {"kind": kind} | dict(fields)
            self._news.notify_all()

    def _tick(self, fields: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
        ticked = messages.read_ticked(fields, arrays, self._pictures)
        self.dark += bool(fields["pictures"]) and not ticked.sensed.images
        self.lost += len(self._ticks) == KEPT
        self._ticks.append(ticked)
        if len(self._ticks) > SEEN and (old := self._ticks[-SEEN - 1]).sensed.images:
            self._ticks[-SEEN - 1] = replace(old, sensed=replace(old.sensed, images={}))
            self.dark += 1
        self._timings.append(MotionTiming(**fields["timing"]))
        self._latest, self.task = ticked, fields["task"]
        if fields["began"] > self._began:
            self._began, self._first = fields["began"], ticked


def _start(memory_file: int, leases: Sequence[int]) -> tuple[subprocess.Popen[bytes], PipeEnd, BinaryIO]:
    """The process, the line to it, and a pipe that ends with it and its guardian.

    In a session of its own: Ctrl-C in a terminal is for its parent. It and its guardian inherit the leases, so that a
    port is held until both are gone.
    """
    ours, theirs = socket.socketpair()
    alive, held = os.pipe()
    inherited = (theirs.fileno(), memory_file)
    process = subprocess.Popen(
        [sys.executable, "-m", "robot.control.main", *map(str, inherited)],
        pass_fds=(*inherited, held, *leases),
        env=os.environ | ALONE | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stdin=subprocess.DEVNULL,
        stdout=2,  # what a driver prints is no result of ours
        start_new_session=True,
    )
    theirs.close()
    os.close(held)
    return process, PipeEnd(ours), open(alive, "rb", buffering=0)
