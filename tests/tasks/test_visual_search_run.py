"""Conversations with tools through the command line: demonstrations, a supervised start, training, its report."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """What recording, starting and training leave behind."""
    place, config = tmp_path_factory.mktemp("search"), str(ROOT / "configs" / "visual_search.yaml")
    small = (
        "task.held_out=4",
        "eval.num_samples=4",
        "log.trackers=[]",
        "task.size=[128,128]",
        "task.tools=[zoom,wait]",
    )
    steps = (
        ("record", config, *small, "policy.model=embedded", "--by", "gold", "--episodes", "4", "--out", "demos"),
        ("warmstart", str(ROOT / "configs" / "models" / "visual_search_start.yaml"), "lessons=[{episodes: demos}]",
         "out=start", "start=embedded", "steps=25", "images=4"),
        ("train", config, *small, "policy.model=start", "out=run", "train.steps=2", "train.prompts_per_step=2",
         "train.group_size=2", "log.rollouts_every=1", "task.context={name: last_images, images: 1}"),
    )  # fmt: skip
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    for step in steps:
        command = [sys.executable, "-m", "vlrl.cli", *step]
        done = subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    return place


def test_demonstrations_are_conversations(folder):
    """A call, what it shows, and the answer."""
    episodes = [json.loads(line) for line in (folder / "demos" / "episodes.jsonl").read_text().splitlines()]
    assert [len(episode["turns"]) for episode in episodes] == [2] * 4
    for episode in episodes:
        call, answer = (turn["action"] for turn in episode["turns"])
        assert call.startswith('<tool_call>{"name": "zoom"')
        assert answer.startswith("<answer>")


def test_the_run_reports_how_tools_are_used(folder):
    """Whether the policy learns to look is what the run is for."""
    rows = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    assert {"eval/called_tools", "eval/tool_calls", "eval/malformed_calls", "eval/turns"} <= rows[-1].keys()
    summary = json.loads((folder / "run" / "summary.json").read_text())
    assert summary["rollouts"] == 8
