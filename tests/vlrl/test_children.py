"""Processes that end with the one that started them, however that ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from vlrl.system.children import end_child, start_child

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 60  # seconds for a machine that is busy
SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]
FAMILY = "import subprocess, sys; c = subprocess.Popen({}); print(c.pid, flush=True); c.wait()"  # a child with a child


def is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.fixture
def owner() -> Iterator[Callable[[str], tuple[subprocess.Popen[str], list[int]]]]:
    """`owner(program)`: a process of the program, and the pids that it prints in its first line."""
    started = []

    def start(program: str) -> tuple[subprocess.Popen[str], list[int]]:
        head = "import signal, sys, threading, time\nfrom vlrl.system.children import end_child, start_child\n"
        command = [sys.executable, "-c", head + textwrap.dedent(program)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, start_new_session=True)
        started.append(process)
        return process, [int(word) for word in process.stdout.readline().split()]

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


DEATHS = {
    "SIGKILL": lambda process: process.kill(),
    "SIGKILL to its group": lambda process: os.killpg(process.pid, signal.SIGKILL),
    "SIGTERM": lambda process: process.terminate(),
    "a crash": lambda process: process.send_signal(signal.SIGSEGV),
}


@pytest.mark.parametrize("death", DEATHS)
def test_a_child_and_its_own_children_end_with_the_owner(owner, death):
    """A run that a time-out ends leaves browsers and simulators at work for ever."""
    family = FAMILY.format(SLEEP)
    process, pids = owner(f"""
        child = start_child([sys.executable, "-c", {family!r}], stdout=-1, text=True)
        print(child.pid, child.stdout.readline(), flush=True)
        time.sleep(600)
    """)
    assert len(pids) == 2 and all(map(is_alive, pids))
    DEATHS[death](process)
    process.wait()
    wait_until(lambda: not any(map(is_alive, pids)))


def test_children_end_with_an_owner_that_ends_in_order(owner):
    """A script that forgets to close a pool leaves it behind."""
    process, pids = owner(f"print(start_child({SLEEP!r}).pid, flush=True)")
    assert process.wait(PATIENCE) == 0
    wait_until(lambda: not is_alive(pids[0]))


def test_a_child_outlives_the_thread_that_started_it(owner):
    """Pools start browsers from worker threads; PR_SET_PDEATHSIG would end a browser with its thread."""
    process, pids = owner(f"""
        thread = threading.Thread(target=lambda: print(start_child({SLEEP!r}).pid, flush=True))
        thread.start()
        thread.join()
        time.sleep(600)
    """)
    time.sleep(0.3)
    assert is_alive(pids[0])
    process.kill()
    wait_until(lambda: not is_alive(pids[0]))


def test_a_child_may_save_before_it_ends(owner, tmp_path):
    """A training run whose `vlrl compare` was killed would lose what it did since its last checkpoint."""
    code = f"""
        import signal, sys, time
        def save(*_):
            time.sleep(0.3)
            open({str(tmp_path / "saved")!r}, "w").close()
            sys.exit()
        signal.signal(signal.SIGTERM, save)
        print(flush=True)
        time.sleep(600)
    """
    process, pids = owner(f"""
        command = [sys.executable, "-c", {textwrap.dedent(code)!r}]
        child = start_child(command, stdout=-1, notice=signal.SIGTERM, patience=60)
        child.stdout.readline()
        print(child.pid, flush=True)
        time.sleep(600)
    """)
    process.kill()
    wait_until(lambda: not is_alive(pids[0]))
    assert (tmp_path / "saved").exists()


def test_what_ignores_its_notice_is_killed(owner):
    """A run that hangs would keep its folder locked for ever."""
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(600)"
    process, pids = owner(f"""
        child = start_child([sys.executable, "-c", {deaf!r}], stdout=-1, notice=signal.SIGTERM, patience=0.2)
        child.stdout.readline()
        print(child.pid, flush=True)
        time.sleep(600)
    """)
    process.kill()
    wait_until(lambda: not is_alive(pids[0]))


def test_a_driver_that_dies_takes_its_browser_along(owner):
    """A driver that is killed for its memory leaves its browser at work while the run goes on."""
    family = FAMILY.format(SLEEP)
    _, pids = owner(f"""
        child = start_child([sys.executable, "-c", {family!r}], stdout=-1, text=True)
        print(child.pid, child.stdout.readline(), flush=True)
        time.sleep(600)
    """)
    os.kill(pids[0], signal.SIGKILL)
    wait_until(lambda: not is_alive(pids[1]))


def test_ending_a_child_ends_its_session():
    """A simulator that is closed would leave what it started."""
    child = start_child([sys.executable, "-c", FAMILY.format(SLEEP)], stdout=subprocess.PIPE, text=True)
    with child.stdout:
        grandchild = int(child.stdout.readline())
        end_child(child)
        end_child(child)
    assert child.returncode == -signal.SIGKILL and not is_alive(grandchild)


def test_a_fork_has_a_watcher_of_its_own(owner):
    """Children of a forked worker would live until the run ends, which may be days later."""
    process, pids = owner(f"""
        import os
        first = start_child({SLEEP!r})
        if os.fork() == 0:
            print(os.getpid(), start_child({SLEEP!r}).pid, first.pid, flush=True)
            time.sleep(600)
        os.wait()
        time.sleep(600)
    """)
    forked, its_own, first = pids
    os.kill(forked, signal.SIGKILL)
    wait_until(lambda: not is_alive(its_own))
    assert is_alive(first) and process.poll() is None


def test_children_of_a_killed_watcher_find_another(owner):
    """An administrator that ends an unknown process would unprotect all that is started later."""
    process, pids = owner(f"""
        import psutil
        children = [start_child({SLEEP!r})]
        found = []
        while not found:  # it is another program for a moment
            found = [p for p in psutil.Process().children() if "children.py" in str(p.cmdline())]
        (watcher,) = found
        watcher.kill()
        watcher.wait()
        children.append(start_child({SLEEP!r}))
        end_child(children[0])  # nobody else would: its watcher is gone
        print(children[1].pid, flush=True)
        time.sleep(600)
    """)
    process.kill()
    wait_until(lambda: not is_alive(pids[0]))
