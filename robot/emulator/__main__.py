"""`python -m robot.emulator`: an emulator for another program, which ends with it.

One line of JSON on stdout says that it is ready, and where. Requests come over the control socket
(`robot.emulator.control`). It ends when stdin does. People use `vlrl emulate so101`.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import signal
import sys
from pathlib import Path

from robot.emulator.control import Control, Listener
from robot.emulator.machine import Machine, Setup
from vlrl.decoders import parse_json
from vlrl.types import UserError


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m robot.emulator", description=__doc__.splitlines()[0])
    parser.add_argument("setup", help="JSON: folder, cameras {name: [width, height]}, fps, job, seed, calibrated")
    try:
        return _run(parser.parse_args().setup)
    except UserError as error:
        print(json.dumps({"error": str(error)}), flush=True)
        return 2


def _run(text: str) -> int:
    try:
        fields = parse_json(text)
        setup = Setup(**{**fields, "folder": Path(fields["folder"])})
    except (ValueError, TypeError, KeyError) as error:
        raise UserError(f"setup: {error}") from None
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal is for the program that started this one
    machine = Machine(setup)
    control = Control(machine)
    listener = Listener(control, setup.folder / "control")
    signal.signal(signal.SIGTERM, lambda *_: control.quitting.set())
    try:
        print(json.dumps(machine.describe()), flush=True)
        _until_stdin_ends(control)
    finally:
        listener.close()
        machine.close()
    return 0


def _until_stdin_ends(control: Control) -> None:
    """Nothing is read ahead, so that closing the pipe, or its owner's death, is seen at once."""
    while not control.quitting.is_set():
        if select.select([sys.stdin.fileno()], [], [], 0.1)[0] and not os.read(sys.stdin.fileno(), 4096):
            return


if __name__ == "__main__":
    sys.exit(main())
