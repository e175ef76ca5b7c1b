"""The motion process: holds the robot's port, the governor and the watchdog, and ticks whatever else happens.

Started as `python -m robot.motion.main LINE MEMORY` with two inherited file descriptors. It leaves the robot safe on
every way out; its exit code says which one it was.
"""

from __future__ import annotations

import contextlib
import gc
import os
import socket
import sys
import time
from collections.abc import Mapping
from typing import Any, Literal

from robot.motion.bodies import make
from robot.motion.body import Body
from robot.motion.guardian import Guardian
from robot.motion.limits import Safety
from robot.motion.line import Line
from robot.motion.loop import LostError, told
from robot.motion.messages import read
from robot.motion.pictures import Pictures
from robot.motion.scope import move_to_scope
from robot.motion.service import Service
from robot.motion.signals import ENDING, EndError, Signals
from robot.motion.watch import prioritise
from robot.wire import pack
from vlrl.types import UserError

DONE, USER, LOST, ALONE = 0, 2, 4, 1  # exit codes; those of signals are 128 and the number
HANG_S = 1.0  # without a tick: the guardian ends the process
LAST_WORDS = 1.0  # seconds in which they can be sent


def main(line: Line, memory: Pictures) -> int:
    """Serves until the end, and says how it ended to the other side and on standard error."""
    body, guardian, how, code, kind, cause = None, None, "hold", LOST, "ended", ""
    signals = Signals()
    try:
        order = _first(line)
        safety = Safety.model_validate(order["safety"])
        body = make(order["body"].pop("name", ""), order["body"])
        how = safety.at_fault or getattr(body, "at_fault", "hold")
        if not getattr(body, "simulated", False):
            guardian = Guardian(body, how, HANG_S, line.close)
            print(f"guardian: {move_to_scope(guardian.pid)}", file=sys.stderr, flush=True)
        body.connect()
        Service(line, memory, body, safety, guardian, prioritise(body)).run(signals)
    except EndError as error:
        code, cause = error.code, str(error)
        if (code == DONE or code - 128 in ENDING) and body is not None:
            how = safety.at_exit or getattr(body, "at_exit", how)
    except UserError as error:
        code, kind, cause = USER, "user_error", str(error)
    except LostError as error:
        cause = str(error)
    except EOFError:
        code, cause = ALONE, "whoever started it is gone"
    except Exception as error:  # the border to drivers; a fault of our own must not leave the robot moving either
        cause = f"{type(error).__name__}: {told(error)}"
    finally:
        signals.ignore()
        problems = _leave(body, guardian, how)
    _say(line, code, kind, "; ".join(filter(None, [cause, *problems])))
    return code


def _first(line: Line) -> Mapping[str, Any]:
    """The order that says what to drive."""
    while True:
        for message in line.receive():
            return read(message)[1]
        time.sleep(0.001)


def _leave(body: Body | None, guardian: Guardian | None, how: Literal["hold", "off"]) -> list[str]:
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


def _say(line: Line, code: int, kind: str, cause: str) -> None:
    """The last words, in one line."""
    if code != DONE and kind != "user_error":
        print(f"motion: {cause}", file=sys.stderr)
    with contextlib.suppress(EOFError):
        line.send(pack({"kind": kind, "code": code, "cause": cause}))
        until = time.monotonic() + LAST_WORDS
        while line.pending and time.monotonic() < until:
            time.sleep(0.001)
            line.flush()


if __name__ == "__main__":
    gc.collect()
    ended = main(Line(socket.socket(fileno=int(sys.argv[1]))), Pictures(int(sys.argv[2])))
    sys.stderr.flush()
    os._exit(ended)  # the robot is safe and free: what libraries do at exit could only fail
