"""Advantage estimators against worked examples and their laws."""

from __future__ import annotations

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from vlrl.algorithms.advantages import batch_norm, entropy_shaping, grpo, weighted
from vlrl.algorithms.policy_losses import constant, ppo_clip
from vlrl.batch import columns, estimate
from vlrl.types import Batch, Decision, Episode, Evaluation, Observation, Rollouts, Sample, Step, Turn

REWARDS = st.floats(-10, 10, width=32)
STD = st.sampled_from(["group", "batch", "none"])


def rollouts_of(rewards: list[float], groups: list[int], mask: torch.Tensor | None = None, **columns) -> Rollouts:
    """One decision per episode; what is left out is one token of probability 1 per decision."""
    n = len(rewards)
    reward = torch.tensor(rewards, dtype=torch.float64)
    mask = torch.ones(n, 1, dtype=torch.bool) if mask is None else mask
    columns = {"logprobs": torch.zeros(mask.shape), "entropy": torch.zeros(mask.shape)} | columns
    return Rollouts(tuple(map(str, range(n))), reward, torch.tensor(groups), torch.arange(n), mask, **columns)


@st.composite
def batches(draw) -> tuple[list[float], list[int]]:
    """Rewards and group numbers in any order, groups of any size; equal rewards are common, as with rules."""
    n = draw(st.integers(1, 24))
    rewards = draw(st.lists(st.sampled_from([0.0, 0.1, 0.3, 1.0]) | REWARDS, min_size=n, max_size=n))
    return rewards, draw(st.lists(st.integers(0, 5), min_size=n, max_size=n))


@st.composite
def shapings(draw) -> tuple[Rollouts, torch.Tensor]:
    """Columns with tokens of any probability and entropy, and an advantage per decision."""
    n, length = draw(st.integers(1, 5)), draw(st.integers(1, 6))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    mask = torch.rand(n, length, generator=generator) < draw(st.floats(0, 1))
    advantage = torch.randn(n, generator=generator, dtype=torch.float64) * 10 ** draw(st.integers(-8, 3))
    logprobs = -20 * torch.rand(n, length, generator=generator, dtype=torch.float64) ** 4
    full = 12 * torch.rand(n, length, generator=generator, dtype=torch.float64)
    return rollouts_of([0.0] * n, [0] * n, mask, logprobs=logprobs, entropy=full), advantage


