"""Critics of returns: targets, losses, generalised advantages, and PPO's estimator as a whole."""

from __future__ import annotations

import json
import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from vlrl.algorithms.advantages import ends, returns
from vlrl.algorithms.auxiliary_losses import clipped_squares, edges, expected, hl_gauss
from vlrl.algorithms.critics import HLGauss, Squares, ValueCritic
from vlrl.algorithms.gae import Gae, explained, generalized
from vlrl.batch import estimate
from vlrl.checkpoint import flatten, unflatten
from vlrl.types import Rollouts, UserError

HEADS = [Squares(), Squares(clip=0.2), HLGauss(-1.0, 2.0)]
HEAD_NAMES = ["squares", "clipped", "hl_gauss"]


def rollouts_of(rewards: list[float], turns: list[int], features: Tensor, tokens: int = 1) -> Rollouts:
    episode = torch.arange(len(turns)).repeat_interleave(torch.tensor(turns))
    one = torch.ones(len(episode), tokens)
    reward = torch.tensor(rewards, dtype=torch.float64)
    ids = tuple(map(str, range(len(turns))))
    return Rollouts(ids, reward, torch.arange(len(turns)), episode, one.bool(), -one, one, features=features)


def run(method: Gae, rollouts: Rollouts) -> Tensor:
    return method(rollouts, rollouts.reward[rollouts.episode])


# -- generalised advantages ------------------------------------------------------------------------------------------


def test_generalised_advantages_equal_the_worked_example(golden, near):
    """PPO would credit turns by another rule; episodes broken off would count as ended."""
    inputs, outputs = golden("tppo_egae")
    values = torch.tensor(inputs["values"], dtype=torch.float64)
    last = torch.tensor([False, False, False, True])
    rewards = torch.tensor(inputs["rewards_finished"], dtype=torch.float64)
    options = (inputs["gamma"], inputs["lam"])
    near(generalized(values, rewards, last, *options), outputs["finished"])
    near(generalized(values, 0 * rewards, last, *options, cut=True), outputs["truncated"])


@st.composite
def walks(draw) -> tuple[Tensor, Tensor, Tensor]:
    """Values, rewards and ends of some episodes one behind the other."""
    turns = draw(st.lists(st.integers(1, 5), min_size=1, max_size=5))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    values, rewards = torch.randn(2, sum(turns), generator=generator, dtype=torch.float64)
    episode = torch.arange(len(turns)).repeat_interleave(torch.tensor(turns))
    return values, rewards, ends(episode, torch.ones(len(episode), 1, dtype=torch.bool))


@given(walks(), st.floats(0, 1), st.floats(0, 1))
def test_generalised_advantages_are_the_mix_of_all_horizons(walk, gamma, lam):
    """The definition: (1 - lam) times the sum over n of lam^(n-1) times what n steps and the value behind them tell."""
    values, rewards, last = (column.tolist() for column in walk)
    got = generalized(*walk, gamma, lam).tolist()
    for start in range(len(values)):
        stop = next(t for t in range(start, len(values)) if last[t])
        horizons = []
        for n in range(1, stop - start + 2):
            behind = values[start + n] if start + n <= stop else 0.0
            horizons.append(sum(gamma**k * rewards[start + k] for k in range(n)) + gamma**n * behind - values[start])
        mixed = sum((1 - lam) * lam**n * told for n, told in enumerate(horizons[:-1]))
        assert got[start] == pytest.approx(mixed + lam ** (len(horizons) - 1) * horizons[-1], abs=1e-9)


@given(walks(), st.floats(0, 1))
def test_lambda_one_is_return_minus_value_and_zero_is_one_step(walk, gamma):
    """The two ends of the option would mean something else."""
    values, rewards, last = walk
    torch.testing.assert_close(generalized(*walk, gamma, 1.0), returns(rewards, last, gamma) - values)
    following = torch.cat([values[1:], values[:1]]) * ~last
    torch.testing.assert_close(generalized(*walk, gamma, 0.0), rewards + gamma * following - values)


# -- targets and losses ----------------------------------------------------------------------------------------------


def normal(x: float) -> float:
    return (1 + math.erf(x / math.sqrt(2))) / 2


def test_targets_are_shares_of_a_normal_distribution():
    """The critic would be trained towards other values than it was told."""
    low, high, bins, sigma, target = -1.0, 1.0, 8, 0.75, 0.3
    bounds, deviation = [low + i * 0.25 for i in range(9)], 0.75 * 0.25
    shares = [normal((b - target) / deviation) - normal((a - target) / deviation) for a, b in pairwise(bounds)]
    wanted = torch.tensor(shares, dtype=torch.float64)
    got = hl_gauss(torch.tensor([target], dtype=torch.float64), low, high, bins, sigma)
    torch.testing.assert_close(edges(got, low, high, bins), torch.tensor(bounds, dtype=torch.float64))
    torch.testing.assert_close(got[0], wanted / wanted.sum())


