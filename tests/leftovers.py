"""What a test file leaves behind: processes, threads, listening ports, another scheduling policy."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Iterator
from multiprocessing import forkserver, resource_tracker

import psutil

OWNER = "VLRL_TEST_OWNER"  # in the environment of all that this process starts, orphans too
PATIENCE = 20.0  # seconds for what was told to end
SHARED = ("/vlrl/system/children.py", "tasks.math_equivalence")  # one for all of a process
shared: set[str] = set()  # keys of what fixtures for several files have started
REAL_TIME = {os.SCHED_FIFO, os.SCHED_RR}  # Mesa's threads are SCHED_BATCH, which takes no core from others


def find_leftovers() -> dict[str, str]:
    """What there is beyond this process: a name that stays the same -> how a person would call it."""
    threads = (
        thread for thread in threading.enumerate() if thread is not threading.main_thread() and not thread.daemon
    )
    ports = (c.laddr.port for c in psutil.Process().net_connections() if c.status == psutil.CONN_LISTEN)
    policies = REAL_TIME.intersection(find_policies())
    return {
        **{f"process {process.pid}": describe(process) for process in find_processes()},
        **{f"thread {thread.ident}": f"thread {thread.name}" for thread in threads},
        **{f"port {port}": f"listening port {port}" for port in ports},
        **{f"policy {policy}": f"a thread of real-time policy {policy}" for policy in policies},
    }


def find_policies() -> Iterator[int]:
    """The scheduling policies of all threads of this process."""
    for thread in os.listdir("/proc/self/task"):
        try:
            yield os.sched_getscheduler(int(thread))
        except ProcessLookupError:  # it has just ended
            continue


def find_processes() -> Iterator[psutil.Process]:
    """All that this process has started, also through others and where those have ended.

    Some are meant to live as long as it does, and end with it: multiprocessing's fork server and its resource tracker,
    which all files of a worker share, and those of SHARED.
    """
    kept = {forkserver._forkserver._forkserver_pid, resource_tracker._resource_tracker._pid}
    own = {child.pid for child in psutil.Process().children(recursive=True)}
    for process in psutil.process_iter():
        try:
            mine = process.pid in own or process.environ().get(OWNER) == str(os.getpid())
            shared = mine and any(name in " ".join(process.cmdline()) for name in SHARED)
            if mine and not shared and process.pid not in {*kept, os.getpid()} and process.status() != "zombie":
                yield process
        except psutil.Error:  # it has just ended, or is another user's
            continue


def describe(process: psutil.Process) -> str:
    try:
        return f"process {process.pid}: {' '.join(process.cmdline())[:160]}"
    except psutil.Error:
        return f"process {process.pid}, which has just ended"


def wait_for_ends(before: dict[str, str]) -> list[str]:
    """What is there and was not before, after some time to end."""
    end = time.monotonic() + PATIENCE
    while new := [name for key, name in find_leftovers().items() if key not in before.keys() | shared]:
        if time.monotonic() > end:
            break
        gc.collect()  # what a test's objects hold goes with them
        time.sleep(0.2)
    return new
