"""T-PPO's advantages: numbers of the published formula, what the critic learns from, and its state."""

from __future__ import annotations

import pytest
import torch

from vlrl.algorithms.critics import Squares, ValueCritic
from vlrl.algorithms.gae import Egae, at_ends
from vlrl.checkpoint import flatten, unflatten
from vlrl.types import Policy, Rollouts, UserError


class Told:
    """A critic whose values are the states' first numbers, and that keeps what it is to learn."""

    def __init__(self):
        self.learned: list[tuple[torch.Tensor, torch.Tensor]] = []

    def values(self, states):
        return states[:, 0]

    def learn(self, states, target):
        self.learned.append((states, target))
        return 0.0


def step_of(masks: list[list[int]], rewards: list[float], cut: list[bool], episode=None) -> Rollouts:
    mask = torch.tensor(masks, dtype=torch.bool)
    number = torch.arange(len(masks)) if episode is None else torch.tensor(episode)
    ids, nothing = tuple(map(str, range(len(rewards)))), torch.zeros(mask.shape)
    return Rollouts(
        ids, torch.tensor(rewards, dtype=torch.float64), torch.arange(len(rewards)), number, mask, nothing, nothing,
        truncated=torch.tensor(cut),
    )  # fmt: skip


def told(values: list[list[float]], **options) -> tuple[Egae, Told]:
    """An estimator whose critic says these values of each decision's tokens."""
    estimator, critic = Egae(**options), Told()
    estimator.model = critic
    estimator.states = torch.tensor([v for row in values for v in row], dtype=torch.float64)[:, None]
    estimator.lengths = torch.tensor([len(row) for row in values])
    return estimator, critic


def run(estimator: Egae, rollouts: Rollouts) -> torch.Tensor:
    return estimator(rollouts, rollouts.reward[rollouts.episode])


def test_advantages_equal_the_worked_example(golden, near):
    """Answers that are cut would count as failed, or as ended."""
    inputs, outputs = golden("tppo_egae")
    estimator, _ = told([inputs["values"]] * 2, gamma=inputs["gamma"], lam=inputs["lam"])
    rollouts = step_of([[1, 1, 1, 1]] * 2, [inputs["rewards_finished"][-1], 0.0], [False, True])
    found = run(estimator, rollouts)
    near(found[0], outputs["finished"])
    near(found[1], outputs["truncated"])


def test_a_cut_answer_counts_with_its_last_value_discounted():
    """With a discount the last token's delta is (gamma - 1) V. gamma 0.9, lam 0.5, V 0.2 0.4, by hand:

    delta_2 = 0.9 * 0.4 - 0.4 = -0.04; delta_1 = 0.9 * 0.4 - 0.2 = 0.16; A_1 = 0.16 + 0.45 * -0.04 = 0.142.
    """
    estimator, _ = told([[0.2, 0.4]], gamma=0.9, lam=0.5)
    found = run(estimator, step_of([[1, 1]], [0.0], [True]))
    torch.testing.assert_close(found, torch.tensor([[0.142, -0.04]], dtype=torch.float64))


def test_forced_tokens_have_no_advantage_but_are_learned_from():
    """Old tokens would be trained again; or the critic would know the ends of long answers alone."""
    estimator, critic = told([[0.5, 0.1, 0.3], [0.7, 0.2]], lam=1.0)
    found = run(estimator, step_of([[0, 1, 1], [1, 1, 0]], [1.0, 0.0], [False, True]))
    expected = [[0.0, 0.9, 0.7], [-0.5, 0.0, 0.0]]  # 1 - V; V_last - V
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64))
    ((states, target),) = critic.learned  # of the finished answer, with its forced token
    assert states[:, 0].tolist() == [0.5, 0.1, 0.3] and target.tolist() == [1.0, 1.0, 1.0]


def test_nothing_is_learned_from_unfinished_answers_alone():
    """A step without an end would teach the critic that all answers are worth nothing."""
    estimator, critic = told([[0.5, 0.1]])
    run(estimator, step_of([[1, 1]], [0.0], [True]))
    assert critic.learned == [] and estimator.metrics == {"egae/value": pytest.approx(0.3)}


def test_turns_are_paid_at_their_last_tokens():
    """What a turn earned would go to the next one's first words."""
    mask = torch.tensor([[1, 1, 0], [0, 1, 1], [1, 0, 0]], dtype=torch.bool)
    assert at_ends(torch.tensor([1.0, 2.0, 3.0]), mask).tolist() == [0.0, 1.0, 0.0, 2.0, 3.0]
    estimator, _ = told([[0.0, 0.0], [0.0]], lam=0.5)
    found = run(estimator, step_of([[1, 1], [1, 0]], [1.0], [False], episode=[0, 0]))
    torch.testing.assert_close(found, torch.tensor([[0.25, 0.5], [1.0, 0.0]], dtype=torch.float64))


def test_the_critic_learns_alone_at_first_and_is_saved():
    """A new critic's noise would move the policy; a resumed run would begin with a new one."""
    estimator = Egae(warmup=1)
    other = Egae(warmup=1)
    rollouts = step_of([[1, 1]], [1.0], [False])
    for step in range(3):
        estimator.states, estimator.lengths = torch.tensor([[1.0, 0.5], [0.2, -1.0]]), torch.tensor([2])
        found = run(estimator, rollouts)
        assert bool((found == 0).all()) == (step == 0)
        if step == 1:
            tensors: dict[str, torch.Tensor] = {}
            plain = flatten(estimator.state_dict(), tensors)
            other.load_state_dict(unflatten(plain, {name: value.clone() for name, value in tensors.items()}))
    other.states, other.lengths = torch.tensor([[1.0, 0.5], [0.2, -1.0]]), torch.tensor([2])
    assert torch.equal(run(other, rollouts), found)
    assert isinstance(other.model, ValueCritic) and isinstance(other.model.head, Squares)


def test_a_policy_without_tokens_is_refused():
    """A robot's run would end in a traceback."""
    with pytest.raises(UserError, match="use gae"):
        Egae().revisit(Policy(), [])
