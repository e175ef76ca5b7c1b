"""The bonus for the order of frames: who earns it, and when it teaches anything at all."""

from __future__ import annotations

import copy
import functools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rewards.video import video_r1_temporal_bonus
from vlrl import registry
from vlrl.algorithms import rollout_common
from vlrl.algorithms.advantages import grpo
from vlrl.algorithms.policy_losses import ppo_clip, sequence_mean
from vlrl.algorithms.rollout_filtering import TemporalContrast
from vlrl.batch import columns, decisions_of, estimate
from vlrl.config import Component, Config, PolicySection
from vlrl.policies.loading import load
from vlrl.types import Observation, UserError, Video
from vlrl.update import Updater

GROUP = 8


@pytest.fixture(scope="module")
def policy():
    return load(PolicySection(max_tokens=4))


@pytest.fixture
def make(monkeypatch):
    """`make(graded=True)` -> a task on videos."""
    monkeypatch.syspath_prepend(Path(__file__).parents[2])

    def made(**options):
        section = {"name": "video_task:Clips", **options}
        return registry.make_task(Config.model_validate({"task": section, "out": "x"}))

    return made


def stepped(strategy, policy, task, step: int = 0, count: int = 3):
    policy.generator.manual_seed(11)
    return strategy(policy, task, task.samples("train")[:count], GROUP, step)


def test_each_group_is_compared_with_its_own_shuffled_rollouts(policy, make, monkeypatch):
    """The bonus would be paid for another question's order, or to rollouts that are wrong."""
    task, asked = make(), []
    strategy = TemporalContrast(policy, task, 0, amount=0.4, ratio=1.5)
    monkeypatch.setattr(strategy, "bonus", lambda *given, **options: asked.append((given, options)) or [0.4] * GROUP)
    episodes = stepped(strategy, policy, task)
    assert [e.group for e in episodes] == [i for i in range(3) for _ in range(GROUP)]
    for number, ((accuracies, shuffled), options) in enumerate(asked):
        members = [e for e in episodes if e.group == number]
        assert accuracies == [e.score.parts["accuracy"] for e in members] and len(shuffled) == GROUP // 2
        assert options == {"bonus": 0.4, "ratio": 1.5}
        assert all(e.score.parts["temporal"] == 0.4 for e in members)
        assert all(e.reward == pytest.approx(task.reward(e.score) + 0.4) for e in members)
    mixed = [value for (_, shuffled), _ in asked for value in shuffled]
    ordered = sum(e.score.correct for e in episodes) / len(episodes)
    assert strategy.metrics == {"temporal/ordered": ordered, "temporal/shuffled": sum(mixed) / len(mixed)}


def test_right_rollouts_earn_the_published_bonus(policy, make):
    """It would be another method than T-GRPO."""
    task = make()
    episodes = stepped(TemporalContrast(policy, task, 0, ratio=0.0), policy, task)
    right = [e.score.correct for e in episodes]
    assert 0 < sum(right) < len(right)
    assert [e.score.parts["temporal"] for e in episodes] == video_r1_temporal_bonus(right, [0.0])
    never = stepped(TemporalContrast(policy, task, 0, ratio=1e9), policy, task)
    shuffled_right = [e for e in never if e.score.parts["temporal"]]
    assert len(shuffled_right) < sum(right)


def test_samples_without_a_video_earn_nothing(policy, make):
    """Images have no order that could help, and their rollouts would be doubled for nothing."""
    task = make(still=True)
    strategy = TemporalContrast(policy, task, 0, ratio=0.0)
    episodes = stepped(strategy, policy, task)
    assert all(e.score.parts["temporal"] == 0.0 for e in episodes if e.group == 1)
    ordered = [e.score.correct for e in episodes if e.group != 1]
    assert strategy.metrics["temporal/ordered"] == sum(ordered) / len(ordered)
    images = [task.samples("train")[i] for i in (1, 3)]
    assert len(strategy(policy, task, images, 2, 1)) == 4 and strategy.metrics == {}


def test_shuffled_rollouts_are_not_trained_on(policy, make):
    """Answers to films that run backwards would be learned."""
    task = make()
    episodes = stepped(TemporalContrast(policy, task, 0), policy, task)
    assert len(episodes) == 3 * GROUP
    shown = {id(e.turns[0].observation) for e in episodes}
    assert len(shown) == 3
    for episode in episodes:
        assert episode.turns[0].observation == task.samples("train")[episode.group].prompt


