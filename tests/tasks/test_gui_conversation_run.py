"""Conversations in a real browser through the command line: demonstrations, a start, training, a killed run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from vlrl import checkpoint

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
CONFIG = str(ROOT / "configs" / "studies" / "gui_history_agent.yaml")
SMALL = (
    "task.held_out=2", "task.template=short", "task.browsers=2", "task.turns=4", "eval.num_samples=2",
    "log.trackers=[]", "task.pages=[recall-colors, one-back]", "task.context={name: last_images, images: 2}",
)  # fmt: skip
TRAIN = (
    "policy.model=start", "train.steps=2", "train.prompts_per_step=2", "train.group_size=2",
    "eval.every_steps=2", "log.rollouts_every=1", "log.checkpoint_every=1",
)  # fmt: skip
DEADLY = '''
"""The agent whose process dies once, in the middle of an episode of the second step."""

import os
import signal
from pathlib import Path

from tasks.gui_agent import GuiAgent


class Deadly(GuiAgent):
    step = 0

    def at_step(self, step):
        self.step = step

    def environment(self, sample):
        environment, act = super().environment(sample), None
        if self.step == 1 and not Path("died").exists():
            act, turns = environment.step, []

            def step(action, frames=()):
                turns.append(action)
                if len(turns) == 3:
                    Path("died").touch()
                    os.kill(os.getpid(), signal.SIGKILL)
                return act(action, frames)

            environment.step = step
        return environment
'''


def vlrl(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{folder}", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "vlrl.cli", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Demonstrations, a start that has imitated them, a run of two steps."""
    place = tmp_path_factory.mktemp("talks")
    (place / "deadly.py").write_text(DEADLY)
    start = str(ROOT / "configs" / "models" / "gui_history_start.yaml")
    steps = (
        ("record", CONFIG, *SMALL, "policy.model=embedded", "task.turns=8", "--by", "gold", "--episodes", "6",
         "--out", "demos"),
        ("warmstart", start, "lessons=[{episodes: demos}]", "out=start", "steps=80", "images=4"),
        ("train", CONFIG, *SMALL, *TRAIN, "out=run"),
    )  # fmt: skip
    for step in steps:
        done = vlrl(place, *step)
        assert done.returncode == 0, done.stderr
    return place


def test_demonstrations_hold_the_conversation(folder):
    """Each turn's messages; a turn after which older screens are hidden begins anew."""
    episodes = [json.loads(line) for line in (folder / "demos" / "episodes.jsonl").read_text().splitlines()]
    assert {len(episode["turns"]) for episode in episodes} == {5, 6}
    for episode in episodes:
        assert all(turn["action"].startswith('<answer>["click"') for turn in episode["turns"])
        assert [turn["restart"] for turn in episode["turns"]][:3] == [False, False, True]
        assert [len(turn["frames"]) for turn in episode["turns"]][:3] == [1, 2, 2]


def test_the_run_trains_on_actions(folder):
    """A policy of which no action reached the page would pass every other check."""
    rows = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows if "loss" in row or "reward" in row][-1] == 2
    episodes = [
        json.loads(line)
        for file in (folder / "run" / "rollouts").glob("*.jsonl")
        for line in file.read_text().splitlines()
    ]
    assert any("click" in (row["answer"] or ()) for row in episodes)
    assert all(mark["image"] < len(row["images"]) for row in episodes for mark in row["marks"])


def left(run: Path) -> dict[str, bytes]:
    """What a run leaves behind that depends on no clock."""
    kept = [run / "metrics.jsonl", *run.glob("rollouts/*.jsonl"), *run.glob("checkpoints/*/model.safetensors")]
    return {file.relative_to(run).as_posix(): file.read_bytes() for file in sorted(kept)}


def test_a_run_killed_in_the_middle_of_an_episode_resumes_exactly(folder):
    """Pages, screens and answers come again as they were: the killed run ends as the one that was left alone."""
    dying = vlrl(folder, "train", CONFIG, "task.name=deadly:Deadly", *SMALL, *TRAIN, "out=killed")
    assert dying.returncode == -signal.SIGKILL, dying.stderr
    assert checkpoint.newest_whole(folder / "killed" / "checkpoints").name == "step_000001"
    resumed = vlrl(folder, "train", "--resume", "killed")
    assert resumed.returncode == 0, resumed.stderr
    assert left(folder / "killed") == left(folder / "run")
