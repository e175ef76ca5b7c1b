"""How offline learning is judged: who made the data, what they cover, and the score between chance and the expert."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlrl.cli import main
from vlrl.offpolicy.base import Transitions, concat, windows
from vlrl.offpolicy.config import RewardSection
from vlrl.offpolicy.learner import episodes, normalised, properties, references, spread_out, summarise_protocol, weighed

LOW, HIGH = np.full(2, -1, np.float32), np.ones(2, np.float32)
CONFIG = """
task: {name: "line_task:LineTask", scenes: 20}
out: run
agent: {name: bc, hidden: 16}
offline: [{name: scripted, episodes: 10, expert: 0.5, poor: 0.0}]
updates: 20
ticks: 0
batch_size: 16
eval: {num_samples: 4}
"""


def recorded(ticks: int, chunk: int, seed: int, won: bool) -> Transitions:
    """An episode of chunks from each tick, that paid 1, 2, 3 and on."""
    rng = np.random.default_rng(seed)
    return windows(
        rng.standard_normal((ticks + 1, 3)), rng.uniform(-1, 1, (ticks, 2)).astype(np.float32), chunk, won=won,
        ended=won, paid=np.arange(1.0, ticks + 1),
    )  # fmt: skip


def played(turns: int, chunk: int, seed: int) -> Transitions:
    """An episode of chunks one after the other, of which the last was carried out half; each paid 1."""
    rng = np.random.default_rng(seed)
    states = rng.standard_normal((turns + 1, 3))
    return Transitions(
        state=states[:-1], next_state=states[1:], action=rng.uniform(-1, 1, (turns, chunk, 2)), reward=np.zeros(turns),
        terminal=np.zeros(turns), used=np.r_[np.ones(turns - 1), 0.5], person=np.zeros(turns), paid=np.ones(turns),
    )  # fmt: skip


@given(st.lists(st.tuples(st.integers(1, 9), st.booleans()), min_size=1, max_size=6), st.integers(1, 5))
def test_episodes_are_found_again(takes, chunk):
    """Rows tell nothing of where an episode began; success and return of the behaviour policy hang on it."""
    parts = [recorded(ticks, chunk, seed, won) for seed, (ticks, won) in enumerate(takes)]
    whole = concat(parts)
    assert [len(rows) for rows in episodes(whole)] == [ticks for ticks, _ in takes]
    found = properties(weighed(whole, RewardSection()), RewardSection(), LOW, HIGH)
    assert (found.episodes, found.ticks) == (len(takes), sum(ticks for ticks, _ in takes))
    assert found.success == pytest.approx(np.mean([won for _, won in takes]))
    assert found.returns == pytest.approx(np.mean([ticks * (ticks + 1) / 2 for ticks, _ in takes]), rel=1e-5)


def test_episodes_that_were_played_are_found_too():
    """A user's own source may give decisions one after the other: 3 and 2 chunks of four ticks, the last half used."""
    whole = concat([played(3, 4, 0), played(2, 4, 1)])
    assert [rows.tolist() for rows in episodes(whole)] == [[0, 1, 2], [3, 4]]
    found = properties(whole, RewardSection(), LOW, HIGH)
    assert (found.ticks, found.returns) == (10 + 6, 2.5)


@pytest.mark.parametrize("section", [RewardSection(success=10.0, step=-0.1, shaped=0.5), RewardSection(success=0.0)])
def test_success_does_not_hang_on_what_a_run_rewards(section):
    """Else two runs on the same data would be compared with two behaviour policies. Weight 0 shows none."""
    whole = concat([recorded(5, 3, seed, won=seed < 1) for seed in range(4)])
    found = properties(weighed(whole, section), section, LOW, HIGH)
    assert found.success == (0.25 if section.success else None)


def test_spread_by_hand():
    """Even over 20 bins: 1. Always the same: 0. Two bins as often: log 2 / log 20 = 0.231378. Unmoved: left out."""
    even, zero, half = np.linspace(0, 0.999, 20)[:, None], np.zeros((20, 1)), np.repeat([0.1, 0.9], 10)[:, None]
    low, high = np.zeros(1), np.ones(1)
    assert spread_out(even, low, high) == pytest.approx(1) and spread_out(zero, low, high) == 0
    assert spread_out(half, low, high) == pytest.approx(0.231378, abs=1e-6)
    assert spread_out(np.hstack([even, zero]), np.zeros(2), np.array([1.0, 0.0])) == pytest.approx(1)
    assert spread_out(zero, low, low) == 0


def test_the_score_by_hand():
    """D4RL: 100 * (0.6 - 0.1) / (0.9 - 0.1) = 62.5; below chance it is negative, above the expert over 100."""
    assert normalised(0.6, 0.1, 0.9) == pytest.approx(62.5)
    assert normalised(0.1, 0.1, 0.9) == 0 and normalised(0.0, 0.1, 0.9) < 0 and normalised(1.0, 0.1, 0.9) > 100
    with pytest.raises(ValueError, match="no better than chance"):
        normalised(0.5, 0.2, 0.2)


