"""Browsers and whoever started them."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

pytest.importorskip("selenium", reason="needs pip install 'vlrl[gui]'")

OWNER = """
import time, psutil
from tasks.web import browser
chrome = browser.launch((200, 200))
driver = psutil.Process(chrome.service.process.pid)
print(driver.pid, *[child.pid for child in driver.children(recursive=True)], flush=True)
time.sleep(600)
"""


def is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize("to_group", [False, True], ids=["the process", "its group, as time-outs do"])
def test_nothing_of_a_browser_outlives_a_killed_run(needs, to_group):
    """Each run that a time-out ends would leave a driver and a browser at work for ever."""
    needs("chromedriver")
    path = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", OWNER]
    with subprocess.Popen(command, env=os.environ | path, stdout=subprocess.PIPE, start_new_session=True) as run:
        pids = [int(word) for word in run.stdout.readline().split()]
        (os.killpg if to_group else os.kill)(run.pid, signal.SIGKILL)
    assert len(pids) > 2
    deadline = time.monotonic() + 60
    while alive := list(filter(is_alive, pids)):
        assert time.monotonic() < deadline, alive
        time.sleep(0.05)


def test_the_browsers_of_a_task_end_with_it(needs):
    """Every task that a test or a comparison made kept six browsers until the process ended."""
    needs("chromium", "google-chrome")
    from tasks.agent_actions import screen_pool
    from tasks.web import miniwob

    pool = screen_pool(miniwob.MiniWob, 1)
    worker = pool.take("page")
    processes = psutil.Process(worker.pid).children(recursive=True)
    assert len(processes) > 2
    pool.give(worker)
    del pool, worker
    gc.collect()
    psutil.wait_procs(processes, timeout=20)
    assert not any(is_alive(each.pid) for each in processes)
