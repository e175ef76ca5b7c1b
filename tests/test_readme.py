"""What the README shows works as it stands there."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
SMALL = ["train.steps=1", "train.prompts=2", "train.group_size=2", "eval.samples=4", "log.trackers=[]"]


def block(first_line: str) -> str:
    """The Python block that begins with a line."""
    found = [b for b in re.findall(r"```python\n(.*?)```", README, re.DOTALL) if b.startswith(first_line)]
    assert len(found) == 1, first_line
    return found[0]


def train(folder: Path, *changes: str) -> dict:
    command = [sys.executable, "-m", "vlrl.cli", "train", str(ROOT / "configs" / "gui_grounding.yaml")]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    changes = (f"out={folder / 'run'}", *SMALL, *changes)
    done = subprocess.run([*command, *changes], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads((folder / "run" / "summary.json").read_text())


def test_the_readmes_task_trains(tmp_path):
    """A newcomer's first task, typed from the README, must run."""
    (tmp_path / "digit_sum.py").write_text(block("# tasks/digit_sum.py"))
    assert train(tmp_path, "task=digit_sum:DigitSum")["rollouts"] == 4


def test_the_readmes_method_trains(tmp_path):
    """A newcomer's first method, typed from the README, must run with its option."""
    (tmp_path / "my_methods.py").write_text(block("# my_methods.py"))
    method = 'advantages=[{name: "my_methods:leave_one_out", scale: 0.5}]'
    assert train(tmp_path, method)["updates"] == 1


def test_the_readmes_commands_exist():
    """Every `vlrl` command that the README names must be there."""
    named = set(re.findall(r"(?:`|^)vlrl ([a-z-]+)", README, re.MULTILINE))
    offered = subprocess.run(
        [sys.executable, "-m", "vlrl.cli", "--help"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert named
    assert [name for name in named if name not in offered] == []
