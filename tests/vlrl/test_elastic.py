"""torchrun itself starts a run's processes anew where one of them died or hung."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

_spec = importlib.util.spec_from_file_location("processes", Path(__file__).with_name("processes.py"))
processes = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(processes)
launch, ended, workplace = processes.launch, processes.ended, processes.workplace

FAILS = """
import os, signal
from vlrl.methods import Callback, method

@method
class Fails(Callback):
    \"\"\"Behind the third update the second process gets a signal, once.\"\"\"

    def __init__(self, policy, task, updater, seed):
        pass

    def on_step_end(self, step, row):
        first = os.environ.get("TORCHELASTIC_RESTART_COUNT") == "0"
        if step == 3 and first and os.environ["RANK"] == "1":
            os.kill(os.getpid(), getattr(signal, os.environ["FAILS_BY"]))
"""


def failing(folder: Path) -> Path:
    made = workplace(folder, callbacks=[{"name": "mine:Fails"}])
    (made / "mine.py").write_text((made / "mine.py").read_text() + FAILS)
    return made


@pytest.fixture(scope="module")
def quiet(launch, tmp_path_factory):
    folder = failing(tmp_path_factory.mktemp("quiet") / "run")
    assert ended(launch(1, folder, "train", "config.yaml"), folder) == [0]
    return folder


@pytest.mark.parametrize("signal", ["SIGKILL", "SIGSTOP"])
def test_a_process_that_dies_or_hangs_costs_steps_and_no_run(signal, quiet, tmp_path):
    """Else one of 64 GPUs that fails in the night ends the run, or keeps the other 63 waiting until somebody looks."""
    folder = failing(tmp_path / "elastic")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += ["--max-restarts", "1", "--monitor-interval", "0.5", "-m", "vlrl.cli", "train", "config.yaml"]
    told = {"FAILS_BY": signal, "VLRL_WAIT_S": "60", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=folder, env=os.environ | told, capture_output=True, text=True, timeout=2 * processes.PATIENCE
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    # a process that stands still is found by its fellow alone; a dead one by torchrun as well, which may be the faster
    found = ["vlrl: another process of this run does not answer"]
    found += ["closing signal SIGTERM"] if signal == "SIGKILL" else []
    assert any(words in done.stderr for words in found), done.stderr
    processes.assert_same_run(folder, quiet)
    assert not (folder / "run.1").exists()
