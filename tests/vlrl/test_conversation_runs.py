"""Whole runs on conversations: each family of methods credits their turns, and a killed run resumes exactly."""

from __future__ import annotations

import json
import math
import signal
from collections import defaultdict
from pathlib import Path
from statistics import fmean, stdev

import pytest

pytestmark = pytest.mark.slow

TASK = '''
"""Dialogues whose reward depends on what was written; the process may die in the midst of one."""

import os
import signal
from pathlib import Path

from tasks.dialogue import Dialogue
from vlrl.types import Environment, Score


class Mortal(Environment):
    steps = 0

    def __init__(self, inner, mark):
        self.inner, self.mark = inner, mark

    def reset(self):
        return self.inner.reset()

    def step(self, action, frames=()):
        Mortal.steps += 1
        # 2 steps of an evaluation, then 8 a training step: in the third one, between second turns
        if Mortal.steps == 23 and not self.mark.exists():
            self.mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return self.inner.step(action, frames)

    def close(self):
        self.inner.close()


class Talking(Dialogue):
    def __init__(self, *, mark: str = ""):
        super().__init__(pool=4, held_out=2, size=(32, 32))
        self.mark = Path(mark)

    def environment(self, sample):
        return Mortal(super().environment(sample), self.mark)

    def score(self, episode):
        written = sum(map(ord, "".join(str(turn.decision.action) for turn in episode.turns)))
        return Score({"accuracy": float(written % 2), "format": 1.0}, float(written % 2))
'''
CONFIG = """
out: run
task: {name: "talking:Talking", mark: mark}
policy: {model: embedded, max_tokens: 6}
train: {steps: 2, prompts_per_step: 2, group_size: 2, lr: 1.0e-4}
eval: {num_samples: 1, batch_size: 1, every_steps: 100}
log: {trackers: [], rollouts: 8, checkpoint_every: 2}
advantages: [{name: grpo, std: group}]
losses: [{name: ppo_clip, low: 0.2, high: 0.2}]
"""
GIGPO = "advantages=[{name: gigpo, gamma: 0.5, weight: 1.0, over: episodes, std: none, by: seen}]"
TURN_GAE = "advantages=[{name: gae, gamma: 0.99, lam: 0.9, critic: squares, hidden: 8}, {name: batch_norm, ddof: 1}]"
MSSR = (
    "advantages=[{name: beta_tracker, eta: paper, target_kl: 0.01, start: 1, smoothed: true}, "
    "{name: batch_norm, ddof: 0, var_floor: 1.0e-6}, {name: entropy_shaping, alpha: 0.4, kappa: 2.0}]"
)


def workplace(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "talking.py").write_text(TASK)
    (folder / "config.yaml").write_text(CONFIG)
    (folder / "mark").touch()
    return folder


def credit(folder: Path) -> list[tuple[float, list[float], list[float]]]:
    """Reward, the group's rewards and each turn's mean advantage, of the episodes of the first step, which is saved."""
    lines = [line for file in (folder / "run" / "rollouts").glob("*.jsonl") for line in file.read_text().splitlines()]
    groups = defaultdict(list)
    for row in map(json.loads, lines):
        if row["split"] == "train":
            groups[row["step"], row["group"]].append(row)
    return [
        (row["reward"], [each["reward"] for each in rows], [turn["advantage"] for turn in row["turns"]])
        for rows in groups.values()
        for row in rows
    ]


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("grpo", ()),
        ("gigpo", (GIGPO,)),
        ("turn_gae", (TURN_GAE,)),
        ("mssr", (MSSR, "train.group_size=1", "train.prompts_per_step=4")),
    ],
)
def test_each_method_credits_the_turns_of_a_conversation(method, options, train, tmp_path):
    """A method that knows single turns alone would credit one turn of an episode, or none."""
    folder = workplace(tmp_path / method)
    assert train(folder, "config.yaml", *options) == 0, (folder / "err").read_text()
    rows = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    losses = [row for row in rows if "loss" in row]
    assert len(losses) == 2
    assert all(math.isfinite(row[name]) for row in losses for name in ("loss", "grad_norm", "entropy", "reward"))
    assert all(row["overlong"] == 0 for row in losses)
    episodes = credit(folder)
    assert len(episodes) == 4 and all(len(turns) == 2 for *_, turns in episodes)
    assert any(abs(value) > 1e-3 for *_, turns in episodes for value in turns)
    for reward, group, turns in episodes:
        if method == "grpo":  # one outcome for all that was written
            spread = stdev(group)
            expected = (reward - fmean(group)) / (spread + 1e-4) if spread else 0.0
            assert turns == pytest.approx([expected] * 2, abs=1e-3)
        elif method == "gigpo":  # both turns' images are shown to the whole group; the earlier turn counts half
            assert turns == pytest.approx([1.5 * (reward - fmean(group)), 2.0 * (reward - fmean(group))], abs=1e-4)


def test_a_run_killed_in_the_midst_of_a_conversation_resumes_exactly(train, tmp_path):
    """What is kept of half-played conversations must not be needed, nor leave a trace."""
    metrics = []
    for name in ("straight", "killed"):
        folder = workplace(tmp_path / name)
        if name == "killed":
            (folder / "mark").unlink()
        code = train(folder, "config.yaml", "train.steps=4")
        if name == "killed":
            assert code == -signal.SIGKILL, (folder / "err").read_text()
            code = train(folder, "--resume", "run")
        assert code == 0, (folder / "err").read_text()
        metrics.append((folder / "run" / "metrics.jsonl").read_text())
    assert metrics[0] == metrics[1]
