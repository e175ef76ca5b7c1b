"""Files that a command names and that are not there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
RUN = """
import sys
from vlrl.cli import main
code = main(sys.argv[1:])
print([name for name in ("torch", "transformers", "accelerate", "datasets") if name in sys.modules])
sys.exit(code)
"""
CASES = {
    "data": (["train", "gui_grounding", "data.train=nope.jsonl", "out=run"], "nope.jsonl: cannot be read"),
    "data of an evaluation": (["eval", "gui_grounding", "data.test=nope.jsonl"], "check data.test"),
    "model": (["train", "gui_grounding", "policy.model=runs/nope", "out=run"], "there is no folder 'runs/nope'"),
    "teacher": (["train", "gui_grounding", "policy.teacher=./nope", "out=run"], "policy.teacher: there is no folder"),
    "recipe": (["train", "gui_grounding", "recipes/nope.yaml", "out=run"], "there is no config recipes/nope.yaml"),
    "config": (["train", "nope"], "there is no config nope"),
    "run": (["train", "--resume", "nope"], "nope is no run folder"),
    "samples to select": (["select", "gui_grounding", "data.train=nope.jsonl", "--out", "x.jsonl"], "check data.train"),
    "model that records": (["record", "gui_grounding", "policy.model=runs/nope", "--episodes", "1", "--out", "x"],
                           "there is no folder 'runs/nope'"),
    "model that answers": (["best-of", "gui_grounding", "--model", "runs/nope", "--out", "x"],
                           "there is no folder 'runs/nope'"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_what_is_missing_is_found_before_anything_heavy_is_loaded(name, tmp_path):
    """A mistyped path took 14 seconds to be reported, and a model folder 9: torch was loaded first."""
    arguments, expected = CASES[name]
    found = subprocess.run([sys.executable, "-c", RUN, *arguments], cwd=tmp_path, capture_output=True, text=True,
                           env={"PYTHONPATH": str(ROOT), "PATH": ""})  # fmt: skip
    assert found.returncode == 2 and expected in found.stderr, found.stderr
    assert found.stdout == "[]\n" and found.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())  # not even a folder
