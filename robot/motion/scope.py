"""A systemd scope of its own for a process: what kills the session's or the service's cgroup does not reach it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

SYSTEMD = Path("/run/systemd/system")  # there where systemd runs
MANAGER = ("org.freedesktop.systemd1", "/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager")
PATIENCE = 2  # seconds for systemd to answer


def move_to_scope(pid: int, systemd: Path = SYSTEMD) -> str:
    """Moves a process that runs, where systemd runs -> one line that says where it is now."""
    if not systemd.is_dir():
        return "in the cgroup of the motion process: systemd does not run here"
    try:
        subprocess.run(scope_command(pid, os.geteuid()), check=True, capture_output=True, text=True,
                       stdin=subprocess.DEVNULL, timeout=PATIENCE + 1)  # fmt: skip
    except subprocess.CalledProcessError as error:
        why = " ".join(error.stderr.split()) or f"exit status {error.returncode}"
    except (OSError, subprocess.TimeoutExpired) as error:
        why = str(error)
    else:
        return f"in a scope of its own, {_unit(pid)}"
    return f"in the cgroup of the motion process: systemd gives it no scope: {why[:200]}"


def scope_command(pid: int, user: int) -> list[str]:
    """What `systemd-run --scope` does, for a process that is there already: it was forked, and has no command line."""
    manager = [] if user == 0 else ["--user"]
    properties = ["1", "PIDs", "au", "1", str(pid)]
    return ["busctl", *manager, f"--timeout={PATIENCE}", "call", *MANAGER, "StartTransientUnit", "ssa(sv)a(sa(sv))",
            _unit(pid), "fail", *properties, "0"]  # fmt: skip


def _unit(pid: int) -> str:
    return f"vlrl-guardian-{pid}.scope"
