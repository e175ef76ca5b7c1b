"""On a device that only pretends to be a GPU: no tensor is left on the CPU, and the CPU seldom waits."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("pretended_gpu.py")
ROOT = PROGRAM.parents[3]
CHECK = """
import pretended_gpu as p, torch
p.backend_registration._setup_privateuseone_for_python_backend("gpu", p.Backend(), None, None)
with p.Pretend():
    held = torch.ones(3, device="gpu:0")
    held + torch.ones(3)
    held[0].item(); held.cpu(); held[held > 0]
assert sum(p.MISMATCHES.values()) == 1 and sum(p.SYNCS.values()) >= 3, (p.MISMATCHES, p.SYNCS)
"""


def run(*arguments: str) -> str:
    environment = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{PROGRAM.parent}"}
    done = subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_device_sees_what_it_is_there_to_see():
    """It would find nothing, whatever a step does."""
    run("-c", CHECK)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["plain", "lora"])
def test_a_step_mixes_no_devices_and_waits_for_none_of_its_rows(kind):
    """The first step on a GPU would end in an error, or each token would wait for the host once a completion."""
    few, many = (json.loads(run(str(PROGRAM), kind, copies)) for copies in ("4", "8"))
    assert few["mismatches"] == many["mismatches"] == {}
    assert few["syncs"]["rollout"] <= 4 * few["tokens"]
    assert few["syncs"] == many["syncs"]  # twice the rows