@given(st.lists(st.floats(-0.5, 1.5), min_size=1, max_size=9), st.integers(20, 80), st.floats(0.3, 2))
def test_targets_are_distributions_with_the_targets_as_mean(values, bins, sigma):
    """What the critic says would be off even when it has learned all."""
    low, high = -2.0, 3.0  # at least four deviations beyond any target where sigma / bins <= 0.075
    target = torch.tensor(values, dtype=torch.float64)
    made = hl_gauss(target, low, high, bins, sigma)
    torch.testing.assert_close(made.sum(1), torch.ones_like(target))
    assert (made >= 0).all()
    width = (high - low) / bins
    error = (expected(made, low, high) - target).abs().max()
    assert error <= (0.15 if sigma < 0.5 else 0.02) * width  # centres of bins stand for what lies in them


@given(st.floats(-1e6, 1e6))
def test_targets_beyond_the_bounds_are_taken_to_them(value):
    """A reward outside [low, high] would make every gradient NaN."""
    made = hl_gauss(torch.tensor([value]), 0.0, 1.0, 21)
    assert torch.isfinite(made).all()
    if not 0 <= value <= 1:
        assert torch.equal(made, hl_gauss(torch.tensor([min(max(value, 0.0), 1.0)]), 0.0, 1.0, 21))


def test_a_clipped_value_loss_stops_pulling_beyond_its_range():
    """Values would leap after a few odd returns, or never come back."""
    value = torch.tensor([0.1, 0.5, -0.5, 0.5], requires_grad=True)
    target, old = torch.tensor([1.0, 1.0, 1.0, -1.0]), torch.zeros(4)
    loss = clipped_squares(value, target, old, 0.2)
    assert loss.tolist() == pytest.approx([0.9**2 / 2, 0.8**2 / 2, 1.5**2 / 2, 1.5**2 / 2])
    (grad,) = torch.autograd.grad(loss.sum(), value)
    assert grad.tolist() == pytest.approx([-0.9, 0.0, -1.5, 1.5])  # past the clip towards the target: nothing
    torch.testing.assert_close(clipped_squares(value, target, old, None), (value - target) ** 2 / 2)


@pytest.mark.parametrize("head", HEADS, ids=HEAD_NAMES)
def test_gradients_of_the_heads_equal_finite_differences(head):
    """The critic would learn something else than its loss says."""
    generator = torch.Generator().manual_seed(0)
    output = torch.randn(5, head.width, generator=generator, dtype=torch.float64, requires_grad=True)
    target, old = torch.rand(2, 5, generator=generator, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda x: head.loss(x, target, old), output)


# -- critics ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("head", HEADS, ids=HEAD_NAMES)
def test_a_critic_learns_expected_returns(head):
    """A baseline that tells nothing leaves PPO with the noise of single rollouts."""
    generator = torch.Generator().manual_seed(0)
    features = 50 + 10 * torch.randn(64, 4, generator=generator)  # far from standard, as hidden states are
    truth = 0.5 + 0.4 * torch.sin((features[:, 0] - 50) / 10)
    critic = ValueCritic(4, lr=3e-2, epochs=5, head=head)
    before = critic.values(features)
    assert (before - before[0]).abs().max() < 1e-5  # nothing is known yet
    losses = [critic.learn(features, truth + 0.1 * torch.randn(64, generator=generator)) for _ in range(60)]
    assert losses[-1] < losses[0]
    assert explained(critic.values(features), truth) > 0.85
    assert float((critic.values(features) - truth).mean()) == pytest.approx(0, abs=0.05)


def test_a_classifier_gives_the_mean_of_uncertain_outcomes():
    """With outcomes of 0 and 1 the value must be their rate, not the likelier of the two."""
    critic = ValueCritic(1, lr=5e-2, epochs=5, head=HLGauss(-0.5, 1.5))
    features = torch.ones(40, 1)
    outcomes = torch.tensor([1.0] * 12 + [0.0] * 28)
    for _ in range(60):
        critic.learn(features, outcomes)
    assert critic.values(features).mean().item() == pytest.approx(0.3, abs=0.01)


# -- the estimator ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["squares", "hl_gauss"])
def test_the_first_advantage_is_what_an_untaught_critic_makes_of_it(kind):
    """The critic would have learned a step's outcomes before it is asked for them."""
    method = Gae(gamma=0.9, lam=0.5, critic=kind, low=-1.0, high=1.0)  # both start at a value of 0
    rollouts = rollouts_of([1.0, -1.0], [3, 1], torch.randn(4, 3, generator=torch.Generator().manual_seed(0)))
    torch.testing.assert_close(run(method, rollouts), torch.tensor([0.45**2, 0.45, 1.0, -1.0], dtype=torch.float64))
    assert method.metrics["gae/value"] == pytest.approx(0.0, abs=1e-7)


