"""Methods of a single rollout per prompt: SPO, REINFORCE++, StableReinforce, MVSR."""

from __future__ import annotations

import functools
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from vlrl import api, registry
from vlrl.algorithms.advantages import batch_norm, grpo, kl_return, sigma_filter, whiten
from vlrl.algorithms.policy_losses import ppo_clip, stable_clip
from vlrl.algorithms.single_rollout import BetaTracker, SpoTracker, distances, retention, stored
from vlrl.checkpoint import flatten, unflatten
from vlrl.config import Config, PolicySection
from vlrl.policies.loading import load as load_policy
from vlrl.recipe_checks import load_config
from vlrl.rollout import collect
from vlrl.types import Batch, Decision, Evaluation, Policy, Rollouts, UserError

FEW = settings(max_examples=30)  # where an example costs milliseconds
RECIPES = Path(__file__).parents[2] / "configs" / "recipes"


def step(rewards: list[float], ids: list[str] | None = None, groups: list[int] | None = None) -> Rollouts:
    """One token per response."""
    n = len(rewards)
    one = torch.ones(n, 1)
    number = torch.arange(n) if groups is None else torch.tensor(groups)
    names = tuple(ids or map(str, range(n)))
    return Rollouts(names, torch.tensor(rewards, dtype=torch.float64), number, torch.arange(n), one.bool(), -one, one)


# -- SPO: the tracker ------------------------------------------------------------------------------------------------


def test_spo_equals_the_worked_example(golden, near):
    """Values would be forgotten at another rate, start elsewhere, or be read after the update."""
    inputs, outputs = golden("spo_tracker_sampler")
    rollouts = step([inputs["reward"]], ["a"])
    for distance, wanted in zip(inputs["D"], outputs["updates"], strict=True):
        near(retention(distance), wanted["rho"])
        method = SpoTracker()
        method.counts["a"], method.moved["a"] = (inputs["alpha"], inputs["beta"]), distance
        near(method(rollouts, rollouts.reward), [1 - 5 / 8])
        near(method.counts["a"], (wanted["alpha"], wanted["beta"]))
        near(method.value("a"), wanted["v"])
        near(method.value("a"), wanted["v_ema"])
    method = SpoTracker()
    method.begin("b", inputs["offline_outcomes"])
    near(method.counts["b"], (outputs["alpha0"], outputs["beta0"]))
    near(method.value("b"), outputs["v0"])


def test_spos_normalised_advantage_equals_the_worked_example(golden, near):
    """The recipe's `batch_norm` would not be the published one."""
    inputs, outputs = golden("spo_tracker_sampler")
    rollouts = step([float(r) for r in inputs["batch_rewards"]], list("abcd"))
    method = SpoTracker()
    method.counts = {key: (v, 1 - v) for key, v in zip("abcd", inputs["batch_v"], strict=True)}
    near(batch_norm(rollouts, method(rollouts, rollouts.reward), ddof=1), outputs["adv"])
    (norm,) = [c for c in load_config(RECIPES / "spo.yaml").advantages if c.name == "batch_norm"]
    assert norm.options == {"ddof": 1}


@FEW
@given(st.floats(0, 1e9), st.floats(0, 1e9))
def test_the_further_an_answer_moved_the_more_is_forgotten(one, other):
    """Old outcomes of another policy would weigh as much as new ones."""
    near_rate, far_rate = map(retention, sorted((one, other)))
    assert 0.96 >= near_rate >= far_rate >= 0.875


@FEW
@given(st.lists(st.tuples(st.sampled_from("ab"), st.floats(-50, 50)), min_size=1, max_size=12), st.floats(0.875, 0.96))
def test_unbounded_outcomes_make_a_running_mean(rows, rate):
    """A reward in points would be clipped to 1, and every answer look the same."""
    tracker, mean, weight = BetaTracker(eta="fixed", outcome="unbounded", low=rate, high=rate), {}, {}
    for key, reward in rows:
        v, n = mean.get(key, 0.5), weight.get(key, 8.0)
        tracker(step([reward], [key]), torch.tensor([reward]))
        mean[key], weight[key] = v + (reward - v) / (rate * n + 1), rate * n + 1
        assert tracker.value(key) == pytest.approx(mean[key], abs=1e-6)
        assert tracker.weight(key) == pytest.approx(weight[key])


