"""Estimators and shapings of the group methods against worked examples and their laws."""

from __future__ import annotations

import functools
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from vlrl import recipe_checks
from vlrl.algorithms.advantages import a_grae, dgpo, grpo, leave_one_out, max_rl, middling, ngrpo, top_entropy
from vlrl.algorithms.reward_shaping import shortest_bonus, trust
from vlrl.batch import columns, estimate, shaped
from vlrl.config import Config
from vlrl.types import Decision, Episode, Observation, Rollouts, Sample, Score, Step, Turn, UserError

ESTIMATORS = {"leave_one_out": leave_one_out, "ngrpo": ngrpo, "a_grae": a_grae, "dgpo": dgpo, "middling": middling}
BALANCED = functools.partial(dgpo, temperature=None, fill=False, eps=1e-12)


def rollouts_of(rewards: list[float], groups: list[int], lengths: list[int] | None = None, **columns) -> Rollouts:
    """One decision of one token per episode, unless `lengths` says otherwise."""
    n, lengths = len(rewards), lengths or [1] * len(rewards)
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    nothing = torch.zeros(mask.shape)
    reward = torch.tensor(rewards, dtype=torch.float64)
    ids = tuple(map(str, range(n)))
    return Rollouts(ids, reward, torch.tensor(groups), torch.arange(n), mask, nothing, nothing, **columns)


