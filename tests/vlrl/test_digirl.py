"""DigiRL: its critics, its curriculum and its filter of steps."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from rewards.gui import advances
from vlrl.algorithms.critics import Critic
from vlrl.algorithms.multi_turn import DigiRL, best, gains, turns_left
from vlrl.checkpoint import flatten, unflatten
from vlrl.types import Rollouts

STILL = 1e-9  # a critic's learning rate at which every value stays 0.5


def rollouts_of(rewards: list[float], turns: list[int], features: Tensor | None = None) -> Rollouts:
    """One token a turn; by default all features are equal."""
    episode = torch.arange(len(turns)).repeat_interleave(torch.tensor(turns))
    one = torch.ones(len(episode), 1)
    return Rollouts(
        tuple(map(str, range(len(turns)))), torch.tensor(rewards), torch.arange(len(turns)), episode, one.bool(), -one,
        one, features=one if features is None else features,
    )  # fmt: skip


def imitated(method: DigiRL, rollouts: Rollouts) -> list[int]:
    return method(rollouts, rollouts.reward[rollouts.episode]).int().tolist()


def test_the_filter_equals_the_worked_example():
    """Other steps would be imitated than those that were worth their cost."""
    # The start promises 0.5 to all, so the best half are the two successes, one of 6 turns and one of 2. With V = 0.5
    # everywhere a turn gains 0.5^(turns left), the last one 1 + 1 - 0.5: only 0.5^5 = 0.031 is below the cost of 0.05.
    rollouts = rollouts_of([1.0, 0.0, 0.9, 0.1], [6, 2, 2, 1])
    method = DigiRL(top=0.5, critic_lr=STILL)
    assert imitated(method, rollouts) == [0, 1, 1, 1, 1, 1, 0, 0, 1, 1, 0]
    assert method.metrics["digirl/imitated"] == pytest.approx(7 / 11)
    assert imitated(DigiRL(top=0.5, critic_lr=STILL, cost=0.6), rollouts) == [0] * 5 + [1, 0, 0, 0, 1, 0]
    paid = replace(rollouts, correct=torch.tensor([1.0, 0.0, 0.0, 0.0]))  # 0.9 is paid for form: no success
    assert imitated(DigiRL(top=0.5, critic_lr=STILL), paid) == [0, 1, 1, 1, 1, 1, *[0] * 5]


def test_failures_are_never_imitated():
    """Where few episodes succeed, failures fill the best share, and a run that imitates them learns to fail."""
    features = torch.tensor([[0.0], [1.0]] * 4)  # so that the value rises in every episode
    failed = rollouts_of([0.0] * 4, [2] * 4, features)
    method = DigiRL(top=1.0, cost=0.0, critic_lr=0.1)
    method(rollouts_of([0.0, 1.0] * 4, [1] * 8, features), torch.zeros(8))  # the critic of turns hears that 1 is good
    for _ in range(3):
        assert imitated(method, failed) == [0] * 8
    assert imitated(method, rollouts_of([0.0, 1.0, 0.0, 0.0], [2] * 4, features)) == [0, 0, 1, 1, 0, 0, 0, 0]


def test_a_turn_gains_what_it_raises_the_value():
    """Other turns would be imitated than those that brought the episode on."""
    values, episode = torch.tensor([0.2, 0.5, 0.52, 0.3]), torch.zeros(4, dtype=torch.int64)
    gained = gains(values, torch.zeros(1), episode, 0.5)
    torch.testing.assert_close(gained, torch.tensor([0.3, 0.02, -0.22, -0.3]))
    gained = gains(values, torch.ones(1), episode, 0.5)
    torch.testing.assert_close(gained, torch.tensor([0.425, 0.27, 0.28, 1.7]))


@pytest.mark.parametrize("seed", range(20))
def test_the_filter_is_that_of_the_reward(seed):
    """`gui.advances` and the trainer would follow two readings of one paper."""
    generator = torch.Generator().manual_seed(seed)
    turns = torch.randint(1, 6, (4,), generator=generator)
    episode = torch.arange(4).repeat_interleave(turns)
    value = torch.rand(len(episode), generator=generator, dtype=torch.float64)
    outcome = torch.randint(0, 2, (4,), generator=generator).double()
    gained = gains(value, outcome, episode, 0.5) > 0.05
    for row, left in enumerate(turns_left(episode).tolist()):
        won = float(outcome[episode[row]])
        following = float(value[row + 1]) if left else 0.0
        wanted = advances(float(value[row]), following, 0.0 if left else won, won * 0.5**left, 0.05)
        assert float(gained[row]) == wanted


def test_the_best_share_is_kept_and_equals_alike():
    """The order of a batch would decide what is learned, or a step would keep nothing."""
    assert best(torch.tensor([0.1, 0.9, 0.5, 0.9, -1.0]), 0.2).tolist() == [False, True, False, True, False]
    assert best(torch.arange(20.0), 0.1).int().tolist() == [0] * 18 + [1, 1]
    assert best(torch.tensor([-0.5]), 0.1).tolist() == [True]
    assert best(torch.full((4,), 0.3), 0.1).all()


def test_surprising_successes_come_first():
    """Without this curriculum, what is solved anyway is imitated again and again."""
    kinds = {"easy": [1.0, 0.0], "hard": [0.0, 1.0]}

    def step(played: list[tuple[str, float]]) -> Rollouts:
        features = torch.tensor([kinds[kind] for kind, _ in played])
        return rollouts_of([reward for _, reward in played], [1] * len(played), features)

    method = DigiRL(top=0.25, critic_lr=0.05)
    for _ in range(20):
        imitated(method, step([("easy", 1.0), ("hard", 0.0)] * 4))
    assert imitated(method, step([("easy", 1.0), ("hard", 1.0), ("easy", 1.0), ("hard", 0.0)])) == [0, 1, 0, 0]
    assert method.metrics["digirl/start_loss"] > 0.7  # the surprise was asked before it was learned


def test_a_critic_learns_what_can_be_told_apart():
    """Values that say no more than the base rate make the curriculum a lottery."""
    generator = torch.Generator().manual_seed(0)
    target = (torch.rand(64, generator=generator) < 0.25).float()
    features = 50 + 10 * torch.randn(64, 8, generator=generator)  # far from standard, as hidden states are
    features[:, 3] += 80 * target
    rate = float(target.mean())
    base = -(rate * math.log(rate) + (1 - rate) * math.log(1 - rate))
    critic = Critic(8, lr=1e-2, epochs=5)
    assert (critic.values(features) == 0.5).all()
    losses = [critic.learn(features, target) for _ in range(80)]
    assert losses[0] == pytest.approx(math.log(2), abs=1e-6)
    assert losses[-1] < 0.5 * base
    values = critic.values(features)
    assert values[target == 1].mean() > values[target == 0].mean() + 0.4
    assert ((values >= 0) & (values <= 1)).all()


def test_a_critic_of_many_features_does_not_learn_by_heart():
    """A step's few outcomes would be memorised, and the next step's values be sure of the wrong thing."""
    generator = torch.Generator().manual_seed(0)
    critic, losses = Critic(1024, lr=1e-2, epochs=5), []
    for _ in range(60):  # outcomes that no feature tells: the best loss is the base rate's, 0.611
        features = torch.randn(16, 1024, generator=generator)
        losses.append(critic.learn(features, (torch.rand(16, generator=generator) < 0.3).float()))
    assert sum(losses[30:]) / 30 < 0.68


def test_a_resumed_critic_goes_on_exactly():
    """A resumed run would imitate other steps than an unbroken one."""
    generator = torch.Generator().manual_seed(1)
    steps = [rollouts_of([1.0, 0.0, 1.0, 0.0], [2, 1, 3, 2], torch.randn(8, 5, generator=generator)) for _ in range(6)]
    whole = DigiRL(top=0.5)
    fresh = whole.state_dict()
    for rollouts in steps[:3]:
        imitated(whole, rollouts)
    tensors: dict[str, Tensor] = {}
    saved = json.loads(json.dumps(flatten(whole.state_dict(), tensors)))  # as a checkpoint keeps it
    resumed, unused = DigiRL(top=0.5), DigiRL(top=0.5)
    resumed.load_state_dict(unflatten(saved, tensors))
    unused.load_state_dict(fresh)
    assert unused.first is None
    for rollouts in steps[3:]:
        assert imitated(whole, rollouts) == imitated(resumed, rollouts)
        assert whole.metrics == resumed.metrics
        features = rollouts.features
        assert torch.equal(whole.turn.values(features), resumed.turn.values(features))
