"""The motion process: holds the robot's port, the governor and the watchdog, and ticks whatever else happens.

Started as `python -m robot.control.main LINE MEMORY` with two inherited file descriptors. It leaves the robot safe on
every way out; its exit code says which one it was.
"""

from __future__ import annotations

import contextlib
import gc
import math
import mmap
import os
import select
import signal
import socket
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from robot.control.loop import (
    EMERGENCY,
    STOPPED,
    Loop,
    LostError,
    Plausible,
    Silence,
    TickClock,
    controls_of,
    format_error,
    prioritise,
)
from robot.control.messages import MappedPictures, MotionInfo, PipeEnd, pack_info, pack_ticked, read, read_plan
from robot.drivers.lerobot import make_driver
from robot.safety.estop import Held, Stops
from robot.safety.governor import Governor
from robot.safety.limits import Safety, narrowed
from robot.types import RobotDriver
from vlrl.decoders import wire_pack
from vlrl.system.children import move_to_scope
from vlrl.system.clock import boottime
from vlrl.types import UserError

# A second process that makes the robot safe when the motion process is killed, crashes or hangs.
#
# It is forked before the port is taken, with all that is needed already loaded, and waits. The motion process says
# goodbye when it ends in order; a pipe that closes without that is its death. While it ticks it also counts in memory
# that both see: a count that stands still is a hang, and the guardian ends the motion process.

GOODBYE = b"."
QUIET = 0  # the count while nothing is to be counted
END_S = 0.5  # seconds in which a process that was killed is gone, unless a driver keeps it in the kernel


class Guardian:
    """The motion process' side of its guardian.

    Args:
        body: made, not connected. The guardian uses its own copy, for `rest` and `close` alone.
        how: what to do when the motion process is gone.
        hang_s: seconds without a `beat` after the first one that count as a hang.
        leave: closes what the guardian must not keep open (the line to whoever started the motion process).
    """

    def __init__(self, body: RobotDriver, how: Literal["hold", "off"], hang_s: float, leave: Callable[[], None]):
        self._count, self._beats = mmap.mmap(-1, 8), QUIET
        reader, self._writer = os.pipe()
        ready, ours = os.pipe()
        sys.stderr.flush()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # libraries' threads: it uses none of what they hold
            self.pid = os.fork()
        if self.pid == 0:
            os.close(self._writer)
            _guard(body, how, reader, self._count, hang_s, leave, ours)
        os.close(reader)
        os.close(ours)
        os.read(ready, 1)  # before, what kills the group of this process would kill its guardian too
        os.close(ready)

    def beat(self) -> None:
        """The motion process ticks."""
        self._beats += 1
        self._count[:] = self._beats.to_bytes(8, "little")

    def pause(self) -> None:
        """What follows may take long: no beats are expected until the next one."""
        self._count[:] = QUIET.to_bytes(8, "little")

    def alive(self) -> bool:
        try:
            return os.waitpid(self.pid, os.WNOHANG) == (0, 0)
        except ChildProcessError:
            return False

    def goodbye(self) -> None:
        """The robot is safe: the guardian ends and does nothing."""
        with contextlib.suppress(OSError):
            os.write(self._writer, GOODBYE)
        with contextlib.suppress(OSError):
            os.close(self._writer)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)


def _guard(
    body: RobotDriver, how: Literal["hold", "off"], reader: int, count: mmap.mmap, hang_s: float, leave: Callable[[],
    None],
    ready: int,
) -> None:  # fmt: skip
    """The guardian's whole life; it never comes back."""
    code = 1
    try:
        os.setsid()  # what is sent to the group of the motion process, or comes from its terminal, is not for it
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(number, signal.SIG_IGN)
        leave()
        prioritise(body)
        parent = os.getppid()
        os.close(ready)
        why = _wait(reader, count, hang_s, parent)
        if why:
            began = time.monotonic()
            problems = body.rest(how)
            body.close()
            _guardian_say(why, how, (time.monotonic() - began) * 1e3, problems)
        code = 0
    finally:
        os._exit(code)  # the exit handlers are the motion process' own


def _wait(reader: int, count: mmap.mmap, hang_s: float, parent: int) -> str:
    """Waits for the end of the motion process: '' after a goodbye, or else what became of it."""
    last, since = QUIET.to_bytes(8, "little"), time.monotonic()
    while True:
        if select.select([reader], [], [], hang_s / 4)[0]:
            if os.read(reader, 1) == GOODBYE:
                return ""
            _await_end(parent)
            return "the motion process died"
        if os.getppid() != parent:  # a process that it started may still hold the pipe
            return "the motion process died"
        now, beats = time.monotonic(), count[:]
        if beats != last or beats == QUIET.to_bytes(8, "little"):
            last, since = beats, now
        elif now - since > hang_s:
            with contextlib.suppress(ProcessLookupError):
                os.kill(parent, signal.SIGKILL)  # two that write to one bus would be worse than none
            _await_end(parent)
            return f"the motion process hung for {now - since:.1f} s and was killed"