@given(st.integers(1, 12), st.integers(0, 99))
def test_frames_change_places_and_times_stay(n, seed):
    """Times that went along would tell the order; an order that stayed would compare a video with itself."""
    frames = np.arange(n, dtype=np.uint8)[:, None, None, None] + np.zeros((n, 4, 4, 3), np.uint8)
    video = Video(frames, tuple(map(float, range(n))), 1.0, float(n))
    before = Observation(("a", video, "b"))
    after = rollout_common.shuffled(before, np.random.default_rng(seed))
    (mixed,) = after.videos
    assert (mixed.times, after.text) == (video.times, "a\nb")
    order = mixed.frames[:, 0, 0, 0].tolist()
    assert sorted(order) == list(range(n)) and (order != list(range(n))) == (n > 1) == rollout_common.moves(before)


def test_orders_hang_on_seed_step_and_sample():
    """A resumed run would show other orders; every question and step would get the same one."""

    def order(*key) -> list[int]:
        return rollout_common.generator(*key).permutation(50).tolist()

    assert order(0, 1, "a") == order(0, 1, "a")
    assert len({tuple(order(*key)) for key in ((0, 1, "a"), (1, 1, "a"), (0, 2, "a"), (0, 1, "b"))}) == 4


def without_bonus(episodes):
    return [replace(e, reward=e.reward - e.score.parts["temporal"]) for e in episodes]


def trained(policy, episodes, estimator) -> tuple[torch.Tensor, torch.Tensor]:
    """Advantages, and all weights after one step of gradient descent from the policy's."""
    learner = copy.deepcopy(policy)
    rollouts = columns(episodes)
    advantage = estimate(rollouts, [estimator])
    parameters = [p for p in learner.model.parameters() if p.requires_grad]
    updater = Updater(
        learner, torch.optim.SGD(parameters, lr=0.1), [ppo_clip], sequence_mean, backward=lambda loss: loss.backward(),
        clip=lambda: torch.nn.utils.clip_grad_norm_(parameters, 1e9), parts=1, epochs=1, micro=None,
        clip_range=(0.2, 0.2),
    )  # fmt: skip
    assert updater.step(decisions_of(episodes), rollouts, advantage, (0, 0)).updates == 1
    return advantage, torch.cat([p.detach().flatten() for p in parameters])


@pytest.mark.parametrize(
    ("graded", "std", "acts"), [(False, "group", False), (False, "none", True), (True, "group", True)]
)
def test_the_deviation_takes_the_bonus_back_where_accuracy_is_0_or_1(graded, std, acts, policy, make):
    """T-GRPO's published setting, read closely: there the bonus only stretches the rewards, and nothing is learned of
    it. A user would pay half as many rollouts more for nothing; so it must act where the docstring says that it does.
    """
    task = make(graded=graded)
    strategy = TemporalContrast(policy, task, 0, ratio=0.0, accuracy="accuracy")
    episodes = stepped(strategy, policy, task, count=4)
    assert 0 < sum(e.score.parts["temporal"] > 0 for e in episodes) < len(episodes)
    estimator = functools.partial(grpo, std=std)
    start = torch.cat([p.detach().flatten() for p in policy.model.parameters() if p.requires_grad])
    paid, plain = (trained(policy, each, estimator) for each in (episodes, without_bonus(episodes)))
    moved = float((plain[1] - start).norm())
    change = float((paid[0] - plain[0]).abs().max()), float((paid[1] - plain[1]).norm()) / moved
    assert moved > 0
    if acts:
        assert change[0] > 0.05 and change[1] > 0.01
    else:
        assert change[0] < 1e-3 and change[1] < 1e-3


def test_mistakes_are_said_before_a_step(policy, make):
    """The run would stop at its first step, or pay by a part that is not there."""
    task = make()
    for option, named in (
        ({"accuracy": "iou"}, "rollout_strategy.accuracy: 'iou'"),
        ({"bonus": "temporal_bonus"}, "rollout_strategy.bonus"),
        ({"bonus": "rewards.video:temporal_bonsu"}, "rollout_strategy.bonus: cannot find"),
        ({"amount": -1}, "rollout_strategy.amount"),
    ):
        with pytest.raises(UserError, match=named):
            registry.make(
                "rollout_strategy", Component(name="temporal_contrast", **option), "rollout_strategy", policy, task, 0
            )
    task.weights = {"temporal": 1.0}
    with pytest.raises(UserError, match="a part of the reward called 'temporal'"):
        TemporalContrast(policy, task, 0)
