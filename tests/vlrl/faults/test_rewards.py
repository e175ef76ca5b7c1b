"""Rewards of users that raise, hang or give no number: their own episode pays, and nothing else."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
import threading
import time

import pytest
import torch

from tasks.base import Task
from vlrl.algorithms.advantages import grpo
from vlrl.batch import columns, estimate
from vlrl.evaluation.score import score_file
from vlrl.io import OverdueError, deadline
from vlrl.rollout import IN_A_ROW, collect
from vlrl.types import Decision, Observation, Policy, Sample, Score, UserError

LOOP = "while True: pass"
HANGS = {
    "a loop": lambda: exec(LOOP),
    "a sleep": lambda: time.sleep(1e6),
    "a regular expression": lambda: re.match(r"(a+)+$", "a" * 64 + "b"),
    "a process": lambda: subprocess.run([sys.executable, "-c", LOOP], check=True),
    "a loop that takes it for its own error": lambda: _stubborn(),
}


def _stubborn() -> None:
    while True:
        try:
            sum(range(100))
        except Exception:
            continue


class Says(Policy):
    """A policy whose completion is the sample's id and its place."""

    def act(self, episodes, observations, **act):
        return [Decision(f"{e.sample.id}{i}", torch.zeros(2), torch.ones(2), False) for i, e in enumerate(episodes)]


class Users(Task):
    """A task with a reward of its own: what to do for which completion; else the place is the reward."""

    def __init__(self, does, seconds=None):
        self.weights = {"hit": 1.0}
        self.does, self.reward_timeout_s = does, seconds

    def samples(self, split):
        return SAMPLES

    def score(self, episode):
        if episode.completion in self.does:
            self.does[episode.completion]()
            return Score({"hit": math.nan}, 0.0)
        return Score({"hit": float(episode.completion[1:])}, 1.0)

    def reward(self, score):
        return score.parts["hit"]


SAMPLES = [Sample(name, Observation(("?",))) for name in "ab"]
FAULTS = {
    "raises": (lambda: [][1], "reward_raised", "IndexError: list index out of range (test_rewards.py:"),
    "hangs": (HANGS["a sleep"], "reward_late", "not done in train.reward_timeout_s = 3 s"),
    "is not a number": (lambda: None, "reward_not_finite", "reward is nan"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_failed_reward_costs_its_own_episode_alone(fault, capsys):
    """One odd completion would end a run of days; or a broken reward would teach."""
    does, reason, told = FAULTS[fault]
    played = [collect(Says(), Users(wrong, 3.0), SAMPLES, 4) for wrong in ({}, {"b5": does})]
    sound, failed = ([e.reward for e in episodes] for episodes in played)
    assert failed[:5] + failed[6:] == sound[:5] + sound[6:]
    assert failed[5] == pytest.approx((4 + 6 + 7) / 3)  # of the others of its group, so that their mean stays
    assert [e.score.reason for e in played[1]] == [None] * 5 + [reason] + [None] * 2
    rollouts = columns(played[1])
    advantage = estimate(rollouts, [grpo])
    assert not advantage[5].any() and not rollouts.mask[5].any()
    torch.testing.assert_close(advantage[:4], estimate(columns(played[0]), [grpo])[:4])
    assert f"1 of 8 rewards failed and give no credit; the first: sample b: {told}" in capsys.readouterr().err


def test_what_failed_is_told(capsys):
    """A user could not mend what is not named."""
    collect(Says(), Users({"a1": FAULTS["raises"][0], "b5": lambda: None}), SAMPLES, 4)
    (line,) = capsys.readouterr().err.splitlines()[1:]
    assert line.startswith(
        "vlrl: 2 of 8 rewards failed and give no credit; the first: sample a: IndexError: list index"
    )
    assert "(test_rewards.py:" in line


def test_alone_a_failed_reward_counts_as_wrong():
    """An accuracy would rise by leaving out what could not be scored."""
    episodes = collect(Says(), Users({"a0": lambda: None}), SAMPLES, 1, greedy=True)
    assert [(e.reward, e.score.correct, e.score.reason) for e in episodes] == [
        (0.0, 0.0, "reward_not_finite"), (1.0, 1.0, None)
    ]  # fmt: skip


def test_a_reward_that_always_fails_stops_the_run():
    """A run would go through its whole budget without a signal."""
    task = Users({f"{name}{i}": lambda: {}["key"] for i in range(99) for name in "ab"})
    for _ in range(IN_A_ROW // 4 - 1):
        collect(Says(), task, SAMPLES[:1], 4)
    with pytest.raises(UserError, match=rf"failed {IN_A_ROW} times in a row, last for sample a: KeyError: 'key'"):
        collect(Says(), task, SAMPLES[:1], 4)


@pytest.mark.parametrize("hang", HANGS)
def test_the_deadline_ends_what_hangs(hang):
    """A run would stand still, with nothing in its log."""
    with pytest.raises(OverdueError), deadline(0.1):
        HANGS[hang]()


def test_the_deadline_ends_a_loop_in_any_thread():
    """Asynchronous rollouts are scored in threads, where no signal arrives."""
    found: list[BaseException] = []

    def work() -> None:
        for _ in range(3):
            try:
                with deadline(0.1):
                    exec(LOOP)
            except OverdueError as error:
                found.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(60)
    assert len(found) == 3


def test_nothing_is_raised_after_the_end():
    """A reward just in time would end something else."""
    for _ in range(200):
        try:
            with deadline(1e-3):
                end = time.monotonic() + 0.9e-3
                while time.monotonic() < end:
                    pass
        except OverdueError:
            pass
    time.sleep(0.05)


def test_a_file_is_scored_to_its_end(tmp_path, monkeypatch):
    """One row in a million would end the whole scoring in a traceback."""
    (tmp_path / "my_rewards.py").write_text("def share(a: float, b: float) -> float:\n    return a / b\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    rows = [{"inputs": {"a": a, "b": b}} for a, b in ((1.0, 2.0), (1.0, 0.0), (1e308, 1e-308), (3.0, 1.0))]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    scored = score_file("my_rewards:share", str(file))
    found = [next(scored) for _ in rows]
    with pytest.raises(UserError, match="2 of 4 rows could not be scored, the first is row 2"):
        next(scored)
    assert [row.get("value") for row in found] == [0.5, None, None, 3.0]
    assert found[1]["error"].startswith("ZeroDivisionError: ") and "inf" in found[2]["error"]
