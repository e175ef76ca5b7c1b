"""Ends the children of a process when it is gone: `python watcher.py OWNER`, started by `vlrl.system.children`.

A line `PID SIGNAL SECONDS` of its standard input names a child. When the owner is gone, the child is sent SIGNAL (0: it
notices by itself), and after SECONDS its session is killed. When a child ends first, what it left in its session is
killed. A process that leaves the session looks after itself.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

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
