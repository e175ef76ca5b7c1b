"""A newcomer's first task and method, typed in as the documentation shows them, train."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.slow
SMALL = ["train.steps=1", "train.prompts_per_step=2", "train.group_size=2", "eval.num_samples=4", "log.trackers=[]"]
_spec = importlib.util.spec_from_file_location("documents", Path(__file__).with_name("documents.py"))
documents = sys.modules["documents"] = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(documents)


def block(page: str, file: str) -> str:
    """The block of a page that is to be written into a file."""
    (found,) = [each.text for each in documents.blocks(ROOT / page) if each.file == file]
    return found


def train(folder: Path, *changes: str) -> dict:
    command = [sys.executable, "-m", "vlrl.cli", "train", str(ROOT / "configs" / "gui_grounding.yaml")]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    changes = (f"out={folder / 'run'}", *SMALL, *changes)
    done = subprocess.run([*command, *changes], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads((folder / "run" / "summary.json").read_text())


def test_the_guides_task_trains(tmp_path):
    """A newcomer's first task, typed from the guide, must run."""
    (tmp_path / "digit_sum.py").write_text(block("docs/guides/own_task.md", "tasks/digit_sum.py"))
    assert train(tmp_path, "task=digit_sum:DigitSum")["rollouts"] == 4


def test_the_guides_methods_train(tmp_path):
    """A newcomer's first methods and reward, typed from the guides, must run with their options."""
    (tmp_path / "my_methods.py").write_text(block("docs/guides/own_method.md", "my_methods.py"))
    (tmp_path / "my_losses.py").write_text(block("docs/guides/own_method.md", "my_losses.py"))
    (tmp_path / "short_answers.py").write_text(block("docs/guides/own_reward.md", "short_answers.py"))
    advantages = 'advantages=[{name: "my_methods:leave_one_out", scale: 0.5}]'
    losses = 'losses=[{name: "my_losses:bounded_reinforce", most: 0.1}]'
    process = 'process_rewards=[{name: "short_answers:brief", amount: 0.2}]'
    assert train(tmp_path, advantages, losses, process)["updates"] == 1