@pytest.mark.parametrize(
    ("example", "std"), [("grpo_advantage", "group"), ("drgrpo_advantage", "none"), ("liteppo_advantage", "batch")]
)
def test_group_equals_the_worked_examples(golden, near, example, std):
    """GRPO, Dr. GRPO and Lite PPO would not be what their recipes say."""
    inputs, outputs = golden(example)
    groups = [i // inputs["group_size"] for i in range(len(inputs["rewards"]))]
    rollouts = rollouts_of(inputs["rewards"], groups)
    near(grpo(rollouts, rollouts.reward, std=std), outputs["adv"])


@given(batches(), STD)
@example(([0.1] * 3, [0] * 3), "none")  # the mean of these is not 0.1
@example(([0.1] * 3, [0] * 3), "group")
def test_group_sums_to_zero_and_equal_rewards_give_exactly_zero(batch, std):
    """A prompt that is always solved, or never, would push the policy by rounding errors."""
    rewards, groups = batch
    rollouts = rollouts_of(rewards, groups)
    advantage = grpo(rollouts, rollouts.reward, std=std)
    for number in set(groups):
        members = rollouts.group == number
        values = rollouts.reward[members]
        if values.min() == values.max():
            assert (advantage[members] == 0).all()
        assert abs(advantage[members].sum()) <= 1e-7 * max(1.0, float(advantage.abs().max()))


@given(batches(), st.sampled_from(["group", "batch", "none", "batch_norm"]), st.randoms(use_true_random=False))
def test_the_order_of_the_batch_does_not_matter(batch, method, random):
    """A sample's gradient would hang on where in the batch it happened to stand."""
    rewards, groups = batch
    order = random.sample(range(len(rewards)), len(rewards))

    def run(rewards: list[float], groups: list[int]) -> torch.Tensor:
        rollouts = rollouts_of(rewards, groups)
        if method == "batch_norm":
            return batch_norm(rollouts, rollouts.reward)
        return grpo(rollouts, rollouts.reward, std=method)

    permuted = run([rewards[i] for i in order], [groups[i] for i in order])
    torch.testing.assert_close(permuted, run(rewards, groups)[order], rtol=1e-6, atol=1e-6)


def test_every_turn_of_an_episode_gets_its_episodes_advantage():
    """Multi-turn episodes would be credited with another episode's outcome."""
    one_turn = rollouts_of([1.0, 0.0, 0.0], [0, 0, 0])
    turns = torch.tensor([0, 0, 1, 2, 2, 2])
    rollouts = Rollouts(
        one_turn.sample_ids, one_turn.reward, one_turn.group, turns,
        torch.ones(6, 1, dtype=torch.bool), torch.zeros(6, 1), torch.zeros(6, 1),
    )  # fmt: skip
    advantage = grpo(rollouts, rollouts.reward[turns])
    assert torch.equal(advantage, grpo(one_turn, one_turn.reward)[turns])


@given(st.lists(REWARDS, min_size=2, max_size=30))
def test_batch_norm_gives_mean_zero_and_at_most_unit_variance(values):
    """The step size would drift with the reward's scale, or a batch of equal rewards would become NaN."""
    advantage = torch.tensor(values, dtype=torch.float64)
    normal = batch_norm(rollouts_of(values, [0] * len(values)), advantage)
    variance = float(advantage.var(correction=0))
    assert abs(float(normal.mean())) < 1e-6
    assert float(normal.var(correction=0)) == pytest.approx(min(1.0, variance / 1e-6), abs=1e-6)


@pytest.mark.parametrize("ddof", [0, 1])
def test_batch_norm_divides_by_the_deviation_that_a_recipe_names(ddof):
    """PPO's and SPO's released code divide by the Bessel-corrected deviation: small batches would move further."""
    advantage = torch.tensor([1.0, 2.0, 4.0, -3.0], dtype=torch.float64)
    normal = batch_norm(rollouts_of(advantage.tolist(), [0, 1, 2, 3]), advantage, ddof=ddof)
    torch.testing.assert_close(normal, (advantage - advantage.mean()) / advantage.std(correction=ddof))


def test_advantages_stay_within_the_mask():
    """What an estimator leaves on padding and forced tokens would enter means and reports of advantages."""
    mask = torch.tensor([[True, True, False], [False, True, False]])
    rollouts = rollouts_of([0.0, 0.0], [0, 1], mask)
    assert torch.equal(estimate(rollouts, [lambda rollouts, advantage: torch.ones(2, 3)]), mask.float())


def test_batch_norm_refuses_token_level_advantages():
    """Normalising after shaping would silently move the shaped tokens' mean."""
    with pytest.raises(ValueError, match="before token-level shaping"):
        batch_norm(rollouts_of([0.0], [0]), torch.zeros(1, 3))


@pytest.mark.parametrize(("entropy", "output"), [("sampled_plogp", "adv_code"), ("full", "adv_full_entropy")])
def test_shaping_equals_the_worked_example(golden, near, entropy, output):
    """MSSR without its shaping collapses; with another one it is another method."""
    inputs, outputs = golden("mssr_advantage_shaping")
    mask, old, full = (torch.tensor(inputs[k], dtype=torch.float64) for k in ("mask", "old_logp", "full_entropy"))
    rollouts = rollouts_of(inputs["rewards"], [0] * len(mask), mask.bool(), logprobs=old, entropy=full)
    baseline = torch.tensor(inputs["baseline"], dtype=torch.float64)
    normal = batch_norm(rollouts, rollouts.reward - baseline)
    near(normal, outputs["adv_norm"])
    near(
        entropy_shaping(rollouts, normal, alpha=inputs["alpha"], kappa=inputs["kappa"], entropy=entropy),
        outputs[output],
    )


@given(shapings(), st.sampled_from(["sampled_plogp", "full"]), st.floats(0, 5), st.floats(1, 8))
def test_shaping_adds_a_bounded_bonus_inside_the_mask_only(case, entropy, alpha, kappa):
    """A bonus that flips a sign rewards wrong answers; one outside the mask trains on padding."""
    rollouts, advantage = case
    before = advantage[:, None] * rollouts.mask
    after = entropy_shaping(rollouts, advantage, alpha=alpha, kappa=kappa, entropy=entropy)
    bonus = after - before
    assert torch.equal(after[~rollouts.mask], before[~rollouts.mask])
    assert (after * before >= 0).all()
    assert (bonus >= -1e-12).all()
    assert (bonus <= before.abs() / kappa + 1e-12 * before.abs()).all()


@given(shapings(), st.randoms(use_true_random=False))
def test_shaping_does_not_depend_on_the_order_of_the_batch(case, random):
    """A sample's gradient would hang on where in the batch it happened to stand."""
    rollouts, advantage = case
    order = random.sample(range(len(advantage)), len(advantage))
    moved = rollouts_of(
        [0.0] * len(order), [0] * len(order), rollouts.mask[order],
        logprobs=rollouts.logprobs[order], entropy=rollouts.entropy[order],
    )  # fmt: skip
    assert torch.equal(entropy_shaping(moved, advantage[order]), entropy_shaping(rollouts, advantage)[order])


def episode_of(weight: float, reward: float, lengths: list[int], group: int = 0) -> Episode:
    """Turns of so many tokens on a sample of that weight."""
    decisions = [Decision("", torch.full((n,), -1.0), torch.ones(n), truncated=False) for n in lengths]
    shown = Observation(("?",))
    turns = [Turn(shown, decision, Step(shown)) for decision in decisions]
    return Episode(Sample("a", shown, weight=weight), group, turns, reward=reward)


def test_samples_count_one_unless_told():
    """Every other method would be weighted too."""
    shown = Observation(("?",))
    rollouts = columns([episode_of(Sample("a", shown).weight, reward, [2]) for reward in (1.0, 0.0)])
    advantage = grpo(rollouts, rollouts.reward)
    assert rollouts.weight.tolist() == [1.0, 1.0]
    assert torch.equal(weighted(rollouts, advantage), advantage)
    bare = rollouts_of([1.0, 0.0], [0, 0])  # columns made by hand
    assert torch.equal(weighted(bare, bare.reward), bare.reward)


def test_a_weight_reaches_every_turn_of_its_sample():
    """Another sample's difficulty would scale the gradient."""
    rollouts = columns([episode_of(2.0, 1.0, [3, 1]), episode_of(0.5, 1.0, [2])])
    assert weighted(rollouts, torch.ones(3)).tolist() == [2.0, 2.0, 0.5]


@given(st.lists(st.tuples(REWARDS, st.integers(1, 128)), min_size=2, max_size=8), st.floats(0, 8, width=32))
def test_gui_g1s_objective(completions, rate):
    """GUI-G1: the mean over the batch of rate / 64 times the sum over tokens of minus (reward - mean of the group)."""
    rollouts = columns([episode_of(rate, reward, [length]) for reward, length in completions])
    advantage = estimate(rollouts, [lambda r, a: grpo(r, a, std="none"), weighted])
    now = Evaluation(rollouts.logprobs, rollouts.entropy, rollouts.mask)
    batch = Batch(advantage, rollouts.logprobs, rollouts.mask)
    loss = (ppo_clip(now, batch, low=1.0, high=1.0) * constant(rollouts.mask, length=64)).sum()
    mean = sum(reward for reward, _ in completions) / len(completions)
    terms = [-rate / 64 * length * (reward - mean) for reward, length in completions]
    assert float(loss) == pytest.approx(sum(terms) / len(terms), abs=1e-3)
