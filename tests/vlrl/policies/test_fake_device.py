"""A step's work on a fake accelerator: what only a GPU would show, on every machine."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from vlrl.policies import tiny
from vlrl.policies.loading import EMBEDDED

PROGRAM = Path(__file__).with_name("fake_device.py")
A_STEP = 40  # synchronisations of a step on any path, but for those of each token


def count(folder: Path, shared: str, lora: str, group_size: int, content: str = "image") -> dict:
    done = subprocess.run(
        [sys.executable, str(PROGRAM), str(folder), shared, lora, str(group_size), content],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "shared", "lora", "per_token"),
    [("embedded", "auto", "", 0), ("embedded", "auto", "lora", 0), ("llava", "auto", "", 1), ("llava", "false", "", 4)],
)
def test_a_step_mixes_no_devices_and_seldom_waits(family, shared, lora, per_token, tmp_path):
    """A tensor left on the host ends a run on a GPU, and a value read from it at every token makes it slow."""
    folder = EMBEDDED if family == "embedded" else tmp_path
    if family != "embedded":
        for part in tiny.build_family(family):
            part.save_pretrained(folder)
    counts = count(folder, shared, lora, 4)
    assert counts["device"] == "fake:0" and counts["operations"] > 1000 and counts["shared"] == (shared == "auto")
    assert not counts["mismatches"]
    assert sum(counts["synchronisations"].values()) <= A_STEP + per_token * counts["tokens"], counts["synchronisations"]


@pytest.mark.slow
@pytest.mark.parametrize(("family", "content"), [("embedded", "video"), ("embedded", "talk"), ("qwen2_5_vl", "video"),
                                                 ("qwen2_5_vl", "talk")])  # fmt: skip
def test_videos_and_conversations_mix_no_devices_and_seldom_wait(family, content, tmp_path):
    """What images alone do not touch would end the run of whoever has a GPU and something else."""
    folder = EMBEDDED if family == "embedded" else tmp_path
    if family != "embedded":
        for part in tiny.build(tiny.tokenizer_from(["Go"]), family=family):
            part.save_pretrained(folder)
    counts = count(folder, "auto", "", 4, content)
    assert counts["shared"] and not counts["mismatches"]
    turns = 2 if content == "talk" else 1
    assert sum(counts["synchronisations"].values()) <= A_STEP * turns, counts["synchronisations"]


@pytest.mark.slow
def test_more_rows_wait_no_more_often():
    """A wait for each completion would cost a large batch what it gains."""
    few, many = (count(EMBEDDED, "auto", "", group_size) for group_size in (4, 8))
    assert sum(many["synchronisations"].values()) <= sum(few["synchronisations"].values())


@pytest.mark.slow
def test_what_it_is_to_find_is_found():
    """A watch that sees nothing would pass every step."""
    code = (
        "import torch, fake_device as f; kept = f.register()\n"
        "with f.FakeDevice() as watch:\n"
        "    x = torch.ones(3, device=f.NAME); watch.reset()\n"
        "    x + torch.ones(3); x.sum().item(); x[x > 0]; x.cpu()\n"
        "print(sum(watch.mismatches.values()), sum(watch.synchronisations.values()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=PROGRAM.parent
    )  # fmt: skip
    assert done.stdout.split() == ["1", "3"], done.stderr[-2000:]
