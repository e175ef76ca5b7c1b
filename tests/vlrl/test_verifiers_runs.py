"""Whole runs on environments of verifiers: they resume exactly, and know what they were made with."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

pytest.importorskip("verifiers", reason="the extra verifiers")
pytestmark = pytest.mark.slow

TOY = Path(__file__).parents[1] / "tasks" / "toy_verifiers.py"
CONFIG = """
out: run
task: {name: verifiers, id: ID, held_out: 1}
policy: {model: embedded, max_tokens: 6}
train: {steps: 4, prompts_per_step: 2, group_size: 2, lr: 1.0e-4}
eval: {num_samples: 1, every_steps: 100}
log: {trackers: [], checkpoint_every: 2}
advantages: [{name: grpo, std: group}]
losses: [{name: ppo_clip, low: 0.2, high: 0.2}]
"""


@pytest.mark.parametrize("id", ["toy-verifiers", "toy_verifiers:guess", "toy_verifiers:Shop"])
def test_a_run_resumes_exactly_and_knows_its_versions(id, train, tmp_path):
    """What an environment keeps between episodes must not be needed; an update of it must not pass unnoticed."""
    straight = [("config.yaml",)]
    resumed = [("config.yaml", "train.steps=2"), ("--resume", "run", "train.steps=4")]
    losses = []
    for name, commands in (("straight", straight), ("resumed", resumed)):
        folder = tmp_path / name
        folder.mkdir()
        shutil.copy(TOY, folder)
        (folder / "config.yaml").write_text(CONFIG.replace("ID", id))
        for arguments in commands:
            assert train(folder, *arguments) == 0, (folder / "err").read_text()
        rows = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
        assert rows[-1]["eval/verifiers"].startswith("0.4.") and rows[-1]["eval/environment"] == id
        losses.append([row for row in rows if "loss" in row])
    assert losses[0] == losses[1] and len(losses[0]) == 4