def _await_end(parent: int) -> None:
    """Until the process has closed all its files: its pipe may go before its port, which it had for itself alone."""
    until = time.monotonic() + END_S
    while os.getppid() == parent and time.monotonic() < until:
        time.sleep(0.001)


def _guardian_say(why: str, how: str, ms: float, problems: Sequence[str]) -> None:
    done = f"left the robot at torque {how!r} in {ms:.0f} ms" if how == "off" else f"holds the robot, after {ms:.0f} ms"
    with contextlib.suppress(OSError):
        os.write(2, f"guardian: {why}; {'; '.join(problems) or done}\n".encode())


# Signals that end the motion process: at once while it connects, between two ticks once it ticks.

ENDING = (signal.SIGTERM, signal.SIGINT)


class EndError(Exception):
    """The motion process shall end, with an exit code and why."""

    def __init__(self, code: int, cause: str):
        super().__init__(cause)
        self.code = code


class Signals:
    """Catches SIGTERM and SIGINT from now on; each raises EndError with exit code 128 and its number."""

    def __init__(self):
        self._busy, self._came = False, 0
        for number in ENDING:
            signal.signal(number, self._catch)

    @contextlib.contextmanager
    def later(self) -> Iterator[None]:
        """What is done meanwhile is not torn: EndError comes at its end."""
        self._busy = True
        try:
            yield
        finally:
            self._busy = False
        if self._came:
            self._end()

    def ignore(self) -> None:
        """From now on they come too late."""
        for number in ENDING:
            signal.signal(number, signal.SIG_IGN)

    def _catch(self, number: int, frame: object) -> None:
        self._came = number
        if not self._busy:
            self._end()

    def _end(self) -> None:
        raise EndError(128 + self._came, f"{signal.Signals(self._came).name} came")


# What the motion process does between connecting and leaving: it listens, ticks and tells.

TRIES = 3  # to get a first reading
SWEEP = 100  # ticks between two collections of garbage, in spare time


