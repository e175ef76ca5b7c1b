"""The process reward model of milestones: where they are found, that it learns them, and that a killed run goes on."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from vlrl.cli import main
from vlrl.contrib.process_rewards.visual import MilestonesReward, grips, labels, positions, rests
from vlrl.imitation.reward_classifier import ClassifierTrainer
from vlrl.types import UserError

ROOT = Path(__file__).parents[4]
SMALL = {"successes": 4, "updates": 40, "hidden": 16, "batch": 64}


def test_a_hand_that_comes_to_rest():
    """Segments would be cut anywhere. Steps of 4, 4, 1, 4, 4, 3, 4: median 4; 1 is below half of it, 3 is not."""
    way = np.cumsum([0.0, 4, 4, 1, 4, 4, 3, 4])[:, None]
    assert rests(way, 0.5) == [2] and rests(way, 0.9) == [2, 5] and rests(way, 0.2) == []


def test_a_pause_counts_once():
    """A robot that waits would be paid for waiting: steps of 4, 0, 0, 4, 4 have one, where the pause begins."""
    assert rests(np.cumsum([0.0, 4, 0, 0, 4, 4])[:, None], 0.5) == [1]


def test_a_gripper_that_opens_or_closes():
    """The moment of grasping is what such a task is about. It closes within two steps, and opens again in one."""
    assert grips(np.array([1, 1, 0.5, 0, 0.02, 0, 1])) == [3, 6]
    assert grips(np.full(5, 0.3)) == [] and grips(0.3 + 1e-9 * np.arange(5)) == []


def test_labels_lie_before_a_milestone():
    """What led to a milestone would count as what came after it."""
    assert labels(7, [0, 4], 2).tolist() == [1, 0, 0, 1, 1, 0, 0]
    assert labels(3, [], 2).tolist() == [0, 0, 0]


def test_the_numbers_of_the_hand_can_be_chosen(played):
    """What else moves in a scene would hide when the hand stops."""
    episode = played([[0, 5, 1], [1, 6, 2], [2, 7, 3]], True)
    assert positions(episode, [0, 2]).tolist() == [[0, 1], [1, 2], [2, 3]]
    with pytest.raises(UserError, match=r"the state has 3 numbers, counted from 0 \(got \[3\]\)"):
        positions(episode, [3])


def stops(rng: np.random.Generator, won: bool) -> np.ndarray:
    """A way along a line: fast, slow around 0.5, fast again; a failure turns round at 0.3."""
    steps = np.where(np.abs(np.linspace(0, 1, 12) - 0.5) < 0.1, 0.01, 0.1) * rng.uniform(0.9, 1.1, 12)
    line = np.concatenate([[0], np.cumsum(steps)])
    return np.stack([line if won else np.minimum(line, 0.6 - line), rng.normal(0, 0.02, 13)], 1)


def step_of(played, seed: int, wins: int = 6) -> list:
    rng = np.random.default_rng(seed)
    return [played(stops(rng, i < wins), i < wins) for i in range(8)]


def test_it_is_off_until_it_has_learned(played):
    """A network that knows nothing would reward at random."""
    reward = MilestonesReward(None, None, 0, **SMALL)
    for step, wins, on in ((0, 3, False), (1, 1, False), (2, 1, True)):  # four successes after the second step
        made = reward(step_of(played, step, wins), step)
        assert any(turn.process_reward for e in made for turn in e.turns) is on
        assert reward.metrics["milestones/on"] == float(on)


def test_it_learns_where_milestones_are(played):
    """Steps would earn alike wherever they led: the reward would say nothing."""
    reward = MilestonesReward(None, None, 0, coef=0.5, form="reward", **SMALL)
    gaps = []
    for step in range(8):
        made = reward(step_of(played, step), step)
        gaps.append(reward.metrics.get("milestones/gap", 0.0))
    assert gaps[-1] > 0.25  # of episodes that it had not learned from
    earned = np.array([[turn.process_reward for turn in e.turns] for e in made])
    assert (earned >= 0).all() and (earned <= 0.5).all()
    assert earned[:6, -1].mean() > 2 * earned[6:, -1].mean()  # an end like a success's


def test_a_potential_pays_the_difference(played):
    """With `form: potential` staying at a milestone would be paid for at every step."""
    plain, potential = (
        MilestonesReward(None, None, 0, coef=0.5, form=form, gamma=0.9, **SMALL) for form in ("reward", "potential")
    )
    for step in range(3):
        given = step_of(played, step)
        sums, gains = plain(given, step), potential(given, step)
    vectors = potential.encoder.encode(given[:1])[0]
    for reward, other in zip(sums[0].turns[1:], range(1, 12), strict=True):
        then, before = reward.process_reward, sums[0].turns[other - 1].process_reward
        assert gains[0].turns[other].process_reward == pytest.approx(0.9 * then - before, abs=1e-9)
    assert len(vectors) == 13


def test_balanced_batches():
    """Where milestones are rare a network that always says no would be nearly always right."""
    rng = np.random.default_rng(0)
    groups = [rng.normal(1, 0.1, (4, 3)), rng.normal(-1, 0.1, (400, 3)), rng.normal(-1, 0.1, (0, 3))]
    learner = ClassifierTrainer(3, hidden=16, lr=1e-2, seed=0)
    learner.learn([group.astype(np.float32) for group in groups], steps=60, batch=64, step=0)
    assert learner.probability(np.float32([[1, 1, 1], [-1, -1, -1]])).round().tolist() == [1, 0]


@pytest.mark.parametrize("killed", [0, 1, 3])
def test_a_killed_run_goes_on_with_the_same_rewards(played, saved, killed):
    """A resumed run would have lost its network, its optimizer's moments or its memory, and be another one."""
    whole, part = MilestonesReward(None, None, 5, **SMALL), MilestonesReward(None, None, 5, **SMALL)
    for step in range(killed):
        whole(step_of(played, step), step)
    part.load_state_dict(saved(whole.state_dict()))
    for step in range(killed, 6):
        rows = [
            [[turn.process_reward for turn in e.turns] for e in reward(step_of(played, step), step)]
            for reward in (whole, part)
        ]
        assert rows[0] == rows[1] and whole.metrics == part.metrics
    assert np.any(rows[0])


