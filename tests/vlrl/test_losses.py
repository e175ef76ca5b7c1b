"""Loss terms against worked examples, finite differences and their laws."""

from __future__ import annotations

import functools
import importlib.util
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from vlrl import methods, recipe_checks, registry
from vlrl.algorithms.auxiliary_losses import distill, entropy, kl, likelihood
from vlrl.algorithms.policy_losses import ppo_clip, reg_grpo, sequence_mean, token_mean
from vlrl.config import Component, Config
from vlrl.methods import clip_fraction
from vlrl.types import Batch, Evaluation, UserError

TERMS = {
    **registry.names("losses"),
    "ppo_clip dual": functools.partial(ppo_clip, low=0.2, high=0.3, dual=3.0),
    "kl k1": functools.partial(kl, kind="k1"),
    "kl k2": functools.partial(kl, kind="k2"),
    "kl weighted": functools.partial(kl, weighted=True),
    "distill k1": functools.partial(distill, kind="k1"),
    "reg_grpo scaled": functools.partial(reg_grpo, eps=0.5, scale=2.0, ddof=0),
}
# hold a part of themselves fixed, so that their value has another slope: tests/vlrl/test_group_losses.py
STOPPED = {"a_lol", "distill k1", "cispo", "dhpo_entropy", "gspo_token", "trust_region", "vespo"}
VANISHING = {name: term for name, term in TERMS.items() if methods.of(term).vanishes}
TINY = 1e-9  # so small an eps of `reg_grpo` that it does not show

_spec = importlib.util.spec_from_file_location("laws", Path(__file__).with_name("laws.py"))
laws = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(laws)


def columns(inputs: dict, *names: str) -> list[Tensor]:
    return [torch.tensor(inputs[name], dtype=torch.float64) for name in names]