def batch_of(inputs: dict) -> Rollouts:
    return rollouts_of(inputs["rewards"], [i // inputs["group_size"] for i in range(len(inputs["rewards"]))])


@st.composite
def batches(draw) -> Rollouts:
    """Rewards of 0 to 1 in groups of any size and order; groups of equal rewards are common."""
    n = draw(st.integers(1, 24))
    rewards = draw(st.lists(st.sampled_from([0.0, 0.1, 0.3, 1.0]) | st.floats(0, 1), min_size=n, max_size=n))
    groups = draw(st.lists(st.integers(0, 5), min_size=n, max_size=n))
    return rollouts_of(rewards, groups, draw(st.lists(st.integers(1, 5), min_size=n, max_size=n)))


def numbers_of(rollouts: Rollouts) -> list[Tensor]:
    return [(rollouts.group == number).nonzero().flatten() for number in rollouts.group.unique()]


@pytest.mark.parametrize(
    ("example", "estimator"),
    [
        ("rloo_advantage", leave_one_out),
        ("ngrpo_advantage", ngrpo),
        ("a_grae_advantage", a_grae),
        ("max_rl_advantage", max_rl),
    ],
)
def test_estimators_equal_the_worked_examples(golden, near, example, estimator):
    """RLOO, NGRPO, A-GRAE and MaxRL would not be what their recipes say."""
    inputs, outputs = golden(example)
    rollouts = batch_of(inputs)
    near(estimator(rollouts, rollouts.reward), outputs["adv"])


def test_the_mask_of_high_entropy_equals_the_worked_example(golden):
    """Other tokens would learn than those where the policy could go several ways."""
    inputs, outputs = golden("top_entropy_mask")
    entropy = torch.tensor(inputs["entropy"], dtype=torch.float64)
    rollouts = rollouts_of([1.0, 0.0, 1.0], [0, 1, 2], [4, 3, 2])
    rollouts = replace(rollouts, entropy=entropy)
    for share, kept in zip(inputs["shares"], outputs["kept"], strict=True):
        assert (top_entropy(rollouts, -torch.ones(3), share=share) != 0).int().tolist() == kept


def test_observe_r1_equals_the_worked_example(golden, near):
    """The bonus would go to another completion, or the weight to other prompts."""
    inputs, outputs = golden("observe_r1_advantage")
    rollouts = rollouts_of(inputs["rewards"], [0] * 4, inputs["lengths"])
    paid = shaped(rollouts, [functools.partial(shortest_bonus, longer_than=inputs["constraint"])])
    near(paid.reward, outputs["shaped"])
    near(middling(paid, torch.ones(4), sigma=inputs["sigma"]), [outputs["weight"]] * 4)
    near(estimate(paid, [functools.partial(grpo, eps=1e-9), middling])[:, 0], outputs["adv"])


@pytest.mark.parametrize("case", ["case1", "case2"])
def test_trust_equals_the_worked_example(golden, near, case):
    """A judge that contradicts the answers would be believed."""
    inputs, outputs = golden("trust_grpo_reward")
    given_, wanted = inputs[case], outputs[case]
    parts = {"thinking": torch.tensor(given_["think"], dtype=torch.float64)}
    rollouts = rollouts_of([float(x) for x in given_["ans"]], [0] * 4, parts=parts, step=given_["step"])
    near(trust(rollouts, thinking="thinking", period=inputs["T"]), wanted["reward"])


# answers, judged thinking, step -> rewards, by the released code's rule (least 0.2, period 500)
RELEASED = [
    ([1.0, 1.0, 0.0, 0.0], [0.9, 0.8, 0.9, 0.9], 0, [1.27, 1.24, 0.0, 0.0]),
    ([0.3, 0.3, 0.2, 0.0], [0.5, 0.6, 0.7, 0.8], 0, [0.45, 0.48, 0.41, 0.0]),  # none is right: nothing to doubt
    ([0.95, 0.9, 1.0, 1.0], [0.5, 0.5, 0.5, 0.5], 0, [0.95, 0.9, 1.0, 1.0]),  # all right: no term
]


@pytest.mark.parametrize(("answers", "thoughts", "step", "wanted"), RELEASED)
def test_trust_follows_the_released_code_at_its_edges(answers, thoughts, step, wanted, near):
    """Groups that are all right or all wrong would be paid for pleasing the judge."""
    parts = {"judge": torch.tensor(thoughts, dtype=torch.float64)}
    near(trust(rollouts_of(answers, [0] * 4, parts=parts, step=step), thinking="judge", least=0.2), wanted)


def test_trust_without_the_part_is_told():
    """The run would stop with a KeyError that its user never wrote."""
    with pytest.raises(UserError, match=r"trust: the reward has no part 'judge' \(one of: form\)"):
        trust(rollouts_of([1.0, 0.0], [0, 0], parts={"form": torch.ones(2)}), thinking="judge")


@given(batches())
def test_leave_one_out_is_the_reward_less_the_mean_of_the_others(rollouts):
    """A baseline that holds the completion's own reward shrinks its gradient."""
    advantage = leave_one_out(rollouts, rollouts.reward)
    for members in numbers_of(rollouts):
        rewards = rollouts.reward[members]
        for i, position in enumerate(members):
            others = torch.cat([rewards[:i], rewards[i + 1 :]])
            wanted = rewards[i] - others.mean() if len(others) else torch.tensor(0.0, dtype=torch.float64)
            torch.testing.assert_close(advantage[position], wanted, rtol=0, atol=1e-9)
        assert abs(float(advantage[members].sum())) < 1e-9


@pytest.mark.parametrize("name", ESTIMATORS)
@given(rollouts=batches(), random=st.randoms(use_true_random=False))
def test_the_order_of_the_batch_does_not_matter(name, rollouts, random):
    """A sample's gradient would hang on where in the batch it happened to stand."""
    order = random.sample(range(len(rollouts.reward)), len(rollouts.reward))
    moved = replace(rollouts, reward=rollouts.reward[order], group=rollouts.group[order], mask=rollouts.mask[order])
    advantage = ESTIMATORS[name](rollouts, rollouts.reward)
    torch.testing.assert_close(ESTIMATORS[name](moved, moved.reward), advantage[order], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["leave_one_out", "a_grae", "dgpo"])
@given(rollouts=batches())
def test_groups_of_equal_rewards_give_exactly_zero(name, rollouts):
    """A prompt that is always solved, or never, would push the policy by rounding errors, or as NaN."""
    advantage = ESTIMATORS[name](rollouts, rollouts.reward)
    assert torch.isfinite(advantage).all()
    for members in numbers_of(rollouts):
        if len(rollouts.reward[members].unique()) == 1:
            assert not advantage[members].any()


@given(batches())
def test_ngrpo_is_grpo_with_the_best_reward_among_the_group(rollouts):
    """The virtual completion would be trained on, or count otherwise than a real one."""
    advantage = ngrpo(rollouts, rollouts.reward, virtual=2)
    for members in numbers_of(rollouts):
        rewards = rollouts.reward[members]
        joined = torch.cat([rewards, rewards.new_ones(2)])
        wanted = (rewards - joined.mean()) / (joined.std() + 1e-6)
        torch.testing.assert_close(advantage[members], wanted, rtol=1e-5, atol=1e-5)
        assert float(advantage[members].sum()) <= 1e-9


def test_ngrpo_refuses_rewards_above_the_best():
    """A best that is too small turns wrong answers into good ones."""
    rollouts = rollouts_of([1.5, 0.0], [0, 0])
    with pytest.raises(UserError, match=r"ngrpo: a reward of 1\.5 is above best = 1: set best"):
        ngrpo(rollouts, rollouts.reward)
    assert ngrpo(rollouts, rollouts.reward, best=1.5)[1] < 0


@given(st.lists(st.booleans(), min_size=8, max_size=8), st.sampled_from([0.5, 1.0]), st.sampled_from([1.0, 4.0]))
def test_a_grae_is_its_formula_whatever_the_rewards_scale(solved, alpha, best):
    """The mean would be that of completions, or rewards in other units would turn easy prompts into hard ones."""
    rewards, groups = [best * x for x in solved], [0, 0, 1, 1, 1, 1, 1, 1]  # groups of 2 and 6 count the same
    rollouts = rollouts_of(rewards, groups)
    plain, advantage = grpo(rollouts, rollouts.reward), a_grae(rollouts, rollouts.reward, alpha=alpha, best=best)
    shares = [sum(solved[:2]) / 2, sum(solved[2:]) / 6]
    overall = sum(shares) / 2
    for i, number in enumerate(groups):
        root = shares[number] ** 0.5
        wanted = plain[i] / 2 * ((1 - overall) / (1 - root + 1e-6) + overall / (root + 1e-6))
        wanted = wanted * min(1, overall / alpha) if wanted > 0 else wanted
        torch.testing.assert_close(advantage[i], wanted)


def test_a_grae_turns_from_easy_to_hard_prompts():
    """The curriculum would run backwards."""
    easy, hard = [1.0, 1.0, 1.0, 0.0], [1.0, 0.0, 0.0, 0.0]
    weak = rollouts_of([*easy, *hard, *[0.0] * 40], [0] * 4 + [1] * 4 + [2 + i // 4 for i in range(40)])
    strong = rollouts_of([*easy, *hard, *[1.0] * 40], [0] * 4 + [1] * 4 + [2 + i // 4 for i in range(40)])
    of_weak, of_strong = (a_grae(r, r.reward).abs() for r in (weak, strong))
    assert of_weak[:4].sum() > of_weak[4:8].sum() and of_strong[:4].sum() < of_strong[4:8].sum()


@given(batches())
def test_dgpo_moves_the_policy_by_every_prompt_alike(rollouts):
    """Hard and easy prompts would teach less than those solved half of the time, as in GRPO."""
    advantage = BALANCED(rollouts, rollouts.reward)
    for members in numbers_of(rollouts):
        rewards = rollouts.reward[members]
        if float(rewards.max() - rewards.min()) > 1e-3:
            assert float(advantage[members].abs().sum()) == pytest.approx(len(members), rel=1e-6)
            assert abs(float(advantage[members].sum())) < 1e-6


def test_dgpo_equals_plain_arithmetic():
    """The weights would be another softmax than the published one, or silent groups take part in it."""
    rewards = [1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 0.0, 1.0, 1.0, 1.0, 1.0, 0.2, 0.0, 0.0, 0.0]
    correct = torch.tensor([float(r == 1) for r in rewards])
    lengths = [1, 2, 3, 4] * 4
    rollouts = rollouts_of(rewards, [i // 4 for i in range(16)], lengths, correct=correct)
    advantage = dgpo(rollouts, rollouts.reward)
    weights = torch.tensor([-0.25, -0.75, -1.0], dtype=torch.float64).div(2.0).softmax(0) * 3  # the last: form alone
    for weight, begin in zip(weights, (0, 4, 12), strict=True):
        part = rollouts.reward[begin : begin + 4]
        centred = part - part.mean()
        wanted = 4 * centred / (centred.abs().sum() + 1e-4) * weight * 40 / 30
        torch.testing.assert_close(advantage[begin : begin + 4], wanted)
    assert not advantage[8:12].any()


@given(st.integers(0, 8), st.integers(0, 8))
def test_middling_counts_prompts_that_are_right_half_of_the_time_most(one, other):
    """Prompts that teach nothing would count as much as those that teach most."""
    rewards = [float(i < one) for i in range(8)] + [float(i < other) for i in range(8)]
    weight = middling(rollouts_of(rewards, [0] * 8 + [1] * 8), torch.ones(16))
    assert (weight[0] >= weight[8]) == (abs(one - 4) <= abs(other - 4)) and float(weight.max()) <= 1.8 + 1e-6


def test_the_shortest_bonus_goes_to_one_right_completion_of_each_group():
    """Wrong answers would be paid for being short, or long ones for being right."""
    rewards, groups = [1.0, 1.0, 0.0, 1.0, 1.0, 0.0], [0, 0, 0, 1, 1, 2]
    rollouts = rollouts_of(rewards, groups, [5, 4, 1, 3, 3, 2])
    assert shortest_bonus(rollouts, longer_than=3).tolist() == pytest.approx([1.0, 1.2, 0.0, 1.0, 1.0, 0.0])
    assert shortest_bonus(rollouts, longer_than=2).tolist() == pytest.approx([1.0, 1.2, 0.0, 1.2, 1.0, 0.0])
    by_accuracy = replace(rollouts, correct=torch.tensor([0.0, 0.0, 1.0, 0.0, 0.0, 0.0]))
    assert shortest_bonus(by_accuracy, longer_than=0).tolist() == pytest.approx([1.0, 1.0, 0.2, 1.0, 1.0, 0.0])


def test_every_turn_of_an_episode_gets_its_episodes_advantage():
    """Multi-turn episodes would be credited with another episode's outcome."""
    one_turn = rollouts_of([1.0, 0.0, 0.0], [0, 0, 0])
    turns, tokens = torch.tensor([0, 0, 1, 2, 2, 2]), torch.ones(6, 1, dtype=torch.bool)
    rollouts = replace(one_turn, episode=turns, mask=tokens, logprobs=torch.zeros(6, 1), entropy=torch.zeros(6, 1))
    for name in ("leave_one_out", "ngrpo", "a_grae"):
        single = ESTIMATORS[name](one_turn, one_turn.reward)
        assert torch.equal(ESTIMATORS[name](rollouts, rollouts.reward[turns]), single[turns])


def test_columns_hold_the_parts_that_all_scores_have():
    """A shaping would read another episode's part."""
    prompt, nothing = Observation(()), torch.zeros(1)
    turn = Turn(prompt, Decision("", nothing, nothing, False), Step(prompt, terminated=True))
    episodes = [
        Episode(Sample(str(i), prompt), 0, [turn], Score({"hit": float(i), **extra}, 0.0))
        for i, extra in enumerate([{"form": 1.0}, {}, {"form": 0.5}])
    ]
    rollouts = columns(episodes, step=7)
    assert {name: part.tolist() for name, part in rollouts.parts.items()} == {"hit": [0.0, 1.0, 2.0]}
    assert rollouts.step == 7


@pytest.mark.parametrize("name", ["leave_one_out", "ngrpo", "a_grae", "dgpo"])
def test_single_rollouts_are_refused(name):
    """One completion a prompt has no group: all advantages would be 0."""
    values = {"task": "jigsaw", "out": "x", "advantages": [name], "train": {"group_size": 1}}
    with pytest.raises(UserError, match=rf"advantages\.0 \({name}\) needs several completions"):
        recipe_checks.check(Config.model_validate(values), "x.yaml")