def test_equal_prompts_in_one_step_share_the_baseline_from_before_it():
    """A response would be compared with a success rate that already counts it; and only the first one moved."""
    method = SpoTracker()
    method.moved["a"] = 0.06
    rollouts = step([1.0, 1.0, 0.0], ["a", "a", "b"])
    assert method(rollouts, rollouts.reward).tolist() == [0.5, 0.5, -0.5]
    assert method.counts["a"] == pytest.approx((0.96 * (0.875 * 4 + 1) + 1, 0.96 * 0.875 * 4))
    assert method.metrics == pytest.approx({"spo/value": 0.5, "spo/rho": (0.875 + 0.96 + 0.96) / 3})


# -- SPO: the stored response ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def task():
    section = {"name": "gui_grounding", "pool": 4}
    return registry.make_task(Config.model_validate({"task": section, "out": "x"}))


@pytest.fixture
def policy():
    return load_policy(PolicySection(max_tokens=6, temperature=0.9))


def shift(policy, seed: int = 0, size: float = 0.02) -> None:
    """Moves the policy as an update would."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter += size * torch.randn(parameter.shape, generator=generator)


def test_the_same_response_is_scored_again_token_by_token(policy, task):
    """D would compare two different responses, as the released MSSR does, or other tokens of the same text."""
    samples = task.samples("train")[:3]
    before, method = collect(policy, task, samples, 1), SpoTracker()
    method.revisit(policy, before)
    assert method.moved == {}
    shift(policy)
    method.revisit(policy, collect(policy, task, samples, 1))
    decisions = [episode.turns[0].decision for episode in before]
    with torch.no_grad():
        now = policy.evaluate(decisions)
    for episode, decision, logprobs, mask in zip(before, decisions, now.logprobs, now.mask, strict=True):
        wanted = float((decision.logprobs - logprobs[mask]).abs().mean())
        assert wanted > 0.01 and method.moved[episode.sample.id] == pytest.approx(wanted, abs=1e-5)
    method.revisit(policy, collect(policy, task, samples, 1))  # the policy stood still since
    assert max(method.moved.values()) < 1e-4


def test_text_that_falls_into_other_tokens_is_scored_as_it_was_written(policy, task):
    """A sampled text need not be the tokenizer's own spelling: D would be of something else, or of another length."""
    (episode,) = collect(policy, task, task.samples("train")[:1], 1)
    tokenizer = policy.codec.tokenizer
    spelled = [*(tokenizer.encode(letter, add_special_tokens=False)[0] for letter in "answer"), 5]
    assert policy.codec.tokens(policy.codec.decode(spelled)) != spelled
    shown = episode.turns[0].observation
    decision = policy.decide(shown, policy.codec.decode(spelled), ids=spelled)
    assert policy.ids(decision) == spelled
    kept = stored(policy, Decision(decision.action, torch.zeros(len(spelled)), decision.entropy, True,
                                   inputs=decision.inputs))  # fmt: skip
    with torch.no_grad():
        now = policy.evaluate([decision])
    assert distances(policy, [(episode, kept)]) == pytest.approx([float(now.logprobs.abs().mean())], abs=1e-5)


def test_a_resumed_tracker_goes_on_exactly(policy, task):
    """A resumed run would forget at other rates than an unbroken one."""
    samples = task.samples("train")[:2]
    episodes = [collect(policy, task, samples, 1) for _ in range(2)]
    whole, resumed = SpoTracker(), SpoTracker()
    rollouts = step([1.0, 0.0], [sample.id for sample in samples])
    whole.revisit(policy, episodes[0])
    whole(rollouts, rollouts.reward)
    tensors: dict[str, Tensor] = {}
    saved = json.loads(json.dumps(flatten(whole.state_dict(), tensors)))  # as a checkpoint keeps it
    resumed.load_state_dict(unflatten(saved, tensors))
    shift(policy)
    for method in (whole, resumed):
        method.revisit(policy, episodes[1])
    assert min(whole.moved.values()) > 0.01 and whole.moved == resumed.moved
    assert torch.equal(whole(rollouts, rollouts.reward), resumed(rollouts, rollouts.reward))
    assert whole.counts == resumed.counts and whole.kept == resumed.kept


def test_a_policy_that_cannot_score_is_refused(task, policy):
    """The run would end in a traceback at its second step."""
    with pytest.raises(UserError, match="spo_tracker scores earlier actions again"):
        SpoTracker().revisit(Policy(), collect(policy, task, task.samples("train")[:1], 1))


# -- REINFORCE++ -----------------------------------------------------------------------------------------------------


