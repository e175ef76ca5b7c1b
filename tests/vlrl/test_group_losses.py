"""Losses of the group methods against worked examples, their definitions and their laws."""

from __future__ import annotations

import functools
import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from vlrl import recipe_checks
from vlrl.algorithms.auxiliary_losses import gepo, kl, long2short_dpo, step_apo
from vlrl.algorithms.policy_losses import (
    cispo,
    clip_cov,
    constant,
    covariances,
    dhpo,
    dhpo_entropy,
    direct_advantage,
    disco,
    gspo,
    gspo_token,
    kl_cov,
    luspo,
    opsm,
    ppo_clip,
    rover,
    sapo,
    sequence_mean,
    token_mean,
    trust_region,
    vespo,
)
from vlrl.config import Config
from vlrl.types import Batch, Evaluation, UserError

SEEDS = st.integers(0, 9999)
WIDE = {"low": 0.2, "high": 0.2}
WHOLE = {"gspo": gspo, "luspo": luspo, "long2short_dpo": long2short_dpo, "direct_advantage": direct_advantage,
          "disco": disco, "disco b": functools.partial(disco, tau=None), "gepo": gepo,
         "step_apo": step_apo, "disco ratio": functools.partial(disco, score="ratio", tau=1.0)}  # fmt: skip
TOKENS = {"gspo_token": gspo_token, "dhpo": dhpo, "dhpo_entropy": dhpo_entropy, "cispo": cispo, "kl_cov": kl_cov}
SOFT = {"sapo": sapo, "vespo": vespo, "opsm": functools.partial(opsm, delta=0.1)}
ALL = WHOLE | TOKENS | SOFT | {"clip_cov": clip_cov, "trust_region": trust_region, "rover": rover}


