"""`vlrl emulate so101`: an emulator in a terminal. Commands are typed, one a line."""

from __future__ import annotations

import argparse
import json
import os
import select
import sys
import tempfile
from pathlib import Path

from robot.emulator.calibration import write_calibration
from robot.emulator.control import HELP, Control, Listener
from robot.emulator.machine import Machine, Setup
from vlrl.types import UserError


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
    with tempfile.TemporaryDirectory(prefix="so101-") as made:
        folder = options.link or Path(made)
        _empty(folder)
        machine = Machine(Setup(folder, cameras, ports, options.fps, options.job, options.seed,
                                not options.uncalibrated))  # fmt: skip
        control = Control(machine)
        listener = Listener(control, folder / "control")
        try:
            print(_told(machine, options), flush=True)
            _converse(control)
        except KeyboardInterrupt:
            print()
        finally:
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


def _told(machine: Machine, options: argparse.Namespace) -> str:
    """What to put into lerobot's or vlrl's config."""
    about, lines = machine.about(), []
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
    """Lines from stdin, carried out one by one; what is wrong with one is said, and it goes on."""
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
