"""A test file that leaves something behind fails."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import leftovers

LEAKS = """
import socket, subprocess, sys, threading

kept = []

def test_process():
    sleep = [sys.executable, "-c", "import time; time.sleep(90)"]
    family = f"import subprocess; subprocess.Popen({sleep})"
    assert subprocess.run([sys.executable, "-c", family], stdin=subprocess.DEVNULL).returncode == 0  # an orphan

def test_thread():
    kept.append(threading.Event())
    threading.Thread(target=kept[0].wait, args=(90,), name="forgotten").start()

def test_port():
    kept.append(socket.create_server(("127.0.0.1", 0)))
"""


def test_leftovers_are_named(tmp_path):
    """Browsers stayed open over hundreds of files, and nobody saw which file had forgotten them."""
    for name in ("conftest.py", "leftovers.py"):
        shutil.copy(Path(__file__).with_name(name), tmp_path)
    source = tmp_path / "leftovers.py"
    source.write_text(source.read_text().replace("PATIENCE = 20.0", "PATIENCE = 0.0"))
    (tmp_path / "test_leaks.py").write_text(LEAKS)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "-W",
        "ignore",
        "-q",
        str(tmp_path),
    ]
    with (tmp_path / "log").open("w") as log:
        run = subprocess.Popen(command, cwd=tmp_path, stdout=log, stderr=log)
        try:
            while not (found := re.search(r"leaves behind: (.*)", (tmp_path / "log").read_text())):
                assert run.poll() is None, (tmp_path / "log").read_text()
        finally:
            run.kill()
            run.wait()
            for pid in re.findall(r"process (\d+): .*?time.sleep", (tmp_path / "log").read_text()):
                subprocess.run(["kill", pid], check=False)
    said = found[1]
    assert "time.sleep(90)" in said and "thread forgotten" in said and "listening port" in said


def test_a_thread_that_ends_meanwhile_is_no_error():
    """A test file failed after its last test, for a server's thread that ended just then."""
    end = threading.Event()
    thread = threading.Thread(target=end.wait)
    thread.start()
    policies = leftovers.find_policies()
    first = next(policies)  # the list of threads has been read
    end.set()
    thread.join()
    while Path(f"/proc/self/task/{thread.native_id}").exists():
        pass
    assert {first, *policies}
