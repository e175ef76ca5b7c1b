"""Loss terms against worked examples, finite differences and their laws."""

from __future__ import annotations

import functools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from vlrl import registry
from vlrl.losses import clip_fraction, entropy, kl, likelihood, ppo_clip
from vlrl.types import Batch, Evaluation
from vlrl.weighing import sequence_mean, token_mean

TERMS = {
    **registry.names("losses"),
    "ppo_clip dual": functools.partial(ppo_clip, low=0.2, high=0.3, dual=3.0),
    "kl k1": functools.partial(kl, kind="k1"),
    "kl k2": functools.partial(kl, kind="k2"),
}


def columns(inputs: dict, *names: str) -> list[Tensor]:
    return [torch.tensor(inputs[name], dtype=torch.float64) for name in names]


def case(seed: int, n: int = 4, length: int = 5, spread: float = 0.5) -> tuple[Evaluation, Batch]:
    """Random columns with ragged masks, as an evaluation with gradient and its batch."""
    draw = functools.partial(torch.randn, n, length, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    old = -draw().abs() - 0.1
    mask = torch.arange(length) < 1 + torch.arange(n)[:, None] % length
    now = (old + spread * draw()).requires_grad_()
    full = draw().abs().requires_grad_()
    return Evaluation(now, full, mask), Batch(draw() * mask, old, mask, old + 0.3 * draw())


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


@pytest.mark.parametrize("name", TERMS)
@pytest.mark.parametrize("seed", range(3))
def test_gradients_equal_finite_differences(name, seed):
    """A wrong gradient trains towards something else while the logged loss looks right."""
    now, batch = case(seed)

    def value(logprobs: Tensor, full: Tensor) -> Tensor:
        return objective(TERMS[name], Evaluation(logprobs, full, now.mask), batch)

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
    soiled = Batch(dirty(batch.advantage), dirty(batch.old, 0.5), now.mask, dirty(batch.reference, 0.3))
    clean = objective(TERMS[name], now, batch)
    loss = objective(TERMS[name], Evaluation(logprobs, full, now.mask), soiled)
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
    ratio = (now.logprobs - batch.old).exp()
    done = ((batch.advantage > 0) & (ratio > 1.2)) | ((batch.advantage < 0) & (ratio < 0.8))
    assert torch.equal(grad != 0, now.mask & ~done & (batch.advantage != 0))


@given(st.integers(0, 999))
def test_k3_is_never_negative_and_zero_at_the_reference(seed):
    """A negative KL would pay the policy for leaving the reference."""
    now, batch = case(seed)
    assert (kl(now, batch) >= 0).all()
    same = Batch(batch.advantage, batch.old, batch.mask, now.logprobs.detach())
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