def test_the_summary_says_who_made_the_data(tmp_path):
    """NeoRL-2: a policy that is worse than the one that recorded is of no use, however it compares with cloning."""
    kept = {"properties": {"episodes": 50, "success": 0.4, "returns": 3.0, "coverage": 0.5, "entropy": 0.9},
            "references": {"random": 0.1, "expert": 0.9}, "set_aside": []}  # fmt: skip
    (tmp_path / "given.json").write_text(json.dumps(kept))
    said = summarise_protocol(tmp_path, {"after": {"value": 0.3}})
    assert said["over_behaviour"] == pytest.approx(-0.1) and said["normalised_score"] == pytest.approx(25)
    # Wilson's interval of 20 of 50
    assert (said["behaviour_low"], said["behaviour_high"]) == pytest.approx((0.2761, 0.5382), abs=1e-3)
    kept["references"] = {}
    (tmp_path / "given.json").write_text(json.dumps(kept))
    assert "normalised_score" not in summarise_protocol(tmp_path, {"after": {"value": 0.3}})
    assert summarise_protocol(tmp_path / "nothing", {}) == {}


def test_a_run_keeps_what_it_was_given(place, capsys):
    """In the run folder, in the summary, in the report and on the screen; also of a run that went on."""
    assert main(["offpolicy", "line.yaml"]) == 0
    kept, said = json.loads(Path("run/given.json").read_text()), json.loads(Path("run/summary.json").read_text())
    assert kept["properties"]["episodes"] == said["given_episodes"] == 10
    assert said["behaviour_success"] == kept["properties"]["success"] >= 0.5
    assert capsys.readouterr().err.count("given: 10 episodes") == 1
    Path("run/summary.json").unlink()
    assert main(["offpolicy", "--resume", "run"]) == 0
    assert json.loads(Path("run/summary.json").read_text())["behaviour_success"] == said["behaviour_success"]


def test_nothing_is_forgotten_or_left_unrewarded_in_silence(place, capsys):
    """A replay that is too small would drop the first episodes; without a reward there is nothing to learn."""
    assert main(["offpolicy", "line.yaml", "capacity=32"]) == 2
    assert "capacity: 32, but" in capsys.readouterr().err
    assert main(["offpolicy", "line.yaml", "reward.success=0.0"]) == 0
    assert "NOTHING of it is rewarded" in capsys.readouterr().err


def test_references_are_played_where_the_task_can():
    """Chance and the script on the same held-out scenes as the policy, through the task's own arms."""
    from vlrl.config import Component
    from vlrl.registry import make

    spec = Component(name="manipulation", robot={"name": "tabletop", "job": "reach"}, horizon=40, held_out=4, workers=1)
    task = make("task", spec, "task")
    config = SimpleNamespace(updates=1, eval=SimpleNamespace(num_samples=4))
    try:
        found = references(task, config)
        assert found["expert"] == 1.0 and found["random"] <= 0.5
        assert found["expert_return"] > found["random_return"]
        assert references(task, SimpleNamespace(updates=0, eval=config.eval)) == {}
    finally:
        task.close()


def test_returns_are_scored_by_hand(tmp_path):
    """NeoRL-2 and D5RL score returns, not successes: 100 * (-2 + 6) / (-1 + 6) = 80, and 1 above the data's -3."""
    kept = {"properties": {"episodes": 4, "success": None, "returns": -3.0, "coverage": 0.5, "entropy": 0.9},
            "references": {"random": 0.0, "expert": 0.0, "random_return": -6.0, "expert_return": -1.0},
            "set_aside": []}  # fmt: skip
    (tmp_path / "given.json").write_text(json.dumps(kept))
    said = summarise_protocol(tmp_path, {"after": {"value": 0.3}}, -2.0)
    assert said["normalised_return"] == pytest.approx(80) and said["return_over_behaviour"] == pytest.approx(1)
    assert "normalised_score" not in said
    assert "normalised_return" not in summarise_protocol(tmp_path, {"after": {"value": 0.3}})


def write_trajectories(path: Path, count: int, seed: int) -> None:
    """A file in NeoRL-2's form of a policy that is half as good as it could be: one tick in two it drives at random."""
    import line_task

    rng, columns, index = np.random.default_rng(seed), [], []
    for number in range(count):
        played, over = line_task.Line(number, 20, 1), False
        state = played.reset().state
        index.append(len(columns))
        while not over:
            control = np.float32([[rng.uniform(-1, 1)]]) if rng.random() < 0.8 else played.gold(())
            step = played.step(control)
            success, over = "success" in step.info, step.terminated or step.truncated
            columns.append((state, step.observation.state, control[0], float(success), step.terminated))
            state = step.observation.state
    arrays = dict(zip(("obs", "next_obs", "action", "reward", "done"), map(np.array, zip(*columns, strict=True)),
                      strict=True))  # fmt: skip
    np.savez(path, **arrays, index=np.array(index))


def test_offline_learning_from_a_neorl2_file_beats_its_author(place):
    """NeoRL-2's measure: what was learned must be better than the policy that recorded, else it is of no use."""
    write_trajectories(place / "Line-train.npz", 60, 0)
    source = "offline=[{name: neorl2, path: ., success: 1.0, units: physical}]"
    settings = ["agent={name: iql, hidden: 64, expectile: 0.9, beta: 30.0, lr: 3.0e-3}", "updates=1500"]
    small = ["task.chunk=1", "task.ticks=20", "task.scenes=100", "eval.num_samples=100", "batch_size=64"]
    assert main(["offpolicy", "line.yaml", source, *settings, *small]) == 0
    said = json.loads(Path("run/summary.json").read_text())
    assert said["given_episodes"] == 60 and said["behaviour_success"] < 0.5
    assert said["after"]["low"] > said["behaviour_success"] and said["over_behaviour"] > 0.1