def case(seed: int, n: int = 4, length: int = 5, spread: float = 0.5) -> tuple[Evaluation, Batch]:
    """Random columns with ragged masks, as an evaluation with gradient and its batch."""
    draw = functools.partial(torch.randn, n, length, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    old = -draw().abs() - 0.1
    mask = torch.arange(length) < 1 + torch.arange(n)[:, None] % length
    now = (old + spread * draw()).requires_grad_()
    full = draw().abs().requires_grad_()
    group, episode = torch.arange(n) // 2, torch.arange(n)
    advantage, reference, teacher = draw() * mask, old + 0.3 * draw(), old + 0.2 * draw()
    return Evaluation(now, full, mask, now[..., None]), Batch(
        advantage, old, mask, reference, group=group, episode=episode, teacher=teacher,
        teacher_candidates=teacher[..., None], is_correct=episode % 2 == 0,
    )  # fmt: skip


def objective(term, now: Evaluation, batch: Batch) -> Tensor:
    return (term(now, batch) * token_mean(batch.mask)).sum()


@pytest.mark.parametrize(
    ("example", "weigh"),
    [
        ("easyr1_mssr_policy_loss", token_mean),
        ("dapo_clip_higher_tokenmean", token_mean),
        ("ppo_clip_seqmean", sequence_mean),
    ],
)
def test_ppo_clip_equals_the_worked_examples(golden, near, example, weigh):
    """GRPO, DAPO and MSSR differ in these numbers only."""
    inputs, outputs = golden(example)
    new, old, mask = columns(inputs, "new_logp", "old_logp", "mask")
    advantage = torch.tensor(inputs["adv_seq"], dtype=torch.float64)[:, None] * mask
    batch = Batch(advantage, old, mask.bool())
    options = {"low": inputs["clip_low"], "high": inputs["clip_high"], "dual": inputs["dual"]}
    loss = ppo_clip(Evaluation(new, new, mask.bool()), batch, **options)
    near(loss, outputs["per_token"])
    near((loss * weigh(mask.bool())).sum(), outputs["loss"])


@pytest.mark.parametrize("kind", ["k1", "k2", "k3"])
def test_kl_equals_the_worked_example(golden, near, kind):
    """A KL with the arguments swapped pulls the policy in another direction."""
    inputs, outputs = golden("kl_estimators")
    new, old, reference, mask = columns(inputs, "new_logp", "old_logp", "ref_logp", "mask")
    mask = mask.bool()
    loss = kl(Evaluation(new, new, mask), Batch(old, old, mask, reference), kind=kind, coef=1.0)
    near((loss * token_mean(mask)).sum(), outputs[kind])
    if kind == "k3":
        near(loss, outputs["k3_per_token"])


def test_a_full_mssr_step_equals_the_worked_example_with_its_gradient(golden, near):
    """The terms would be right one by one and wrong in sum."""
    inputs, outputs = golden("mssr_full_step")
    new, old, reference, mask, advantage = columns(inputs, "new_logp", "old_logp", "ref_logp", "mask", "advantage")
    new.requires_grad_()
    mask = mask.bool()
    now, batch = Evaluation(new, new, mask), Batch(advantage, old, mask, reference)
    policy = objective(functools.partial(ppo_clip, low=0.2, high=0.3, dual=3.0), now, batch)
    near(policy.detach(), outputs["pg_loss"])
    near(objective(functools.partial(kl, coef=1.0), now, batch).detach(), outputs["kl"])
    loss = policy + objective(functools.partial(kl, coef=0.01), now, batch)
    near(loss.detach(), outputs["loss"])
    loss.backward()
    near(new.grad, outputs["grad"])


@pytest.mark.parametrize("name", [name for name in TERMS if name not in STOPPED])
@pytest.mark.parametrize("seed", range(3))
def test_gradients_equal_finite_differences(name, seed):
    """A wrong gradient trains towards something else while the logged loss looks right."""
    now, batch = case(seed)

    def value(logprobs: Tensor, full: Tensor) -> Tensor:
        return objective(TERMS[name], Evaluation(logprobs, full, now.mask, logprobs[..., None]), batch)

    assert torch.autograd.gradcheck(value, (now.logprobs, now.entropy))


@pytest.mark.parametrize("name", TERMS)
@given(seed=st.integers(0, 999), garbage=st.sampled_from([-1e4, -1.0, 3.0, 1e4]))
def test_what_lies_outside_the_mask_never_matters(name, seed, garbage):
    """Padding would train the policy, or overflow into NaN."""
    now, batch = case(seed)
    out = ~now.mask

    def dirty(values: Tensor, factor: float = 1.0) -> Tensor:
        return values.detach().masked_fill(out, factor * garbage)

    logprobs, full = dirty(now.logprobs).requires_grad_(), dirty(now.entropy).requires_grad_()
    columns = {"advantage": 1.0, "old_logprobs": 0.5, "reference": 0.3, "teacher": 0.4}
    soiled = replace(batch, **{name: dirty(getattr(batch, name), factor) for name, factor in columns.items()})
    soiled = replace(soiled, teacher_candidates=soiled.teacher[..., None])
    clean = objective(TERMS[name], now, batch)
    loss = objective(TERMS[name], Evaluation(logprobs, full, now.mask, logprobs[..., None]), soiled)
    assert float(loss.detach()) == float(clean.detach())
    grads = torch.autograd.grad(loss, (logprobs, full), allow_unused=True)
    wanted = torch.autograd.grad(clean, (now.logprobs, now.entropy), allow_unused=True)
    for grad, want in zip(grads, wanted, strict=True):
        assert (grad is None) == (want is None)
        assert grad is None or torch.equal(grad, want * now.mask)


@given(st.integers(0, 999), st.sampled_from([None, 3.0]))
def test_ratio_one_is_the_plain_policy_gradient(seed, dual):
    """The first update of each step must be exactly REINFORCE with the given advantage."""
    now, batch = case(seed, spread=0.0)
    (clipped,) = torch.autograd.grad(objective(functools.partial(ppo_clip, dual=dual), now, batch), now.logprobs)
    plain = (-batch.advantage * now.logprobs * token_mean(batch.mask)).sum()
    (wanted,) = torch.autograd.grad(plain, now.logprobs)
    torch.testing.assert_close(clipped, wanted)


@given(st.integers(0, 999))
def test_clipping_only_takes_gradients_away(seed):
    """Beyond the clip range, a token that already moved the right way must be left alone; no other may."""
    now, batch = case(seed)
    (grad,) = torch.autograd.grad(objective(ppo_clip, now, batch), now.logprobs)
    ratio = (now.logprobs - batch.old_logprobs).exp()
    done = ((batch.advantage > 0) & (ratio > 1.2)) | ((batch.advantage < 0) & (ratio < 0.8))
    assert torch.equal(grad != 0, now.mask & ~done & (batch.advantage != 0))


@given(st.integers(0, 999))
def test_k3_is_never_negative_and_zero_at_the_reference(seed):
    """A negative KL would pay the policy for leaving the reference."""
    now, batch = case(seed)
    assert (kl(now, batch) >= 0).all()
    same = Batch(batch.advantage, batch.old_logprobs, batch.mask, now.logprobs.detach())
    assert (kl(now, same) == 0).all()


def test_likelihood_equals_the_worked_example():
    """Imitation would follow the ratio to a policy that has moved on, or learn what was not chosen."""
    mask = torch.tensor([[True, True], [True, False]])
    now = Evaluation(torch.tensor([[-0.5, -2.0], [-1.0, 0.0]], requires_grad=True), torch.zeros(2, 2), mask)
    batch = Batch(torch.tensor([[1.0, 1.0], [0.0, 0.0]]), torch.tensor([[-9.0, -0.1], [-3.0, 0.0]]), mask)
    assert likelihood(now, batch).tolist() == [[0.5, 2.0], [0.0, 0.0]]
    loss = objective(functools.partial(likelihood, coef=0.5), now, batch)
    assert loss.item() == pytest.approx(0.5 * 2.5 / 3)
    (grad,) = torch.autograd.grad(loss, now.logprobs)
    torch.testing.assert_close(grad, torch.tensor([[-0.5 / 3, -0.5 / 3], [0.0, 0.0]]))


def test_huge_log_ratios_stay_finite():
    """One token that became e^100 times as likely would end the run."""
    mask = torch.ones(1, 2, dtype=torch.bool)
    old = torch.tensor([[-200.0, -1e-3]])
    now = Evaluation(torch.tensor([[-1e-3, -200.0]], requires_grad=True), torch.zeros(1, 2), mask)
    for term in (ppo_clip, functools.partial(kl, coef=1.0)):
        loss = objective(term, now, Batch(torch.tensor([[-1.0, 1.0]]), old, mask, old))
        (grad,) = torch.autograd.grad(loss, now.logprobs)
        assert torch.isfinite(loss) and torch.isfinite(grad).all()


def test_a_positive_entropy_coefficient_rewards_entropy():
    """With the sign flipped the bonus makes the policy collapse."""
    now, batch = case(0)
    (grad,) = torch.autograd.grad(objective(entropy, now, batch), now.entropy)
    assert (grad[now.mask] < 0).all()


def test_clip_fraction_counts_tokens_outside_the_range():
    """The log's first sign of too large steps would be wrong."""
    mask = torch.tensor([[True, True, True, True, False]])
    now = Evaluation(torch.tensor([[0.0, 0.5, -0.5, 0.1, 9.0]]), torch.zeros(1, 5), mask)
    assert clip_fraction(now, Batch(now.logprobs, torch.zeros(1, 5), mask), 0.2, 0.2) == 0.5


def group_of(rho: list[float], advantage: list[float], groups: list[int] | None = None) -> tuple[Evaluation, Batch]:
    """Completions of three tokens that share a log-ratio rho unequally; two of the tokens carry it."""
    shares = torch.tensor([0.75, 0.25, 0.0], dtype=torch.float64)
    now = (torch.tensor(rho, dtype=torch.float64)[:, None] * shares).requires_grad_()
    mask = torch.tensor([[True, True, False]]).expand(len(rho), 3)
    advantages = torch.tensor(advantage, dtype=torch.float64)[:, None] * mask
    group, rows = torch.tensor(groups or [0] * len(rho)), torch.arange(len(rho))
    return Evaluation(now, now, mask), Batch(advantages, torch.zeros_like(now), mask, None, group, rows)


def regression(now: Evaluation, batch: Batch, **options) -> Tensor:
    return (reg_grpo(now, batch, **options) * sequence_mean(batch.mask)).sum()


def slope(now: Evaluation, batch: Batch, **options) -> Tensor:
    """The gradient with respect to each completion's log-ratio; both of its tokens have it."""
    (grad,) = torch.autograd.grad(regression(now, batch, **options), now.logprobs)
    assert torch.equal(grad[:, 0], grad[:, 1]) and (grad[:, 2] == 0).all()
    return grad[:, 0]


def standardised(values: Tensor, ddof: int) -> Tensor:
    return (values - values.mean()) / values.std(correction=ddof)


@pytest.mark.parametrize("case", range(2))
def test_reg_grpo_equals_the_worked_example(golden, near, case):
    """The paper's formula, and ours beside it with a wide eps and another scale: else the regression is onto others."""
    inputs, outputs = golden("reg_grpo_loss")
    now, batch = group_of(inputs["rho"], inputs["adv"])
    near(regression(now, batch, **inputs["options"][case]).detach(), outputs["losses"][case])
    near(slope(now, batch, **inputs["options"][case]), outputs["grads"][case])


VALUES = st.lists(st.integers(-20, 20), min_size=6, max_size=6).filter(lambda values: len(set(values)) > 1)


@given(VALUES, VALUES, st.sampled_from([0.5, 1.0, 2.0]))
def test_reg_grpo_sees_the_correlation_of_rewards_and_log_ratios(rewards, ratios, scale):
    """2 (1 - r) is the paper's loss: any other pays for the size of the log-ratios, or reads them wrongly."""
    rho = torch.tensor(ratios, dtype=torch.float64) / 10
    target = standardised(torch.tensor(rewards, dtype=torch.float64), 0)
    loss = float(regression(*group_of(rho.tolist(), target.tolist()), eps=TINY, scale=scale, ddof=0).detach())
    r = float((target * standardised(rho, 0)).mean())
    assert loss == pytest.approx(1 - 2 * scale * r + scale**2, abs=1e-5)


@given(VALUES, VALUES, st.floats(0.1, 9), st.floats(-5, 5))
def test_reg_grpo_does_not_see_the_rewards_scale(rewards, ratios, factor, shift):
    """A bonus to all, or rewards in percent, would train another policy."""
    reward = torch.tensor(rewards, dtype=torch.float64)
    slopes = [
        slope(*group_of([x / 10 for x in ratios], standardised(values, 1).tolist()))
        for values in (reward, factor * reward + shift)
    ]
    torch.testing.assert_close(*slopes)


def by_hand(rho: list[float], target: list[float], eps: float, scale: float, ddof: int) -> float:
    """The mean loss of one group, as the docstring writes it."""
    n, mean = len(rho), sum(rho) / len(rho)
    variance = sum((x - mean) ** 2 for x in rho) / (n - ddof)
    return sum((a - scale * (x - mean) / (variance + eps**2) ** 0.5) ** 2 for x, a in zip(rho, target, strict=True)) / n


@given(VALUES, st.sampled_from([1e-3, 0.1, 2.0]), st.sampled_from([0.5, 1.0, 3.0]), st.integers(0, 1))
def test_reg_grpo_equals_plain_arithmetic_in_value_and_gradient(ratios, eps, scale, ddof):
    """The groups' matrix form would mix members of other groups, or lose the mean's share of the gradient."""
    rho, target = [x / 10 for x in ratios], [1.5, -0.5, -1.0, 0.3, 0.3, -0.6]
    options, step = {"eps": eps, "scale": scale, "ddof": ddof}, 1e-6
    now, batch = group_of(rho * 2, [*target, *([0.0] * 6)], [4] * 6 + [1] * 6)  # the second group teaches nothing
    loss = float(regression(now, batch, **options).detach())
    assert loss == pytest.approx(by_hand(rho, target, **options) / 2, rel=1e-5)
    grad = slope(now, batch, **options)
    assert (grad[6:] == 0).all()
    for i in range(6):
        moved = [[x + way * (j == i) for j, x in enumerate(rho)] for way in (step, -step)]
        difference = (by_hand(moved[0], target, **options) - by_hand(moved[1], target, **options)) / (2 * step)
        assert float(grad[i]) == pytest.approx(difference / 2, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize(("eps", "scale"), [(0.1, 1.0), (1e-4, 1.0), (1.0, 2.0)])
def test_reg_grpos_first_step_is_the_policy_gradient_of_the_stated_size(eps, scale):
    """Where all ratios are 1 the paper's deviation has no gradient: the first update would be skipped as NaN."""
    target = standardised(torch.tensor([1.0, 0.0, 0.5, 1.0], dtype=torch.float64), 1)
    grad = slope(*group_of([0.0] * 4, target.tolist()), eps=eps, scale=scale)
    torch.testing.assert_close(grad, -2 * scale * target / (eps * 4))


def test_reg_grpo_learns_nothing_from_equal_rewards_or_from_one_alone():
    """A group without a difference would pull its members together."""
    now, batch = group_of([0.5, -0.4, 0.2, 0.1, 3.0], [0.0, 0.0, 0.0, 0.0, 0.0], [0, 0, 0, 0, 1])
    assert float(regression(now, batch).detach()) == 0.0 and (slope(now, batch) == 0).all()
    alone, batch = group_of([0.5, -0.4, 3.0], [0.7, -0.7, 0.5], [0, 0, 1])
    assert slope(alone, batch)[2] == 0 and (slope(alone, batch)[:2] != 0).all()


def test_reg_grpo_holds_log_ratios_at_the_stated_size():
    """With scale above 1 the options would not say where the policy comes to rest."""
    size = 0.5 / 3**0.5  # eps / sqrt(scale^2 - 1)
    now, batch = group_of([size, -size, size, -size], [1.0, -1.0, 1.0, -1.0])
    assert float(regression(now, batch, eps=0.5, scale=2.0, ddof=0).detach()) == pytest.approx(0.0, abs=1e-20)
    further, _ = group_of([2 * size, -2 * size, 2 * size, -2 * size], [0.0] * 4)
    assert (slope(further, batch, eps=0.5, scale=2.0, ddof=0) * further.logprobs[:, 0] > 0).all()


def test_reg_grpo_refuses_episodes_of_several_turns():
    """Each turn would be compared as if it were a completion of its own."""
    now, batch = group_of([0.1, 0.2], [1.0, -1.0])
    turns = Batch(batch.advantage, batch.old_logprobs, batch.mask, None, batch.group, torch.tensor([3, 3]))
    with pytest.raises(UserError, match=r"reg_grpo .* several turns"):
        reg_grpo(now, turns)


@pytest.mark.parametrize("weighing", ["token_mean", {"name": "constant", "length": 8}])
def test_reg_grpo_is_refused_with_another_weighing(weighing):
    """Long completions would count more in the regression, and nobody would be told."""
    values = {"task": "jigsaw", "out": "x", "losses": ["reg_grpo"], "loss_aggregation": weighing}
    with pytest.raises(UserError, match=r"x\.yaml: losses\.0 \(reg_grpo\) .* set loss_aggregation to sequence_mean"):
        recipe_checks.check(Config.model_validate(values), "x.yaml")
    recipe_checks.check(Config.model_validate(values | {"loss_aggregation": "sequence_mean"}), "x.yaml")
    alone = {"loss_aggregation": "sequence_mean", "train": {"group_size": 1}, "advantages": ["batch_norm"]}
    with pytest.raises(UserError, match=r"losses\.0 \(reg_grpo\) needs several completions"):
        recipe_checks.check(Config.model_validate(values | alone), "x.yaml")


def test_reg_grpo_takes_no_eps_of_zero():
    """The first update of every step would be NaN, and skipped."""
    for option in ("eps", "scale"):
        with pytest.raises(UserError, match=rf"losses\.0\.{option}"):
            registry.make("losses", Component(name="reg_grpo", **{option: 0.0}), "losses.0")


def gradients(loss: Tensor, weights: Tensor, now: Evaluation) -> list[Tensor]:
    """Of the weighted loss, with respect to log-probabilities and entropies."""
    wanted = (now.logprobs, now.entropy)
    if not loss.requires_grad:
        return [torch.zeros_like(column) for column in wanted]
    found = torch.autograd.grad((loss * weights).sum(), wanted, allow_unused=True)
    return [torch.zeros_like(c) if grad is None else grad for c, grad in zip(wanted, found, strict=True)]


def vanishes(term, seed: int, spread: float) -> bool:
    """Whether decisions without an advantage count for nothing, in values and gradients, at one random minibatch."""
    now, batch = laws.micro(seed, groups=4, spread=spread)
    zero = torch.rand(len(batch.mask), generator=torch.Generator().manual_seed(seed)) < 0.4
    zero |= batch.group == seed % 4  # a whole group, as they are left out, and some of others, not all
    zero[4 * (seed + 1) % 16] = False
    batch = replace(batch, advantage=batch.advantage.masked_fill(zero[:, None], 0.0))
    weights, rest = token_mean(batch.mask), (~zero).nonzero().flatten()
    loss, alone = term(now, batch), term(*laws.some(now, batch, rest))
    with_, without = gradients(loss, weights, now), gradients(alone, weights[rest], now)
    apart = [(a - b).abs().max() for a, b in zip(with_, without, strict=True)]
    value, own = (loss * batch.mask).detach(), (alone * batch.mask[rest]).detach()
    return float(max(*apart, (value[rest] - own).abs().max(), value[zero].abs().max())) < 1e-9


@pytest.mark.parametrize("name", VANISHING)
@pytest.mark.parametrize("spread", [0.0, 0.4, 3.0])
@given(seed=st.integers(0, 9999))
def test_a_loss_with_the_mark_vanishes_with_the_advantage(name, spread, seed):
    """Groups would be left out of an update that they belong to: the policy would learn something else."""
    assert vanishes(VANISHING[name], seed, spread)


@pytest.mark.parametrize("name", sorted(TERMS.keys() - VANISHING.keys()))
def test_a_loss_without_the_mark_does_not_vanish(name):
    """Nobody would notice a forgotten mark: the step would only be slower than it need be."""
    assert not all(vanishes(TERMS[name], seed, 0.4) for seed in range(60))