def test_words_have_no_speed(played):
    """A language task would stop with a traceback."""
    import dataclasses

    episode = played(None, True, images=[None, None])
    spoken = dataclasses.replace(episode.turns[0].decision, action="left")
    episode.turns[0] = dataclasses.replace(episode.turns[0], decision=spoken)
    with pytest.raises(UserError, match="no states and their actions no numbers"):
        positions(episode, None)


@pytest.mark.slow
def test_a_robot_is_trained_with_it_and_goes_on_exactly(tmp_path):
    """A night of simulation would be lost with one power cut, or go on as another run."""
    small = [
        "train.prompts_per_step=3",
        "train.group_size=4",
        "train.num_minibatches=1",
        "train.update_epochs=1",
        "task.workers=1",
    ]
    less = ["task.scenes=3", "task.held_out=2", "eval.num_samples=2", "log.trackers=[]", "task.horizon=96"]
    mine = [
        "process_rewards=[{name: milestones, successes: 1, updates: 5}]",
        "advantages=[tgrpo]",
        "log.checkpoint_every=1",
    ]
    config = ROOT / "configs" / "manipulation.yaml"
    for name, steps in (("whole", 3), ("part", 2)):
        assert main(["train", str(config), *small, *less, *mine, f"train.steps={steps}", f"out={tmp_path / name}"]) == 0
    written = tmp_path / "part" / "config.yaml"
    written.write_text(written.read_text().replace("steps: 2\n", "steps: 3\n"))
    assert main(["train", "--resume", str(tmp_path / "part")]) == 0
    whole, part = (
        [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        for name in ("whole", "part")
    )
    steps = [row for row in whole if "milestones/on" in row]
    assert [row for row in part if "milestones/on" in row] == steps and part[-1] == whole[-1]
    assert [row["milestones/on"] for row in steps][-1] == 1