class MotionService:
    """Serves one connected body.

    Raises:
        UserError: limits that do not fit the robot.
        Exception: what the body raises when it gives no first reading.
    """

    def __init__(
        self,
        line: PipeEnd,
        memory: MappedPictures,
        body: RobotDriver,
        safety: Safety,
        guardian: Guardian | None,
        priority: str,
    ):
        self._line, self._memory, self._guardian = line, memory, guardian
        self._body, self._clock, self._task = body, TickClock(body.hz), ""
        self._safety, self._stops = safety, Stops(safety.estop)  # keys are the terminal's, so of whoever started it
        self._orders = {
            "plan": self._on_plan, "hand": self._on_hand, "begin": self._on_begin, "idle": self._on_idle,
            "pet": self._on_pet, "held": self._on_held, "stop": self._on_stop, "rearm": self._on_rearm,
            "close": self._on_close,
        }  # fmt: skip
        self._person = -math.inf  # boottime() of the last sign of the dead man that came over the line
        limits = narrowed(safety, body.ranges)
        self._loop = Loop(
            body,
            Governor(body.channels, limits, body.hz),
            Plausible(body.channels, controls_of(body), limits, body.hz),
            silence=Silence(safety.silence_s, safety.stale.stop_s),
            pressed=lambda: self._stops.pressed(),
            held=_dead_man(safety, lambda: self._person),
            pause=guardian.pause if guardian else lambda: None,
        )
        first = _first_reading(body)
        images = {name: image.shape[:2] for name, image in first.images.items()}
        line.send(pack_info(MotionInfo(body.hz, body.channels, controls_of(body), body.names, images, priority)))

    def run(self, signals: Signals) -> None:
        """Ticks until it is to end.

        Raises:
            EndError: asked to, or by a signal.
            EOFError: the other side is gone.
            LostError: the robot is.
        """
        gc.collect()
        gc.freeze()
        gc.disable()  # a collection may take longer than a tick
        self._clock.again()
        while True:
            with signals.later():
                self._listen()
                if self._guardian:
                    self._guardian.beat()
                timing = self._clock.begin()
                ticked = self._loop.do()
                self._line.send(pack_ticked(ticked, timing, self._loop.began, self._body.task, self._memory))
                self._use(self._clock.end(), ticked.tick)
            self._clock.wait()

    def _use(self, seconds: float, tick: int) -> None:
        """What can wait until the tick's work is done."""
        if seconds > 0.2 / self._body.hz and tick % SWEEP == 0:
            gc.collect(0)
        with contextlib.suppress(Exception):  # a reading of a servo's health that fails is none; the tick has its own
            self._body.spare(seconds)

    def _listen(self) -> None:
        for message in self._line.receive():
            kind, fields, arrays = read(message)
            self._loop.end_silence()
            self._orders[kind](fields, arrays)

    def _on_plan(self, fields: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
        self._loop.plan(read_plan(fields, arrays))

    def _on_hand(self, fields: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
        self._loop.hand(arrays["target"], fields["for_s"])

    def _on_begin(self, fields: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
        try:
            self._loop.begin(fields["seed"])
        except Exception as error:  # the border to drivers and simulators
            self._line.send(wire_pack({"kind": "failed", "cause": format_error(error)}))
        self._clock.again()

    def _on_idle(self, fields: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
        self._loop.idle()

    def _on_pet(self, fields: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
        """That something was heard is all."""

    def _on_held(self, fields: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
        self._person = boottime()

    def _on_stop(self, fields: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
        self._loop.stop(fields["cause"], *(("estop", EMERGENCY) if fields["emergency"] else ("asked", STOPPED)))

    def _on_rearm(self, fields: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
        self._stops.close()
        self._stops = Stops(self._safety.estop)  # what is still pressed stops it again
        self._loop.rearm()

    def _on_close(self, fields: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
        raise EndError(self._loop.code, self._loop.governor.stopped)


def _dead_man(safety: Safety, last_sign: Callable[[], float]) -> Callable[[], bool]:
    """Whether the robot may move. A key is the terminal's, so its signs are heard of whoever started the process."""
    config = safety.dead_man
    if config is None:
        return lambda: True
    if config.key is not None:
        return lambda: boottime() - last_sign() <= config.within_s
    return Held(config).held


def _first_reading(body: RobotDriver) -> Any:
    """Of a robot that has just been connected, whose first answers may be lost."""
    for _ in range(TRIES - 1):
        with contextlib.suppress(Exception):
            return body.sense()
    return body.sense()


DONE, USER, LOST, ALONE = 0, 2, 4, 1  # exit codes; those of signals are 128 and the number
HANG_S = 1.0  # without a tick: the guardian ends the process
LAST_WORDS = 1.0  # seconds in which they can be sent


def main(line: PipeEnd, memory: MappedPictures) -> int:
    """Serves until the end, and says how it ended to the other side and on standard error."""
    body, guardian, how, code, kind, cause = None, None, "hold", LOST, "ended", ""
    signals = Signals()
    try:
        order = _first(line)
        safety = Safety.model_validate(order["safety"])
        body = make_driver(order["body"].pop("name", ""), order["body"])
        how = safety.at_fault or body.at_fault
        if not body.simulated:
            guardian = Guardian(body, how, HANG_S, line.close)
            print(f"guardian: {move_to_scope(guardian.pid)}", file=sys.stderr, flush=True)
        body.connect()
        MotionService(line, memory, body, safety, guardian, prioritise(body)).run(signals)
    except EndError as error:
        code, cause = error.code, str(error)
        if (code == DONE or code - 128 in ENDING) and body is not None:
            how = safety.at_exit or body.at_exit or how
    except UserError as error:
        code, kind, cause = USER, "user_error", str(error)
    except LostError as error:
        cause = str(error)
    except EOFError:
        code, cause = ALONE, "whoever started it is gone"
    except Exception as error:  # the border to drivers; a fault of our own must not leave the robot moving either
        cause = f"{type(error).__name__}: {format_error(error)}"
    finally:
        signals.ignore()
        problems = _leave(body, guardian, how)
    _say(line, code, kind, "; ".join(filter(None, [cause, *problems])))
    return code


def _first(line: PipeEnd) -> Mapping[str, Any]:
    """The order that says what to drive."""
    while True:
        for message in line.receive():
            return read(message)[1]
        time.sleep(0.001)


def _leave(body: RobotDriver | None, guardian: Guardian | None, how: Literal["hold", "off"]) -> list[str]:
    """Makes the robot safe and frees it, and lets the guardian go: what it could not do, in lines."""
    problems: list[str] = []
    if guardian is not None:
        guardian.pause()
    if body is not None:
        problems = body.rest(how)
        body.close()
    if guardian is not None:
        guardian.goodbye()
    return problems


def _say(line: PipeEnd, code: int, kind: str, cause: str) -> None:
    """The last words, in one line."""
    if code != DONE and kind != "user_error":
        print(f"motion: {cause}", file=sys.stderr)
    with contextlib.suppress(EOFError):
        line.send(wire_pack({"kind": kind, "code": code, "cause": cause}))
        until = time.monotonic() + LAST_WORDS
        while line.pending and time.monotonic() < until:
            time.sleep(0.001)
            line.flush()


if __name__ == "__main__":
    gc.collect()
    ended = main(PipeEnd(socket.socket(fileno=int(sys.argv[1]))), MappedPictures(int(sys.argv[2])))
    sys.stderr.flush()
    os._exit(ended)  # the robot is safe and free: what libraries do at exit could only fail