def test_a_turn_that_raised_the_value_is_credited():
    """Multi-turn episodes would be rewarded as a whole, which needs no critic."""
    kinds = torch.eye(3)  # start, good state, bad state
    method = Gae(gamma=1.0, lam=0.0, critic_lr=0.1, critic_epochs=10)
    good, bad = rollouts_of([1.0] * 4, [2] * 4, kinds[[0, 1] * 4]), rollouts_of([0.0] * 4, [2] * 4, kinds[[0, 2] * 4])
    mixed = rollouts_of([1.0, 0.0, 1.0, 0.0], [2] * 4, kinds[[0, 1, 0, 2] * 2])
    for _ in range(40):
        run(method, mixed)
    to_good, to_bad = run(method, good)[0], run(method, bad)[0]
    assert to_good > 0.25 and to_bad < -0.25
    assert method.metrics["gae/explained"] <= 1


def test_every_token_of_a_turn_has_its_advantage_and_no_other():
    """Tokens would be credited with another turn's value."""
    rollouts = rollouts_of([1.0, 0.0], [2, 1], torch.randn(3, 4), tokens=3)
    values = estimate(rollouts, [Gae(lam=1.0)])
    assert values.tolist() == [[1.0] * 3, [1.0] * 3, [0.0] * 3]


def test_an_earlier_estimator_makes_the_outcome():
    """`[group, gae]` would ignore the group."""
    rollouts = rollouts_of([5.0, 5.0], [2, 1], torch.randn(3, 4))
    assert Gae(lam=1.0)(rollouts, torch.tensor([9.0, 2.0, -1.0])).tolist() == [2.0, 2.0, -1.0]


def test_while_the_critic_warms_up_the_policy_stands_still():
    """The first updates would follow a critic that knows nothing."""
    features = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    rollouts = rollouts_of([1.0, 0.0, 1.0, 0.0], [1] * 4, features)
    warm, cold = Gae(warmup=2), Gae()
    for _ in range(2):
        assert (run(warm, rollouts) == 0).all()
        run(cold, rollouts)
    assert torch.equal(run(warm, rollouts), run(cold, rollouts)) and (run(warm, rollouts) != 0).any()


@settings(max_examples=15)
@given(st.integers(0, 99), st.randoms(use_true_random=False))
def test_the_order_of_episodes_does_not_matter(seed, random):
    """An episode's gradient would hang on where in the batch it happened to stand."""
    turns = [2, 1, 3]
    features = torch.randn(6, 4, generator=torch.Generator().manual_seed(seed))
    order = random.sample(range(3), 3)
    starts = [0, 2, 3]
    rows = [starts[i] + k for i in order for k in range(turns[i])]
    one, other = Gae(), Gae()
    rewards = [1.0, 0.0, 0.5]
    for _ in range(2):
        plain = run(one, rollouts_of(rewards, turns, features))
        moved = run(other, rollouts_of([rewards[i] for i in order], [turns[i] for i in order], features[rows]))
        torch.testing.assert_close(moved, plain[rows], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("kind", ["squares", "hl_gauss"])
def test_a_resumed_critic_goes_on_exactly(kind):
    """A resumed run would train with other baselines than an unbroken one."""
    generator = torch.Generator().manual_seed(1)
    steps = [rollouts_of([1.0, 0.0, 1.0], [2, 1, 3], torch.randn(6, 5, generator=generator)) for _ in range(6)]
    whole = Gae(critic=kind, warmup=4)
    fresh = whole.state_dict()
    for rollouts in steps[:3]:
        run(whole, rollouts)
    tensors: dict[str, Tensor] = {}
    saved = json.loads(json.dumps(flatten(whole.state_dict(), tensors)))  # as a checkpoint keeps it
    resumed, unused = Gae(critic=kind, warmup=4), Gae(critic=kind, warmup=4)
    resumed.load_state_dict(unflatten(saved, tensors))
    unused.load_state_dict(fresh)
    assert not unused.critics
    for rollouts in steps[3:]:
        assert torch.equal(run(whole, rollouts), run(resumed, rollouts))
        assert whole.metrics == resumed.metrics


def test_equal_returns_explain_nothing_and_break_nothing():
    """A step in which all succeed would put NaN into the log."""
    same = torch.ones(4)
    assert explained(0.3 * same, same) == 0.0
    rollouts = rollouts_of([1.0] * 3, [1] * 3, torch.ones(3, 2))
    for kind in ("squares", "hl_gauss"):
        method = Gae(critic=kind)
        for _ in range(3):
            assert torch.isfinite(run(method, rollouts)).all()


def test_bounds_the_wrong_way_round_are_refused():
    """Every target would be NaN."""
    with pytest.raises(UserError, match=r"low 1\.0 must be below high 1\.0"):
        Gae(low=1.0, high=1.0)
