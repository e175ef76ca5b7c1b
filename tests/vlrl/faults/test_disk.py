"""Disks that are full or read-only: a real small file system, filled while a run trains."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
# fills the disk from inside when a step begins, as another program would
MODULE = """
import os
from pathlib import Path
from vlrl.methods import Callback, method


@method(source="a test's")
class Filler(Callback):
    def __init__(self, policy, task, updater, seed):
        pass

    def on_step_begin(self, step):
        if step == 2 and Path("fill").exists():
            with open("run/junk", "wb") as file:
                try:
                    while True:
                        file.write(bytes(4096))
                        file.flush()
                except OSError:
                    pass


filler = Filler
"""
# The run folder on a file system of 64 MB. What comes after the full disk is as after a user has made some room. Each
# command in a forked process, which spares it the seconds of importing.
SCRIPT = """
import os, subprocess, sys
from pathlib import Path
import vlrl.trainer, vlrl.policies.tiny, tasks.gui_grounding
from vlrl.cli import main

def train(name, *arguments):
    child = os.fork()
    if not child:
        os.dup2(os.open(f"{name}.err", os.O_WRONLY | os.O_CREAT), 2)
        os._exit(main(["train", *arguments]))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

Path("run").mkdir()
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "none", "run"], check=True)
codes = [train("full", "config.yaml")]
for name in ("run/junk", "fill"):
    Path(name).unlink()
Path("full.ls").write_text(" ".join(sorted(os.listdir("run/checkpoints"))))
codes.append(train("again", "--resume", "run"))
Path("metrics.jsonl").write_bytes(Path("run/metrics.jsonl").read_bytes())
subprocess.run(["mount", "-o", "remount,ro", "run"], check=True)
codes.append(train("readonly", "--resume", "run"))
print(codes)
"""


def unshared(*command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """A command as root of name spaces of its own, where it may mount."""
    return subprocess.run(["unshare", "-rm", *command], cwd=cwd, capture_output=True, text=True)


@pytest.fixture
def may_mount(needs, tmp_path):
    needs("unshare")
    if unshared("mount", "-t", "tmpfs", "none", str(tmp_path), cwd=tmp_path).returncode:
        pytest.skip("this machine lets no user mount a file system")


@pytest.mark.slow
def test_a_full_disk_costs_the_last_step_alone(may_mount, place, train):
    """A run would lose its checkpoint to the one that did not fit, or be cut in a way that shows at the next resume."""
    config = {"callbacks": ["mine:filler"], "train": {"steps": 4, "prompts_per_step": 2, "group_size": 2, "lr": 1e-3}}
    straight, full = (place(name, MODULE, **config) for name in ("straight", "full"))
    assert train(straight, "config.yaml").wait()[0] == 0
    (full / "fill").touch()
    done = unshared("env", f"PYTHONPATH={ROOT}", sys.executable, "-c", SCRIPT, cwd=full)
    said = {name: (full / f"{name}.err").read_text() for name in ("full", "again", "readonly")}
    assert done.stdout.splitlines()[-1] == "[2, 0, 2]", (done, said)
    last = said["full"].splitlines()[-1]
    assert last.startswith("vlrl: cannot") and "No space left on device" in last and "Traceback" not in said["full"]
    assert (full / "full.ls").read_text().split()[-1] == "step_000002"
    assert (full / "metrics.jsonl").read_bytes() == (straight / "run" / "metrics.jsonl").read_bytes()
    last = said["readonly"].splitlines()[-1]
    assert last.startswith("vlrl: out: cannot write") and "Read-only file system" in last
    assert "Traceback" not in said["readonly"]


@pytest.mark.parametrize("where", ["config.yaml/run", "/proc/run", "/sys/run"])
def test_a_place_that_takes_no_files_is_named(where, place, train):
    """Minutes of loading would end in a traceback."""
    folder = place("run")
    code, said = train(folder, "config.yaml", f"out={where}").wait()
    assert code == 2 and "Traceback" not in said, said
    assert where in said.splitlines()[-1] and "cannot write" in said.splitlines()[-1]
