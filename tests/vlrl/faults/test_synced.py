"""What a power loss finds: every file is on the disk before it gets its name or is counted by a checkpoint.

The order of the system calls is recorded by a library that is loaded before libc.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
RECORD = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

#define REAL(name) __typeof__(&name) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

static void record(const char *what, const char *path) {
    char line[8192];
    const char *log = getenv("SYNC_LOG");
    int file = log ? open(log, O_WRONLY | O_APPEND | O_CREAT, 0644) : -1;
    if (file < 0) return;
    int length = snprintf(line, sizeof line, "%s %s\n", what, path);
    if (write(file, line, length)) {}
    close(file);
}

int fsync(int file) {
    char link[64], path[4096];
    REAL(fsync);
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length > 0) path[length] = 0, record("sync", path);
    return real(file);
}

int rename(const char *old, const char *new) {
    char path[4096];
    REAL(rename);
    if (realpath(old, path)) record("rename", path);
    return real(old, new);
}
"""
SAVES = {
    "checkpoint": """
from vlrl import checkpoint
checkpoint.save(Path("run/step_000001"), {"step": 1}, lambda folder: (folder / "model.safetensors").write_bytes(b"x"))
""",
    "plan of a trial": """
from robot.trial.files import write_whole
write_whole(Path("run/plan.json"), "{}")
""",
    "line of a trial": """
from robot.trial.files import append_line
append_line(Path("run/journal.jsonl"), "{}")
""",
    "rows of a run": """
from vlrl.run_rows import RunRows
Path("run/metrics.jsonl").write_text("{}\\n")
RunRows(Path("run")).snapshot()
""",
    "rows that are restored": """
from vlrl.run_rows import RunRows
Path("run/metrics.jsonl").write_text("{}\\n")
saved = RunRows(Path("run")).snapshot()
Path(os.environ["SYNC_LOG"]).unlink()
Path("run/metrics.jsonl").write_text("")
RunRows(Path("run")).restore(saved)
""",
}
SYNCED = {  # in this order: before a name is given, or at the end
    "checkpoint": ["sync run/.step_000001.part/model.safetensors", "sync run/.step_000001.part",
                   "rename run/.step_000001.part", "sync run"],
    "plan of a trial": ["sync run/.plan.json.part", "rename run/.plan.json.part"],
    "line of a trial": ["sync run/journal.jsonl"],
    "rows of a run": ["sync run/metrics.jsonl"],
    "rows that are restored": ["sync run/.metrics.jsonl.part", "rename run/.metrics.jsonl.part"],
}  # fmt: skip


@pytest.fixture
def recorder(needs, tmp_path) -> Path:
    (tmp_path / "record.c").write_text(RECORD)
    library = tmp_path / "record.so"
    build = [needs("cc", "gcc"), "-shared", "-fPIC", "-o", str(library), str(tmp_path / "record.c"), "-ldl"]
    subprocess.run(build, check=True, capture_output=True)
    return library


@pytest.mark.parametrize("name", SAVES)
def test_what_counts_as_saved_is_on_the_disk(name, recorder, tmp_path):
    """After a power loss a checkpoint would hold empty files under its final name, or count rows that are gone."""
    (tmp_path / "run").mkdir()
    log = tmp_path / "log"
    environment = os.environ | {"LD_PRELOAD": str(recorder), "SYNC_LOG": str(log), "PYTHONPATH": str(ROOT)}
    script = f"import os\nfrom pathlib import Path\n{SAVES[name]}"
    subprocess.run([sys.executable, "-c", script], cwd=tmp_path, env=environment, check=True)
    calls = [line.replace(f"{tmp_path}/", "") for line in log.read_text().splitlines()]
    places = [calls.index(call) for call in SYNCED[name]]
    assert places == sorted(places), calls
