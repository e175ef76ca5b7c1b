"""Episodes become transitions: what ends an episode is told apart, rewards are weighed, scenes hang on the seed."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch

from vlrl.offpolicy.config import RewardSection
from vlrl.offpolicy.datasets import demonstrations
from vlrl.offpolicy.learner import Acting, by_chance, play, transitions_of, weighed
from vlrl.rollout import collect
from vlrl.types import Decision, Episode, Observation, Sample, Score, Step, Turn, UserError

_spec = importlib.util.spec_from_file_location("line_task", Path(__file__).with_name("line_task.py"))
line_task = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(line_task)
CONTROLS, EDGE, LineTask = line_task.CONTROLS, line_task.EDGE, line_task.LineTask
UNKNOWN = torch.zeros(0)


def driven(speed: float):
    """A policy of one speed."""
    return lambda state, explore: np.full((len(state), 3, 1), speed, np.float32)


def test_how_an_episode_ends_decides_what_is_stored():
    """Learned as ends, time-outs would make every state late in an episode look lost. Hand-made: 2 turns each."""
    rows = {}
    for name, done, cut, won in (("won", True, False, 1.0), ("lost", True, False, 0.0), ("time", False, True, 0.0)):
        shown = [Observation((), np.array([float(i)], np.float32)) for i in range(3)]
        decision = Decision(np.zeros((4, 1), np.float32), UNKNOWN, UNKNOWN, False)
        steps = [Step(shown[1], 0.5), Step(shown[2], 0.25, done, cut, executed=0.5)]
        turns = [Turn(shown[i], decision, step) for i, step in enumerate(steps)]
        rows[name] = transitions_of([Episode(Sample("", shown[0]), 0, turns, Score({}, won))])
    for name, reward, terminal in (("won", 1.0, True), ("lost", 0.0, True), ("time", 0.0, False)):
        made = rows[name]
        assert made.reward.tolist() == [0.0, reward] and made.terminal.tolist() == [False, terminal]
        assert made.state.tolist() == [[0.0], [1.0]] and made.next_state.tolist() == [[1.0], [2.0]]
        assert made.used.tolist() == [1.0, 0.5] and made.paid.tolist() == [0.5, 0.25] and not made.person.any()
        # 2 * verdict - 0.1 a tick (4, then 2) + 4 * what the simulator paid
        found = weighed(made, RewardSection(success=2.0, step=-0.1, shaped=4.0)).reward
        np.testing.assert_allclose(found, [-0.4 + 2.0, 2 * reward - 0.2 + 1.0], rtol=1e-6)


def test_the_real_ends_of_a_task():
    """At full speed to the wrong side the point falls off; standing still the time runs out."""
    task = LineTask(ticks=20)
    samples = [task.samples("train")[i] for i in range(4)]
    away = collect(Acting(driven(1.0)), task, samples, 1)
    for episode in away:
        made, goal = transitions_of([episode]), episode.turns[0].observation.state[1]
        assert made.terminal[-1] and made.reward[-1] == float(goal > 0) and not made.terminal[:-1].any()
        assert goal > 0 or abs(made.next_state[-1, 0]) > EDGE
        assert made.ticks().sum() == round(10 * abs(float(made.next_state[-1, 0])))  # a tenth of a metre a tick
    still = transitions_of(collect(Acting(driven(0.0)), task, samples, 1))
    assert (
        not still.terminal.any()
        and not still.reward.any()
        and still.used[:7].tolist() == pytest.approx([1] * 6 + [2 / 3])
    )


def test_scenes_hang_on_the_seed_and_come_round():
    """Two runs of one seed must meet the same scenes, and each scene before any comes again."""
    task = LineTask(scenes=5)

    def met(first, count, seed):
        return [episode.sample.id for episode in play(Acting(driven(0.0)), task, first, count, seed)]

    once = met(0, 5, 1)
    assert sorted(once) == sorted(task.samples("train")[i].id for i in range(5))
    assert met(0, 10, 1) == once + met(5, 5, 1) and sorted(met(5, 5, 1)) == sorted(once)
    assert met(3, 4, 1) == met(0, 7, 1)[3:]  # as a resumed run goes on
    assert met(0, 5, 2) != once


def test_chance_stays_within_the_limits():
    """Warm-up with clipped noise would see nothing but full speed."""
    chunks = by_chance(CONTROLS.low, CONTROLS.high, 3, np.random.default_rng(0))(np.zeros((500, 2)), True)
    assert chunks.shape == (500, 3, 1) and chunks.dtype == np.float32
    assert -1 <= chunks.min() < -0.99 and 0.99 < chunks.max() <= 1 and abs(chunks.mean()) < 0.06


def test_a_script_shows_the_job():
    """What is remembered must be what was carried out, noise and all: else it shows what never happened."""
    task = LineTask()
    plain, noisy = (demonstrations(task, 0, episodes=6, noise=noise) for noise in (0.0, 0.5))
    assert (plain.reward == plain.terminal).all() and plain.terminal.sum() == 6 * 3  # the last three begin in its end
    assert (np.abs(plain.action) == np.float32(0.8)).all()
    assert np.abs(noisy.action).max() <= 1 and len(np.unique(noisy.action)) > 10
    whole = noisy.used == 1
    moved = noisy.next_state[whole, 0] - noisy.state[whole, 0]
    np.testing.assert_allclose(moved, 0.1 * noisy.action[whole, :, 0].sum(1), atol=1e-6)
    again = demonstrations(task, 0, episodes=6, noise=0.5)
    assert all(np.array_equal(column, again.columns()[name]) for name, column in noisy.columns().items())
    with pytest.raises(UserError, match="20 training scenes"):
        demonstrations(task, 0, episodes=21)


def test_what_cannot_be_learned_from_is_one_line():
    """A robot that shows pictures alone, and a task in words."""
    blind = Observation(("look",))
    with pytest.raises(UserError, match="shows none"):
        Acting(driven(0.0)).act([], [blind])
    shown = Observation((), np.zeros(1, np.float32))
    turn = Turn(shown, Decision("left", UNKNOWN, UNKNOWN, False), Step(shown, terminated=True))
    with pytest.raises(UserError, match=r"remove task\.speech"):
        transitions_of([Episode(Sample("", shown), 0, [turn], Score({}, 0.0))])