def case(seed: int, n: int = 6, length: int = 5, spread: float = 0.5, size: int = 3) -> tuple[Evaluation, Batch]:
    """Random columns with ragged masks in groups of `size`, as an evaluation with gradient and its batch."""
    draw = functools.partial(torch.randn, n, length, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    old = -draw().abs() - 0.1
    mask = torch.arange(length) < 1 + torch.arange(n)[:, None] % length
    now = (old + spread * draw()).requires_grad_()
    group, episode = torch.arange(n) // size, torch.arange(n)
    entropy, advantage, reference = draw().abs(), draw() * mask, old + 0.3 * draw()
    batch = Batch(advantage, old, mask, reference, group, episode, is_correct=advantage.sum(1) > 0)
    return Evaluation(now, entropy, mask), batch


def token_batch(inputs: dict) -> tuple[Evaluation, Batch]:
    """The shared token batch of the worked examples."""
    new, old, mask = (torch.tensor(inputs[name], dtype=torch.float64) for name in ("new_logp", "old_logp", "mask"))
    entropy = torch.tensor(inputs.get("entropy", inputs["mask"]), dtype=torch.float64)
    advantage = torch.tensor(inputs["adv_seq"], dtype=torch.float64)[:, None] * mask
    rows, reference = torch.arange(len(new)), torch.tensor(inputs["ref_logp"], dtype=torch.float64)
    batch = Batch(advantage, old, mask.bool(), reference, rows, rows)
    return Evaluation(new.requires_grad_(), entropy, mask.bool()), batch


def loss_of(term, now: Evaluation, batch: Batch, weigh=sequence_mean) -> Tensor:
    return (term(now, batch) * weigh(batch.mask)).sum()


def slope(term, now: Evaluation, batch: Batch, weigh=sequence_mean) -> Tensor:
    (grad,) = torch.autograd.grad(loss_of(term, now, batch, weigh), now.logprobs)
    return grad


# -- worked examples ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("options", "suffix"), [({}, ""), (WIDE, "_clip02")])
def test_gspo_equals_the_worked_example(golden, near, options, suffix):
    """A ratio of sums instead of means would clip every completion of more than a few tokens."""
    inputs, outputs = golden("gspo_loss")
    now, batch = token_batch(inputs)
    term = functools.partial(gspo, **options)
    near(loss_of(term, now, batch).detach(), outputs[f"loss{suffix}"])
    near(slope(term, now, batch), outputs[f"grad{suffix}"])
    near(slope(functools.partial(gspo_token, **options), now, batch), outputs[f"grad{suffix}"])


WIDE_LUSPO = functools.partial(luspo, **WIDE)


@pytest.mark.parametrize(
    ("example", "term", "weigh"),
    [
        ("sapo_loss", sapo, sequence_mean),
        ("vespo_loss", vespo, token_mean),
        ("luspo_loss", WIDE_LUSPO, sequence_mean),
    ],
)
def test_soft_and_unbiased_surrogates_equal_the_worked_examples(golden, near, example, term, weigh):
    """A gate at the wrong place, or a weight of the token where the completion's is meant, looks like learning."""
    inputs, outputs = golden(example)
    now, batch = token_batch(inputs)
    near(loss_of(term, now, batch, weigh).detach(), outputs["loss"])
    near(slope(term, now, batch, weigh), outputs["grad"])
    if example == "sapo_loss":
        near(sapo(now, batch).detach() * batch.mask, outputs["per_token"])


@pytest.mark.parametrize("case", ["kept", "masked"])
def test_deepseek_v32_equals_the_worked_example(golden, near, case):
    """What the policy has left would be pushed on, or the KL's gradient be another one than its value's."""
    inputs, outputs = golden("deepseek_v32_loss")
    now, batch = token_batch(inputs)
    term = functools.partial(opsm, delta=inputs[f"delta_{case}"])
    near(loss_of(term, now, batch).detach(), outputs[f"loss_{case}"])
    near(slope(term, now, batch), outputs[f"grad_{case}"])
    weighted = functools.partial(kl, weighted=True, coef=1.0)
    near(loss_of(weighted, now, batch, token_mean).detach(), outputs["kl"])
    near(slope(weighted, now, batch, token_mean), outputs["kl_grad"])


def test_direct_advantage_equals_the_worked_example(golden, near):
    """The log-ratio would be regressed onto something else, or be to another policy."""
    inputs, outputs = golden("direct_advantage_loss")
    now, batch = token_batch(inputs)
    term = functools.partial(direct_advantage, beta=inputs["beta"])
    near(loss_of(term, now, batch).detach(), outputs["loss"])
    near(slope(term, now, batch), outputs["grad"])


@pytest.mark.parametrize("case", range(5))
def test_long2short_equals_the_worked_example(golden, near, case):
    """A short wrong answer would be rejected for its length, or a right one of nearly the same length."""
    inputs, outputs = golden("long2short_dpo_loss")
    now, batch = token_batch(inputs)
    right = torch.tensor(inputs["right"][case], dtype=torch.bool)
    batch = replace(batch, group=torch.zeros(3, dtype=torch.long), is_correct=right)
    term = functools.partial(long2short_dpo, beta=inputs["beta"], longer=inputs["longer"])
    near(loss_of(term, now, batch).detach(), outputs["losses"][case])
    near(slope(term, now, batch), outputs["grads"][case])


@pytest.mark.parametrize("number", range(4))
def test_step_apo_equals_the_worked_example(golden, near, number):
    """Steps of other states would be compared, the margin be added in place of taken, or worth count in no pair."""
    inputs, outputs = golden("step_apo_loss")
    of = inputs["cases"][number]
    now, batch = token_batch(inputs | of)
    batch = replace(batch, group=torch.tensor(of["group"]))
    term = functools.partial(step_apo, beta=inputs["beta"], alpha=of["alpha"])
    near(loss_of(term, now, batch).detach(), outputs["losses"][number])
    near(slope(term, now, batch), outputs["grads"][number])


@given(seed=SEEDS, shift=st.floats(-0.9, 0.9))
def test_step_apo_asks_for_more_distance_the_more_steps_differ_in_worth(seed, shift):
    """A margin of the other sign would let the policy rest before the better step is likelier by what it is worth."""
    now, batch = case(seed, n=2, size=2)
    worth = torch.tensor([1.0, -1.0 + abs(shift)], dtype=torch.float64)[:, None] * batch.mask
    near, far = (step_apo(now, replace(batch, advantage=each)).sum(1)[1] for each in (worth * 0.5, worth))
    assert far > near
    (grad,) = torch.autograd.grad(loss_of(step_apo, now, replace(batch, advantage=worth)), now.logprobs)
    assert (grad[0][batch.mask[0]] < 0).all() and (grad[1][batch.mask[1]] > 0).all()


@pytest.mark.parametrize("kind", ["k1", "k3"])
@given(seed=SEEDS)
def test_a_weighted_kl_has_the_gradient_of_the_kl_itself(kind, seed):
    """Off-policy the plain estimate pulls elsewhere, and k1 nowhere: the report's claim, over all tokens."""
    draw = functools.partial(torch.randn, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    logits, old, reference = draw().requires_grad_(), draw().log_softmax(0), draw().log_softmax(0)
    now = logits.log_softmax(0)
    (exact,) = torch.autograd.grad((now.exp() * (now - reference)).sum(), logits, retain_graph=True)
    mask, nothing = torch.ones(5, 1, dtype=torch.bool), torch.zeros(5, 1, dtype=torch.float64)
    batch = Batch(nothing, old[:, None], mask, reference[:, None])  # a row for each token that could have been drawn
    found = kl(Evaluation(now[:, None], nothing, mask), batch, kind=kind, weighted=True, coef=1.0)[:, 0]
    (grad,) = torch.autograd.grad((old.exp() * found).sum(), logits)
    torch.testing.assert_close(grad, exact)


@pytest.mark.parametrize(("term", "name"), [(dhpo, "loss_avg"), (dhpo_entropy, "loss_entropy")])
def test_dhpo_equals_the_worked_example(golden, near, term, name):
    """The reconstruction would be another one than its docstring says."""
    inputs, outputs = golden("dhpo_loss_reconstruction")
    now, batch = token_batch(inputs)
    near(loss_of(term, now, batch).detach(), outputs[name])
    if term is dhpo:
        plain = replace(batch, advantage=-batch.mask.double())
        near(term(now, plain).detach(), outputs["rho_avg"])


def test_dr_grpos_weighing_equals_the_worked_example(golden, near):
    """Without the division by the number of completions the step grows with the batch."""
    inputs, outputs = golden("drgrpo_loss_const")
    now, batch = token_batch(inputs)
    term = functools.partial(ppo_clip, low=inputs["clip"], high=inputs["clip"])
    near(loss_of(term, now, batch, functools.partial(constant, length=inputs["L_max"])).detach(), outputs["loss"])


def test_covariance_losses_equal_the_worked_example(golden, near):
    """Other tokens would be left out or held, and entropy would be lost all the same."""
    inputs, outputs = golden("cov_entropy_control")
    now, batch = token_batch(inputs)
    near(covariances(now, batch), outputs["cov"])
    held = functools.partial(kl_cov, share=inputs["kl_cov_k"], beta=inputs["beta"])
    near(loss_of(held, now, batch, token_mean).detach(), outputs["kl_cov_loss"])
    extra = kl_cov(now, batch, share=inputs["kl_cov_k"]) - kl_cov(now, batch, share=inputs["kl_cov_k"], beta=1e-9)
    assert (extra.abs() > 1e-6).nonzero().tolist() == [outputs["kl_cov_token"]]
    cut = functools.partial(clip_cov, least=inputs["clip_cov_lb"], most=inputs["clip_cov_ub"])
    olds = (replace(batch, old_logprobs=batch.old_logprobs - 1e-12 * i) for i in range(12))
    drawn = [float(loss_of(cut, now, each, token_mean).detach()) for each in olds]
    wanted = outputs["clip_cov_losses_by_choice"]
    assert all(min(abs(loss - each) for each in wanted) < 2e-6 for loss in drawn)
    assert all(min(abs(loss - each) for loss in drawn) < 2e-6 for each in wanted)  # each token has its chance


def scored(scores: list[float], correct: list[float], groups: list[int] | None = None) -> tuple[Evaluation, Batch]:
    """Completions of one token whose log-probability is the score, and rewards of 0 and 1."""
    now = torch.tensor(scores, dtype=torch.float64)[:, None].requires_grad_()
    mask, rows = torch.ones(len(scores), 1, dtype=torch.bool), torch.arange(len(scores))
    reward = torch.tensor(correct, dtype=torch.float64)[:, None]
    group = torch.tensor(groups or [0] * len(scores))
    batch = Batch(reward, now.detach(), mask, now.detach(), group, rows, is_correct=reward[:, 0] > 0.5)
    return Evaluation(now, now, mask), batch


def test_disco_equals_the_worked_example(golden, near):
    """The published value is a surrogate's; its gradient is what must agree."""
    inputs, outputs = golden("disco_loss")
    now, batch = scored(inputs["scores"], inputs["correct"])
    term = functools.partial(disco, tau=inputs["tau"])
    near(loss_of(term, now, batch).detach(), -outputs["obj"])
    near(slope(term, now, batch)[:, 0], outputs["grad_of_loss"][0])
    near(loss_of(functools.partial(disco, tau=None), now, batch).detach(), -outputs["obj_b"])
    gap = math.sqrt(2 * inputs["kl"]) * (1 - math.sqrt(2 * inputs["kl"]) / 6)  # r - log r - 1 is about kl here
    moved = Evaluation(now.logprobs + gap, now.entropy, now.mask)
    drift = math.exp(gap) - gap - 1
    penalty = loss_of(functools.partial(trust_region, beta=inputs["beta"], delta=inputs["delta"]), moved, batch)
    assert float(penalty.detach()) == pytest.approx(inputs["beta"] * (drift - inputs["delta"]) * drift)
    near(penalty.detach(), outputs["penalty"])


# -- definitions -------------------------------------------------------------------------------------------------------


def frozen_cispo(now: Tensor, at: Tensor, batch: Batch) -> Tensor:
    return -((at - batch.old_logprobs).exp().clamp(max=5) * batch.advantage * now * token_mean(batch.mask)).sum()


def frozen_gspo_token(now: Tensor, at: Tensor, batch: Batch) -> Tensor:
    lengths = batch.mask.sum(1, keepdim=True)
    whole = (((at - batch.old_logprobs) * batch.mask).sum(1, keepdim=True) / lengths).exp()
    ratio = whole * (now - at).exp()
    worse = torch.maximum(-batch.advantage * ratio, -batch.advantage * ratio.clamp(0.8, 1.2))
    return (worse * token_mean(batch.mask)).sum()


def frozen_vespo(now: Tensor, at: Tensor, batch: Batch) -> Tensor:
    whole = ((at - batch.old_logprobs) * batch.mask).sum(1, keepdim=True).exp()
    good = batch.advantage > 0
    weight = torch.where(good, whole**2 * (3 * (1 - whole)).exp(), whole**3 * (2 * (1 - whole)).exp())
    return -(weight * batch.advantage * now * token_mean(batch.mask)).sum()


def frozen_trust_region(now: Tensor, at: Tensor, batch: Batch) -> Tensor:
    """The squared hinge, which holds nothing fixed and has the same gradient."""
    gap = (now - batch.old_logprobs)[batch.mask]
    return 500 * ((gap.exp() - gap - 1).mean() - 1e-4).clamp(min=0) ** 2


@pytest.mark.parametrize(
    ("term", "frozen"),
    [
        (cispo, frozen_cispo),
        (functools.partial(gspo_token, **WIDE), frozen_gspo_token),
        (trust_region, frozen_trust_region),
        (vespo, frozen_vespo),
    ],
)
@pytest.mark.parametrize("seed", range(3))
def test_stopped_gradients_are_those_of_the_definition_with_its_fixed_part_held(term, frozen, seed):
    """A weight that is not stopped, or one thing too many that is, trains towards something else."""
    now, batch = case(seed)
    at = now.logprobs.detach().clone()
    held = functools.partial(frozen, at=at, batch=batch)
    assert torch.autograd.gradcheck(held, now.logprobs)
    (wanted,) = torch.autograd.grad(held(now.logprobs), now.logprobs)
    torch.testing.assert_close(slope(term, now, batch, token_mean), wanted)


def test_dhpo_entropy_is_dhpo_with_each_tokens_share():
    """Gradient would flow into the entropy, or the share belong to the other ratio."""
    now, batch = case(3)
    live = replace(now, entropy=now.entropy.clone().requires_grad_())
    loss_of(dhpo_entropy, live, batch).backward()
    assert live.entropy.grad is None
    share = now.entropy / now.entropy[batch.mask].max()
    shares = dhpo(now, batch, share=1.0) * share + dhpo(now, batch, share=0.0) * (1 - share)
    torch.testing.assert_close(dhpo_entropy(now, batch), shares)


@given(SEEDS, st.sampled_from([*TOKENS.values(), ppo_clip]))
def test_at_ratio_one_a_token_loss_is_the_plain_policy_gradient(seed, term):
    """The first update of each step must be exactly REINFORCE with the given advantage; dhpo splits it over two."""
    now, batch = case(seed, spread=0.0)
    if term in (dhpo, dhpo_entropy):  # for advantages that are equal over a completion, which each row shares out
        batch = replace(batch, advantage=batch.advantage[:, :1] * batch.mask)
        now = replace(now, entropy=now.entropy[:, :1].expand_as(now.entropy))
    plain = -(batch.advantage * now.logprobs * sequence_mean(batch.mask)).sum()
    (wanted,) = torch.autograd.grad(plain, now.logprobs)
    torch.testing.assert_close(slope(term, now, batch), wanted)


@given(SEEDS, st.sampled_from([{}, WIDE]))
def test_gspo_and_its_token_variant_agree_where_a_completion_has_one_advantage(seed, options):
    """The paper's claim, and at ratio 1 both are the policy gradient of whole completions."""
    now, batch = case(seed)
    batch = replace(batch, advantage=batch.advantage[:, :1] * batch.mask)
    whole, token = (functools.partial(term, **options) for term in (gspo, gspo_token))
    torch.testing.assert_close(whole(now, batch), token(now, batch))
    torch.testing.assert_close(slope(whole, now, batch), slope(token, now, batch))
    same = replace(batch, old_logprobs=now.logprobs.detach())
    torch.testing.assert_close(slope(whole, now, same), slope(ppo_clip, now, same))


@given(SEEDS)
def test_cispo_never_silences_a_token(seed):
    """What a clipped ratio drops is what the method is for."""
    now, batch = case(seed, spread=3.0)
    assert torch.equal(slope(cispo, now, batch) != 0, batch.mask & (batch.advantage != 0))


@given(SEEDS)
def test_the_trust_region_is_free_inside_and_pulls_back_outside(seed):
    """A penalty inside would fight learning; one of the wrong sign would push the policy away."""
    now, batch = case(seed)
    near_by = replace(
        now, logprobs=(batch.old_logprobs + 1e-3 * (now.logprobs.detach() - batch.old_logprobs)).requires_grad_()
    )
    assert not slope(trust_region, near_by, batch).any()
    grad = slope(trust_region, now, batch)
    assert (grad * (now.logprobs - batch.old_logprobs) >= 0).all() and grad.any()


@given(SEEDS)
def test_disco_raises_the_right_and_lowers_the_likeliest_wrong_most(seed):
    """Wrong ones would be treated alike, or prompts of middling difficulty would count more than others."""
    generator = torch.Generator().manual_seed(seed)
    scores = (-3 * torch.rand(6, generator=generator, dtype=torch.float64)).tolist()
    now, batch = scored(scores, [1, 0, 0, 1, 0, 0])
    grad = slope(functools.partial(disco, tau=0.5), now, batch)[:, 0]
    wrong = sorted((1, 2, 4, 5), key=lambda i: scores[i])
    assert grad[[0, 3]].tolist() == pytest.approx([-0.5, -0.5])
    assert [float(grad[i]) for i in wrong] == sorted(float(grad[i]) for i in wrong)
    assert float(grad.sum()) == pytest.approx(0.0, abs=1e-12)


@given(SEEDS, st.floats(0.01, 2.0), st.floats(0.0, 1.0))
def test_gepo_equals_plain_arithmetic(seed, beta, equal):
    """The sides would be swapped, or the spread be that of the wrong ones."""
    now, batch = case(seed, n=4, size=4)
    batch = replace(batch, is_correct=torch.tensor([True, False, True, False]))
    implied = (beta * (now.logprobs.detach() - batch.reference) * batch.mask).sum(1).tolist()
    good, bad = [implied[0], implied[2]], [implied[1], implied[3]]
    mean = sum(good) / 2
    wanted = math.log1p(math.exp(sum(bad) / 2 - mean)) + equal * sum((h - mean) ** 2 for h in good) / 2
    loss = loss_of(functools.partial(gepo, beta=beta, equal=equal), now, batch).detach()
    assert float(loss) == pytest.approx(wanted)


def test_gepo_of_one_against_one_is_dpo():
    """The reconstruction must have the known loss as its simplest case."""
    now, batch = scored([-1.0, -2.0], [1.0, 0.0])
    moved = Evaluation(now.logprobs + torch.tensor([[0.5], [-0.25]]), now.entropy, now.mask)
    loss = float(loss_of(functools.partial(gepo, beta=0.3), moved, batch).detach())
    assert loss == pytest.approx(-math.log(1 / (1 + math.exp(-0.3 * 0.75))))


@given(SEEDS, st.floats(0.05, 0.6))
def test_clip_cov_leaves_out_as_many_tokens_as_it_says_and_only_those_between_the_bounds(seed, share):
    """The wrong tokens would be silenced, or all of them."""
    now, batch = case(seed)
    cut = clip_cov(now, batch, share=share, least=0.1, most=2.0)
    loss, covariance = ppo_clip(now, batch), covariances(now, batch)
    dropped = batch.mask & (cut == 0) & (loss != 0)
    able = batch.mask & (covariance > 0.1) & (covariance < 2.0)
    able &= loss == -batch.advantage * (now.logprobs - batch.old_logprobs).exp()
    assert not (dropped & ~able).any()
    assert int(dropped.sum()) == min(max(1, int(share * int(batch.mask.sum()))), int(able.sum()))
    assert torch.equal(cut[~dropped], loss[~dropped])
    assert torch.equal(cut, clip_cov(now, batch, share=share, least=0.1, most=2.0))  # a resumed run draws the same


def test_kl_cov_does_nothing_at_the_first_update():
    """The recipe would look on with one update a step, and its user would not know why entropy falls."""
    now, batch = case(1, spread=0.0)
    strong = slope(functools.partial(kl_cov, share=0.5, beta=9.0), now, batch)
    torch.testing.assert_close(strong, slope(ppo_clip, now, batch))


@given(SEEDS, st.sampled_from([0.5, 1.0, 3.0]))
def test_rover_starts_as_the_policy_gradient_and_rests_at_the_centred_reward(seed, scale):
    """The values would be learned with the wrong sign, or their size would not be what `scale` says."""
    term = functools.partial(rover, scale=scale)
    now, batch = case(seed, spread=0.0)
    torch.testing.assert_close(slope(term, now, batch), 2 * scale * slope(ppo_clip, now, batch))
    there = replace(now, logprobs=(batch.old_logprobs + batch.advantage / scale).requires_grad_())
    assert float(loss_of(term, there, batch).detach()) < 1e-20
    half = replace(now, logprobs=(batch.old_logprobs + batch.advantage / scale / 2).requires_grad_())
    torch.testing.assert_close(rover(half, batch, scale=scale).detach(), batch.advantage**2 / 4)


# -- laws of all -------------------------------------------------------------------------------------------------------


def taken(batch, rows):
    """Some rows of all its columns."""
    return Batch(**{name: column if column is None else column[rows] for name, column in vars(batch).items()})


@pytest.mark.parametrize("name", [name for name in ALL if name != "clip_cov"])  # which draws by place
@given(seed=SEEDS, order=st.permutations(range(6)))
def test_the_order_of_the_batch_does_not_matter(name, seed, order):
    """A sample's gradient would hang on where in the batch it happened to stand."""
    now, batch = case(seed)
    moved = taken(batch, list(order))
    there = Evaluation(now.logprobs[list(order)], now.entropy[list(order)], now.mask[list(order)])
    torch.testing.assert_close(ALL[name](there, moved), ALL[name](now, batch)[list(order)])


@pytest.mark.parametrize("name", WHOLE)
@given(seed=SEEDS)
def test_groups_of_their_own_micro_batches_have_the_same_gradient(name, seed):
    """What is trained would hang on how much memory the machine has."""
    now, batch = case(seed)
    weights, whole = sequence_mean(batch.mask), slope(WHOLE[name], now, batch)
    for rows in (slice(0, 3), slice(3, 6)):
        part = taken(batch, rows)
        here = Evaluation(now.logprobs[rows], now.entropy[rows], now.mask[rows])
        (grad,) = torch.autograd.grad((WHOLE[name](here, part) * weights[rows]).sum(), now.logprobs)
        torch.testing.assert_close(grad[rows], whole[rows], rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", ["disco", "disco b", "disco ratio", "gepo"])
@pytest.mark.parametrize("reward", [1.0, -1.0])
def test_a_prompt_without_a_difference_teaches_nothing(name, reward):
    """Preferring nothing to something is NaN, or a pull towards whatever was written."""
    now, batch = case(2)
    told = torch.where(batch.group[:, None] == 0, reward, torch.tensor([[1.0], [-1.0]]).repeat(3, 1)) * batch.mask
    grad = slope(WHOLE[name], now, replace(batch, is_correct=told.sum(1) > 0))
    assert torch.isfinite(grad).all() and not grad[:3].any() and grad[3:].any()


@pytest.mark.parametrize("name", ALL)
def test_far_from_the_old_policy_all_stays_finite(name):
    """One token that became e^100 times as likely would end the run."""
    now, batch = case(0)
    far = replace(now, logprobs=(now.logprobs.detach() * 100 - 300 * (torch.arange(6)[:, None] % 2)).requires_grad_())
    loss = loss_of(ALL[name], far, batch)
    (grad,) = torch.autograd.grad(loss, far.logprobs)
    assert torch.isfinite(loss) and torch.isfinite(grad).all()


@pytest.mark.parametrize("name", ["disco", "gepo"])
def test_several_turns_are_refused(name):
    """Each turn would be compared as if it were a completion of its own."""
    now, batch = case(0)
    with pytest.raises(UserError, match=rf"{name} .* several turns"):
        WHOLE[name](now, replace(batch, episode=torch.zeros(6, dtype=torch.long)))


@pytest.mark.parametrize("name", ["clip_cov", "kl_cov", "trust_region", "dhpo_entropy"])
def test_what_compares_all_tokens_of_a_step_takes_no_micro_batches(name):
    """The result would change with their size, and nobody would be told."""
    values = {"task": "jigsaw", "out": "x", "losses": [name], "train": {"micro_batch_size": 2, "prompts_per_step": 16}}
    with pytest.raises(UserError, match=rf"losses\.0 \({name}\) .* leave train\.micro_batch_size out"):
        recipe_checks.check(Config.model_validate(values), "x.yaml")
    recipe_checks.check(Config.model_validate(values | {"train": {"num_minibatches": 4}}), "x.yaml")


@pytest.mark.parametrize("name", ["gspo", "gspo_token", "disco", "gepo"])
def test_losses_of_whole_completions_want_them_weighed_alike(name):
    """Long completions would count more, and nobody would be told."""
    with pytest.raises(UserError, match=rf"losses\.0 \({name}\) .* set loss_aggregation to sequence_mean"):
        recipe_checks.check(Config.model_validate({"task": "jigsaw", "out": "x", "losses": [name]}), "x.yaml")