def tokens_of(golden) -> tuple[Rollouts, Tensor]:
    """The worked examples' shared batch of tokens."""
    inputs, _ = golden("kl_estimators")
    old, reference, mask = (torch.tensor(inputs[k], dtype=torch.float64) for k in ("old_logp", "ref_logp", "mask"))
    reward = torch.tensor([1.0, 0.0, 0.5], dtype=torch.float64)
    return Rollouts(("a", "b", "c"), reward, torch.arange(3), torch.arange(3), mask.bool(), old, 0 * old, reference), (
        mask
    )


def test_the_baseline_variant_equals_the_worked_example(golden, near):
    """The group's deviation would come back in, and blow up what is nearly solved."""
    inputs, outputs = golden("reinforcepp_baseline_advantage")
    rollouts = step(inputs["rewards"], groups=[i // inputs["group_size"] for i in range(12)])
    centred = grpo(rollouts, rollouts.reward, std="none")
    near(whiten(rollouts, centred)[:, 0], outputs["adv"])


def test_the_return_of_a_token_counts_the_kl_of_all_that_follow(golden, near):
    """Penalties would fall on tokens that did not cause them."""
    rollouts, mask = tokens_of(golden)
    got = kl_return(rollouts, rollouts.reward, beta=0.5)
    for row in range(3):
        length = int(mask[row].sum())
        gaps = (rollouts.logprobs - rollouts.reference)[row].tolist()
        wanted = [float(rollouts.reward[row]) - 0.5 * sum(gaps[t:length]) for t in range(length)]
        near(got[row], wanted + [0.0] * (4 - length))


def test_the_return_refuses_token_level_advantages():
    """Each token's value would be taken for an outcome of its own."""
    rollouts = replace(step([0.0]), reference=torch.zeros(1, 1))
    with pytest.raises(ValueError, match="kl_return takes one value per decision"):
        kl_return(rollouts, torch.zeros(1, 1))


def test_several_turns_make_one_sequence():
    """The KL of later turns would be free, and every turn be paid the whole reward once more with gamma below 1."""
    mask = torch.tensor([[True, True], [True, False], [True, True]])
    gap = torch.tensor([[1.0, 2.0], [4.0, 99.0], [0.0, 0.0]])
    episode = torch.tensor([0, 0, 1])
    rollouts = Rollouts(("a", "b"), torch.tensor([8.0, 1.0]), torch.arange(2), episode, mask, gap, gap, 0 * gap)
    got = kl_return(rollouts, rollouts.reward[episode], beta=1.0, gamma=0.5)
    third = 8 - 4.0
    assert got.tolist() == [[-1 + 0.5 * (-2 + 0.5 * third), -2 + 0.5 * third], [third, 0.0], [0.5, 1.0]]


@st.composite
def spreads(draw) -> tuple[Rollouts, Tensor]:
    """Ragged columns of several turns, and an advantage per decision."""
    n, length = draw(st.integers(1, 6)), draw(st.integers(1, 5))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    lengths = torch.randint(0, length + 1, (n,), generator=generator)
    mask = torch.arange(length) < lengths[:, None]
    episode = torch.arange(n) // draw(st.integers(1, 3))
    logprobs, reference = -torch.rand(2, n, length, generator=generator, dtype=torch.float64)
    reward = torch.rand(int(episode[-1]) + 1, generator=generator, dtype=torch.float64)
    ids = tuple(map(str, range(len(reward))))
    rollouts = Rollouts(ids, reward, torch.arange(len(reward)), episode, mask, logprobs, -logprobs, reference)
    return rollouts, torch.randn(n, generator=generator, dtype=torch.float64)


@FEW
@given(spreads())
def test_whitening_gives_mean_zero_and_unit_variance_over_tokens(case):
    """The step size would drift with the reward's scale, or padding be counted."""
    rollouts, advantage = case
    made = whiten(rollouts, advantage)
    tokens, before = made[rollouts.mask], (advantage[:, None] * rollouts.mask)[rollouts.mask]
    assert torch.equal(made[~rollouts.mask], torch.zeros(int((~rollouts.mask).sum()), dtype=made.dtype))
    if len(tokens) > 1 and before.max() > before.min():
        assert float(tokens.mean()) == pytest.approx(0, abs=1e-9)
        assert float(tokens.var()) == pytest.approx(1, abs=1e-3)
    else:
        assert (tokens == 0).all()


@FEW
@given(spreads(), st.sampled_from([-1e4, 3.0, float("nan")]))
def test_what_lies_outside_the_mask_never_matters(case, garbage):
    """Padding would be paid or charged."""
    rollouts, advantage = case
    out = ~rollouts.mask
    soiled = Rollouts(
        rollouts.sample_ids, rollouts.reward, rollouts.group, rollouts.episode, rollouts.mask,
        rollouts.logprobs.masked_fill(out, garbage), rollouts.entropy, rollouts.reference.masked_fill(out, 2.0),
    )  # fmt: skip
    for beta in (0.0, 0.3):
        assert torch.equal(kl_return(soiled, advantage, beta=beta), kl_return(rollouts, advantage, beta=beta))
    dirty = (advantage[:, None] * rollouts.mask).masked_fill(out, garbage)
    assert torch.equal(whiten(soiled, dirty), whiten(rollouts, advantage))


@FEW
@given(spreads())
def test_without_a_penalty_every_token_has_its_episodes_outcome(case):
    """`beta: 0` would still charge something."""
    rollouts, _ = case
    got = kl_return(rollouts, rollouts.reward[rollouts.episode], beta=0.0)
    torch.testing.assert_close(got, rollouts.reward[rollouts.episode][:, None] * rollouts.mask)


@FEW
@given(st.floats(-10, 10), st.integers(1, 9))
def test_equal_advantages_whiten_to_zero(value, n):
    """Rounding errors would be blown up to a full advantage where there is nothing to compare."""
    rollouts = step([0.0] * n)
    for kind in (torch.float32, torch.float64):
        assert (whiten(rollouts, torch.full((n,), value, dtype=kind)) == 0).all()
        assert (sigma_filter(rollouts, torch.full((n,), value, dtype=kind)) == 0).all()


# -- StableReinforce -------------------------------------------------------------------------------------------------


def test_stable_reinforce_equals_the_worked_example(golden, near):
    """One odd reward would rule a step, or the filter be another than the paper's."""
    inputs, outputs = golden("stable_reinforce")
    rollouts = step(inputs["adv"])
    near(sigma_filter(rollouts, rollouts.reward, threshold=1e9), outputs["z"])
    near(sigma_filter(rollouts, rollouts.reward), outputs["filtered_paper"])
    near(sigma_filter(rollouts, rollouts.reward, bounds="released"), outputs["filtered_code"])
    ratio = torch.tensor([inputs["log_ratio"]], dtype=torch.float64)
    mask = torch.ones(1, 3, dtype=torch.bool)
    minus = Batch(torch.full((1, 3), -1.0), 0 * ratio, mask)
    near(stable_clip(Evaluation(ratio, ratio, mask), minus, low=1.0, high=1e4)[0], outputs["ratio"])


@FEW
@given(st.lists(st.floats(-10, 10), min_size=2, max_size=40), st.randoms(use_true_random=False))
def test_the_filter_keeps_order_and_bounds(values, random):
    """A sample's gradient would hang on where in the batch it stood, or an outlier slip through."""
    rollouts, advantage = step([0.0] * len(values)), torch.tensor(values, dtype=torch.float64)
    made, order = sigma_filter(rollouts, advantage), random.sample(range(len(values)), len(values))
    assert (made.abs() <= 3).all() and torch.isfinite(made).all()
    torch.testing.assert_close(sigma_filter(rollouts, advantage[order]), made[order], atol=1e-6, rtol=1e-6)


def test_the_filter_refuses_token_level_advantages():
    """Deviations over padding would decide what is left out."""
    with pytest.raises(ValueError, match="before token-level shaping"):
        sigma_filter(step([0.0]), torch.zeros(1, 3))


def case(old: list[float], new: list[float], advantage: list[float]) -> tuple[Evaluation, Batch]:
    now = torch.tensor([new], dtype=torch.float64, requires_grad=True)
    mask = torch.ones(1, len(new), dtype=torch.bool)
    columns = (torch.tensor([values], dtype=torch.float64) for values in (advantage, old))
    return Evaluation(now, 0 * now, mask), Batch(*columns, mask)


@FEW
@given(st.lists(st.tuples(st.floats(-6, 6), st.floats(-3, 3)), min_size=1, max_size=8))
def test_within_its_bounds_it_is_ppo(rows):
    """Ordinary steps would train otherwise than with PPO."""
    now, batch = case([0.0] * len(rows), [r for r, _ in rows], [a for _, a in rows])
    for high in (0.2, 0.3):
        options = {"low": 0.2, "high": high, "coef": 0.7}
        loss, wanted = stable_clip(now, batch, **options), 0.7 * ppo_clip(now, batch, low=0.2, high=high)
        torch.testing.assert_close(loss, wanted)
        grads = [torch.autograd.grad(term.sum(), now.logprobs, retain_graph=True)[0] for term in (loss, wanted)]
        torch.testing.assert_close(*grads)


def test_beyond_its_bounds_a_token_has_no_gradient():
    """A punished token that became e^9 times as likely would rule the whole step."""
    now, batch = case([-9.5, -9.5], [-0.5, -0.5], [-1.0, 1.0])
    loss = stable_clip(now, batch)
    assert loss[0].tolist() == pytest.approx([1000.0, -1.2])
    (grad,) = torch.autograd.grad(loss.sum(), now.logprobs)
    assert grad.tolist() == [[0.0, 0.0]]
    (grad,) = torch.autograd.grad(ppo_clip(now, batch).sum(), now.logprobs)
    assert grad[0, 0] > 8000


@FEW
@given(st.lists(st.floats(-3, 3), min_size=1, max_size=8))
def test_ratio_one_is_the_plain_policy_gradient(advantages):
    """The first update of each step must be exactly REINFORCE with the given advantage."""
    now, batch = case([-1.0] * len(advantages), [-1.0] * len(advantages), advantages)
    (grad,) = torch.autograd.grad(stable_clip(now, batch).sum(), now.logprobs)
    torch.testing.assert_close(grad, -batch.advantage)


@pytest.mark.parametrize("seed", range(3))
def test_gradients_equal_finite_differences(seed):
    """A wrong gradient trains towards something else while the logged loss looks right."""
    draw = functools.partial(torch.randn, 1, 12, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    mask, batch = torch.ones(1, 12, dtype=torch.bool), Batch(draw(), draw(), torch.ones(1, 12, dtype=torch.bool))
    assert torch.autograd.gradcheck(
        lambda new: stable_clip(Evaluation(new, 0 * new, mask), batch), (5 * draw()).requires_grad_()
    )


# -- recipes ---------------------------------------------------------------------------------------------------------


def test_mvsr_is_mssr_without_its_shaping():
    """The ablation would differ in more than the part it is about."""
    mssr, mvsr = (load_config(RECIPES / f"{name}.yaml") for name in ("mssr", "mvsr"))
    assert [c for c in mssr.advantages if c.name != "entropy_shaping"] == mvsr.advantages
    differ = {"out", "advantages"}
    assert mssr.model_dump(exclude=differ) == mvsr.model_dump(exclude=differ)


def test_hl_gauss_is_all_that_sets_the_two_ppo_recipes_apart():
    """A comparison of critics would compare something else as well."""
    plain, classes = (load_config(RECIPES / f"{name}.yaml") for name in ("ppo", "ppo_hl_gauss"))
    differ = {"out", "advantages"}
    assert plain.model_dump(exclude=differ) == classes.model_dump(exclude=differ)
    assert plain.advantages[1:] == classes.advantages[1:]


def test_single_rollout_recipes_ask_each_prompt_once():
    """They would be group methods under other names."""
    for name in ("mvsr", "spo", "reinforce_pp", "stable_reinforce", "ppo", "ppo_hl_gauss"):
        assert load_config(RECIPES / f"{name}.yaml").train.group_size == 1


# -- in a run --------------------------------------------------------------------------------------------------------

SMALL = (
    *("train.steps=4", "train.prompts_per_step=4", "train.num_minibatches=2", "train.lr=0.003", "policy.max_tokens=4"),
    *(
        "task.pool=6",
        "task.held_out=2",
        "eval.num_samples=2",
        "eval.batch_size=2",
        "log.trackers=[]",
        "log.checkpoint_every=2",
    ),
)


@pytest.mark.parametrize("recipe", ["spo", "ppo_hl_gauss"])
def test_a_resumed_run_is_the_unbroken_one(recipe, tmp_path):
    """What a method knows would be lost with every reboot; here also: that the trainer asks for it at all."""
    run = tmp_path / "run"
    config = load_config(RECIPES / f"{recipe}.yaml", [f"out={run}", *SMALL])
    api.train(config)
    rows = (run / "metrics.jsonl").read_text()
    shutil.rmtree(run / "checkpoints" / "step_000004")
    api.train(config, resume=True)
    assert (run / "metrics.jsonl").read_text() == rows
    steps = [row for row in map(json.loads, rows.splitlines()) if "lr" in row]
    assert len(steps) == 4
    if recipe == "spo":
        assert steps[0]["spo/rho"] == 0.96 > steps[-1]["spo/rho"]  # prompts came again, and were answered otherwise
    else:
        assert steps[0]["gae/value"] == pytest.approx(0.375) and steps[-1]["gae/value"] != steps[0]["gae/value"]
