"""A local policy as a server of our own: torch stays in its process, as with one on another machine."""

from __future__ import annotations

import contextlib
import os
import re
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

from vlrl.system.children import end_child, start_child
from vlrl.types import UserError

FAREWELL = 5.0  # seconds for it to end by itself
ADDRESS = re.compile(r"wss?://127\.0\.0\.1:\d+")


@contextlib.contextmanager
def served(folder: str, patience: float) -> Iterator[str]:
    """`vlrl serve` of a policy's folder on a free port of this machine -> its url.

    Raises:
        UserError: it does not start; with what it says.
    """
    command = [sys.executable, "-m", "vlrl.cli", "serve", "--policy", folder, "--host", "127.0.0.1", "--port", "0"]
    path = os.pathsep.join(filter(None, sys.path))
    process = start_child(
        command, env=os.environ | {"PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, notice=signal.SIGTERM, patience=FAREWELL,
    )  # fmt: skip
    try:
        yield _address(process, patience)
    finally:
        process.send_signal(signal.SIGTERM)
        end_child(process, FAREWELL)
        process.stdout.close()


def _address(process: subprocess.Popen[bytes], patience: float) -> str:
    """What it prints once it serves."""
    end, said = time.monotonic() + patience, b""
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while time.monotonic() < end:
            if not selector.select(0.2):
                continue
            data = os.read(process.stdout.fileno(), 4096)
            said += data
            if found := ADDRESS.search(said.decode(errors="replace")):
                return found[0]
            if not data:
                break
    lines = said.decode(errors="replace").strip().splitlines() or ["it said nothing"]
    raise UserError(f"policy.dir: `vlrl serve` did not start: {lines[-1].removeprefix('vlrl: ')}")
