"""Processes that end with the one that started them, however that ends: SIGKILL, a time-out, a crash.

PR_SET_PDEATHSIG alone would not do: it is sent when the THREAD that started a process ends, it reaches no grandchild (a
driver's browser), and it leaves no time to put a robot to rest. So one small process watches each owner: this file, run
as a program, which imports the standard library alone.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_lock = threading.Lock()
_watchers: dict[int, int] = {}  # owner -> the pipe to its watcher; a fork is another owner


def start_child(
    command: Sequence[str], *, notice: int = 0, patience: float = 0.0, **options: Any
) -> subprocess.Popen[Any]:
    """`subprocess.Popen` in a session of its own, which ends with this process: Ctrl-C in a terminal is for the parent.

    Args:
        notice: the signal that it is sent when this process is gone; 0: it notices by itself, or need not.
        patience: seconds from then until its session is killed.
    """
    process = subprocess.Popen(command, start_new_session=True, **options)
    end_with_owner(process.pid, notice=notice, patience=patience)
    return process


def end_with_owner(pid: int, *, notice: int = 0, patience: float = 0.0) -> None:
    """Has a child of this process end with it. Where it leads a session, all of the session ends with the child."""
    if sys.platform != "linux":
        return
    line = f"{pid} {notice} {patience}\n".encode()
    with _lock:
        owner = os.getpid()
        if owner not in _watchers:
            _watchers[owner] = _start_watcher(owner)
        try:
            os.write(_watchers[owner], line)
        except BrokenPipeError:  # it was killed
            os.close(_watchers[owner])
            _watchers[owner] = _start_watcher(owner)
            os.write(_watchers[owner], line)


def end_child(process: subprocess.Popen[Any], patience: float = 0.0) -> None:
    """Gives one of `start_child` time to end by itself, then kills all of its session. May be called twice."""
    if process.returncode is not None:
        return  # its watcher has ended the session, and its number may be another's
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(patience)
    kill_session(process.pid)
    process.wait()


def _start_watcher(owner: int) -> int:
    """The pipe to a new watcher, which holds nothing of this process' but its standard input."""
    ours, theirs = os.pipe()
    actions = [
        (os.POSIX_SPAWN_DUP2, ours, 0),
        *((os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_WRONLY, 0) for fd in (1, 2)),
    ]
    command = [sys.executable, "-I", "-S", __file__, str(owner)]
    os.posix_spawn(sys.executable, command, os.environ, file_actions=actions, setsid=True)
    os.close(ours)
    return theirs


# A systemd scope of its own for a process: what kills the session's or the service's cgroup does not reach it.

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


# The watcher: `python children.py OWNER`. A line `PID SIGNAL SECONDS` of its standard input names a child. When the
# owner is gone, the child is sent SIGNAL (0: it notices by itself), and after SECONDS its session is killed. When a
# child ends first, what it left in its session is killed. A process that leaves the session looks after itself.

STDIN, LINES = 0, 65536
KILL_S = 10.0  # for the kernel to end what was killed


@dataclass(frozen=True)
class Child:
    """pidfd: names this process alone, also after its number is another's."""

    pid: int
    pidfd: int
    notice: int
    patience: float


def kill_session(leader: int) -> None:
    """Kills every process of a session and waits until they are gone."""
    if sys.platform != "linux":
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(leader, signal.SIGKILL)
        return
    end = time.monotonic() + KILL_S
    while (members := list(find_session(leader))) and time.monotonic() < end:
        for pid in members:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.005)


def find_session(leader: int) -> Iterator[int]:
    """The processes of a session that have not ended."""
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                state, _, _, session = file.read().rpartition(b")")[2].split()[:4]
        except OSError:  # it has just ended
            continue
        if int(session) == leader and state not in b"ZX":
            yield int(name)


def end(children: list[Child]) -> None:
    """Ends the children of an owner that is gone."""
    start = time.monotonic()
    for child in children:
        if child.notice:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(child.pidfd, child.notice)
    for child in sorted(children, key=lambda child: child.patience):
        left = max(0.0, start + child.patience - time.monotonic())
        if not select.select([child.pidfd], [], [], left)[0]:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(child.pidfd, signal.SIGKILL)
        kill_session(child.pid)


def read_children(data: bytes) -> Iterator[Child]:
    for line in data.splitlines():
        pid, notice, patience = line.split()
        with contextlib.suppress(ProcessLookupError):  # it has ended, and its owner has seen that
            yield Child(int(pid), os.pidfd_open(int(pid)), int(notice), float(patience))


def watch(owner: int) -> None:
    """Returns when the owner is gone and its children are."""
    children, poll = dict[int, Child](), select.poll()
    with contextlib.suppress(ProcessLookupError):
        owner_fd = os.pidfd_open(owner)
    if os.getppid() != owner:  # it was gone before, and its number may be another's
        return end(list(read_children(os.read(STDIN, LINES))))
    poll.register(owner_fd, select.POLLIN)
    poll.register(STDIN, select.POLLIN)
    while True:
        ready = {fd for fd, _ in poll.poll()}
        if STDIN in ready:
            data = os.read(STDIN, LINES)
            if not data:  # whoever held the other end has closed it; there may be children still
                poll.unregister(STDIN)
            for child in read_children(data):
                children[child.pidfd] = child
                poll.register(child.pidfd, select.POLLIN)
        if owner_fd in ready:
            return end(list(children.values()))
        for fd in ready & children.keys():
            poll.unregister(fd)
            kill_session(children.pop(fd).pid)
            os.close(fd)


if __name__ == "__main__":
    os.chdir("/")
    watch(int(sys.argv[1]))
