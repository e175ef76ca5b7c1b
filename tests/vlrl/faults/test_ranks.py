"""One process of a run is killed, or hangs: the others end, and say why."""

from __future__ import annotations

import os
import signal
import socket
import time

import pytest

pytestmark = pytest.mark.slow

TRAIN = {"steps": 1000, "prompts_per_step": 2, "group_size": 2, "lr": 1e-6}


@pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSTOP])
def test_the_others_end_with_a_message(fault, place, train):
    """Paid machines would stand still for hours, with nothing in the log."""
    folder = place("run", train=TRAIN)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "VLRL_WAIT_S": "20"}
    runs = [train(folder, "config.yaml", name=str(i), RANK=str(i), LOCAL_RANK=str(i), **shared) for i in range(2)]
    metrics = folder / "run" / "metrics.jsonl"
    until = time.monotonic() + 200
    while not metrics.exists() or metrics.read_text().count("\n") < 3:
        assert runs[0].process.is_alive() and time.monotonic() < until, (folder / "0err").read_text()
        time.sleep(0.05)
    os.kill(runs[1].process.pid, fault)
    code, said = runs[0].wait()
    runs[1].process.kill()
    assert code == 2 and "Traceback" not in said, said
    assert "another process of this run does not answer, see its own message" in said.splitlines()[-1]


@pytest.mark.parametrize("given", ["soon", "0", "-3", "nan"])
def test_an_odd_patience_is_named(given, place, train):
    """A wait of no time at all would end every run at its first step."""
    run = train(place("run"), "config.yaml", WORLD_SIZE="2", RANK="0", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1",
                MASTER_PORT="1", VLRL_WAIT_S=given)  # fmt: skip
    code, said = run.wait()
    assert code == 2 and said.splitlines()[-1] == f"vlrl: VLRL_WAIT_S: {given!r}: must be seconds, at least 1 [VL101]"
