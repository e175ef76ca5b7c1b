"""The wall clock jumps: by the hand of a user, or of a time server."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
# An hour ahead or behind, another one with every look at it; monotonic clocks go on as they are.
JUMPS = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <time.h>
#include <sys/time.h>

static long looks;

static long jump(void) { return ++looks % 2 ? 3600 * looks : -3600 * looks; }

int clock_gettime(clockid_t clock, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int code = real(clock, now);
    if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE) now->tv_sec += jump();
    return code;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec precise;
    clock_gettime(CLOCK_REALTIME, &precise);
    now->tv_sec = precise.tv_sec, now->tv_usec = precise.tv_nsec / 1000;
    return 0;
}
"""
WALL = {"time.time", "time.time_ns", "datetime.now", "datetime.utcnow", "datetime.today", "date.today"}
TOLD = {  # where a time of day is told, and nothing hangs on it
    "vlrl/engines/model_server.py": "when a reply was made, as OpenAI's servers say",
    "robot/emulator/machine.py": "when a frame was taken, as lerobot's camera servers say",
    "robot/trial/plan.py": "when a trial was run",
    "vlrl/tools/trace_export.py": "when an exported log was written, as inspect's logs say",
}


def test_a_jumping_clock_changes_nothing(needs, place, train, tmp_path):
    """A time-out would strike at once, or a step never be over; the random numbers of a run would be others."""
    (tmp_path / "jumps.c").write_text(JUMPS)
    library = tmp_path / "jumps.so"
    built = [needs("cc", "gcc"), "-shared", "-fPIC", "-o", str(library), str(tmp_path / "jumps.c"), "-ldl"]
    subprocess.run(built, check=True, capture_output=True)
    folders = [
        place(name, train={"steps": 3, "prompts_per_step": 2, "group_size": 2, "reward_timeout_s": 60.0})
        for name in "ab"
    ]
    assert train(folders[0], "config.yaml").wait()[0] == 0
    environment = os.environ | {"LD_PRELOAD": str(library), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    look = "import time; a, b = time.time(), time.time(); m = time.monotonic(); "
    look += "assert abs(a - b) > 1800 and 0 <= time.monotonic() - m < 1800"
    subprocess.run([sys.executable, "-c", look], env=environment, check=True)
    command = [sys.executable, "-m", "vlrl.cli", "train", "config.yaml"]
    done = subprocess.run(command, cwd=folders[1], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rows = [(folder / "run" / "metrics.jsonl").read_bytes() for folder in folders]
    assert rows[0] == rows[1]


def test_no_decision_reads_the_time_of_day():
    """What a jump would do shows on the day of the jump alone."""
    read = set()
    for package in ("vlrl", "tasks", "rewards", "robot"):
        for file in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Attribute) and ".".join(ast.unparse(node).split(".")[-2:]) in WALL:
                    read.add(file.relative_to(ROOT).as_posix())
    assert read == set(TOLD)
