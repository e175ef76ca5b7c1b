"""Losses of demonstrations, teachers and recorded episodes, against numbers worked out by hand."""

from __future__ import annotations

import functools
import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from vlrl.algorithms.auxiliary_losses import distill, generalized_jsd, rl_plus, sft
from vlrl.algorithms.policy_losses import a_lol, copg, ppo_clip, sequence_mean, token_mean
from vlrl.types import Batch, Evaluation, Policy, UserError
from vlrl.update import Updater

MASK = torch.tensor([[True, True], [True, False]])


def tensor(*rows: list[float]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def of(now: Tensor, mask: Tensor = MASK, **columns) -> tuple[Evaluation, Batch]:
    """An evaluation with gradient and a batch; what is not given is 0."""
    given = {"advantage": 0 * now, "old_logprobs": 0 * now} | columns
    now = now.clone().requires_grad_()
    return Evaluation(now, 0 * now, mask), Batch(mask=mask, **given)


def slope(loss: Tensor, now: Evaluation, mask: Tensor = MASK) -> Tensor:
    (grad,) = torch.autograd.grad((loss * mask).sum(), now.logprobs)
    return grad


# -- demonstrations --------------------------------------------------------------------------------------------------


def test_sft_imitates_demonstrations_alone():
    """The policy's own mistakes would be imitated: -log p where shown, nothing elsewhere."""
    now, batch = of(tensor([-0.5, -2.0], [-1.0, 0.0]), is_demonstration=torch.tensor([True, False]))
    loss = sft(now, batch, coef=0.5)
    assert loss.tolist() == [[0.25, 1.0], [0.0, 0.0]]
    assert slope(loss, now).tolist() == [[-0.5, -0.5], [0.0, 0.0]]
    assert not sft(now, replace(batch, is_demonstration=None)).any()


def test_rl_plus_equals_the_worked_example():
    """Demonstrations would be weighed by a ratio without bound, or by one that is 1 whatever they are."""
    # own row: p = .4, p_old = .5, A = 2: -A p / p_old = -2 * .8 = -1.6
    # shown row: p = .2, p_old = .1, A = 1.5: q = (.1 + 1) / 2 = .55, r = 2 * .2 / (.1 + .55) = .6153846,
    #   (1 - .2)^.5 = .8944272, loss = -1.5 * .8944272 * .6153846 = -.8256251; its slope in log p is itself
    now, batch = of(
        tensor([math.log(0.4), 0.0], [math.log(0.2), 0.0]), torch.tensor([[True, False], [True, False]]),
        old_logprobs=tensor([math.log(0.5), 0.0], [math.log(0.1), 0.0]), advantage=tensor([2.0, 0.0], [1.5, 0.0]),
        is_demonstration=torch.tensor([False, True]),
    )  # fmt: skip
    loss = rl_plus(now, batch)
    assert loss[:, 0].tolist() == pytest.approx([-1.6, -0.8256251], abs=1e-6)
    assert slope(loss, now, batch.mask)[:, 0].tolist() == pytest.approx([-1.6, -0.8256251], abs=1e-6)


@given(st.floats(-30, 0), st.floats(-30, 0))
def test_rl_plus_never_weighs_a_demonstration_above_four(now_at, then_at):
    """One token that the policy has never written would make the whole update."""
    now, batch = of(
        tensor([now_at]), torch.tensor([[True]]), old_logprobs=tensor([then_at]), advantage=tensor([1.0]),
        is_demonstration=torch.tensor([True]),
    )  # fmt: skip
    grad = slope(rl_plus(now, batch, gamma=0.0), now, batch.mask)
    assert torch.isfinite(grad).all() and -4 <= float(grad) <= 0


def test_rl_plus_is_the_unclipped_surrogate_on_the_policys_own_episodes():
    """Without demonstrations the method would be another than policy gradient."""
    now, batch = of(
        tensor([-0.5, -0.7], [-1.0, 0.0]),
        old_logprobs=tensor([-0.6, -0.6], [-1.1, 0.0]),
        advantage=tensor([1, 1], [-2, 0]),
    )
    assert torch.equal(rl_plus(now, batch), ppo_clip(now, batch))  # all ratios lie within the clip range


class Table(torch.nn.Module, Policy):
    """One log-probability to each token of each decision."""

    def __init__(self):
        super().__init__()
        self.logits = torch.nn.Parameter(torch.full((2, 2), -1.0, dtype=torch.float64))

    def evaluate(self, decisions):
        rows = self.logits[decisions]
        return Evaluation(rows, 0 * rows, torch.ones_like(rows, dtype=torch.bool))


def taught(shown: Tensor | None) -> tuple[Table, float]:
    """The table after one update without any advantage, with groups that teach nothing left out."""
    table = Table()
    optimizer = torch.optim.SGD(table.parameters(), lr=0.1)
    updater = Updater(
        table, optimizer, [ppo_clip, sft], token_mean, backward=lambda loss: loss.backward(),
        clip=lambda: torch.nn.utils.clip_grad_norm_(table.parameters(), 100.0), parts=1, epochs=1, micro=None,
        clip_range=(0.2, 0.2), skip=True,
    )  # fmt: skip
    rows, nothing = torch.arange(2), torch.zeros(2, 2, dtype=torch.float64)
    rollouts = SimpleNamespace(
        group=rows, episode=rows, mask=torch.ones(2, 2, dtype=torch.bool), logprobs=nothing - 1.0, reference=None,
        teacher=None, candidates=None, teacher_candidates=None, is_demonstration=shown, sample_ids=("a", "b"),
        is_correct=rows > 0,
    )  # fmt: skip
    totals = updater.step([0, 1], rollouts, nothing, (0,))
    return table, totals.left_out


def test_a_demonstration_without_an_advantage_is_learned_from():
    """Skipping what teaches nothing would skip everything that is shown."""
    table, left_out = taught(torch.tensor([False, True]))
    assert left_out == 0.5  # the other one
    assert table.logits[0].tolist() == [-1.0, -1.0] and table.logits[1].tolist() == pytest.approx([-0.975, -0.975])
    still, all_out = taught(None)
    assert all_out == 1.0 and still.logits.tolist() == [[-1.0, -1.0], [-1.0, -1.0]]


# -- teachers --------------------------------------------------------------------------------------------------------


def test_distill_equals_the_worked_example():
    """The policy would leave its teacher, or be pulled to it by its demonstrations."""
    # d = now - teacher: .3, -.4; k2: d^2 / 2 = .045, .08, slopes .3, -.4. k1: r d with r = exp(now - old) = e^.1, e^0
    now, batch = of(
        tensor([-0.5, -2.0], [-1.0, 0.0]), teacher=tensor([-0.8, -1.6], [-9.0, 0.0]),
        old_logprobs=tensor([-0.6, -2.0], [-1.0, 0.0]), is_demonstration=torch.tensor([False, True]),
    )  # fmt: skip
    loss = distill(now, batch, coef=1.0)
    assert loss.flatten().tolist() == pytest.approx([0.045, 0.08, 0.0, 0.0])
    assert slope(loss, now).flatten().tolist() == pytest.approx([0.3, -0.4, 0.0, 0.0])
    k1 = distill(now, batch, kind="k1", coef=1.0)
    assert slope(k1, now).flatten().tolist() == pytest.approx([0.3 * math.exp(0.1), -0.4, 0.0, 0.0])


@pytest.mark.parametrize("kind", ["k1", "k2"])
def test_both_estimators_have_the_gradient_of_the_kl(kind):
    """The sampled loss would pull elsewhere than to the teacher: summed over a law, it is the KL's own slope."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(5, generator=generator, dtype=torch.float64).requires_grad_()
    teacher = torch.randn(5, generator=generator, dtype=torch.float64).log_softmax(0)
    law, mask = logits.log_softmax(0), torch.ones(5, 1, dtype=torch.bool)
    (wanted,) = torch.autograd.grad((law.exp() * (law - teacher)).sum(), logits, retain_graph=True)
    batch = Batch(0 * law[:, None], law.detach()[:, None], mask, teacher=teacher[:, None])
    each = distill(Evaluation(law[:, None], law[:, None], mask), batch, kind=kind, coef=1.0)
    (found,) = torch.autograd.grad((law.detach().exp() * each[:, 0]).sum(), logits)
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("beta", [0.0, 0.3, 0.5, 1.0])
@pytest.mark.parametrize("kept", [3, 9])
def test_the_divergence_of_laws_is_trls(beta, kept, monkeypatch):
    """The likeliest tokens and a tail, or the whole vocabulary of nine: value and slope at the logits."""
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    from trl.experimental.sdpo.loss_utils import compute_topk_self_distillation_loss

    draw = functools.partial(torch.randn, generator=torch.Generator().manual_seed(kept), dtype=torch.float64)
    logits, teacher, mask = draw(2, 4, 9).requires_grad_(), draw(2, 4, 9), torch.ones(2, 4, dtype=torch.bool)
    expected = compute_topk_self_distillation_loss(
        logits, teacher, distillation_topk=kept, distillation_alpha=beta, distillation_add_tail=True
    )
    law, ids = logits.log_softmax(-1), logits.topk(kept, -1).indices
    nothing, shown = torch.zeros(2, 4), torch.tensor([False, True])
    batch = Batch(nothing, nothing, mask, teacher_candidates=teacher.log_softmax(-1).gather(-1, ids))
    now = Evaluation(nothing, nothing, mask, law.gather(-1, ids))
    found = generalized_jsd(now, batch, beta=beta)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)
    wanted = torch.autograd.grad(expected.sum(), logits, retain_graph=True)
    torch.testing.assert_close(torch.autograd.grad(found.sum(), logits), wanted, atol=1e-6, rtol=1e-5)
    assert generalized_jsd(now, replace(batch, is_demonstration=shown), beta=beta)[1].eq(0).all()


def test_a_token_that_may_not_be_written_has_no_slope():
    """-inf times 0 would train on NaN."""
    law = tensor([[-0.1, -math.inf]])[None].requires_grad_()
    batch = Batch(tensor([0.0]), tensor([0.0]), torch.ones(1, 1, dtype=torch.bool), teacher_candidates=law.detach())
    loss = generalized_jsd(Evaluation(tensor([0.0]), tensor([0.0]), batch.mask, law), batch)
    (grad,) = torch.autograd.grad(loss.sum(), law)
    assert loss.abs().max() < 1e-9 and grad.isfinite().all()


# -- recorded episodes -----------------------------------------------------------------------------------------------


def test_a_lol_equals_the_worked_example():
    """Episodes that went badly would be unlearned offline, or the policy run away from its start."""
    # row 1: A = .5, log ratios .2 and .3: sequence e^.5 = 1.6487, tokens e^.2 = 1.2214, e^.3 = 1.3499
    # row 2: A = 2, log ratio .9: e^.9 = 2.4596, clipped to 1.9; row 3: A < 0: nothing
    mask = torch.tensor([[True, True], [True, False], [True, True]])
    now, batch = of(
        tensor([-0.5, -1.0], [-1.0, 0.0], [-1.0, -1.0]), mask,
        reference=tensor([-0.7, -1.3], [-1.9, 0.0], [-1.0, -1.0]),
        advantage=tensor([0.5, 0.5], [2.0, 0.0], [-1.0, -1.0]),
    )  # fmt: skip
    wanted = {
        "sequence": [0.5 * math.exp(0.5), 0.5 * math.exp(0.5), 2 * 1.9],
        "token": [0.5 * math.exp(0.2), 0.5 * math.exp(0.3), 2 * 1.9], "none": [0.5, 0.5, 2.0],
    }  # fmt: skip
    for ratio, (one, two, three) in wanted.items():
        loss = a_lol(now, batch, ratio=ratio)
        assert slope(loss, now, mask).flatten().tolist() == pytest.approx([-one, -two, -three, 0, 0, 0])
    assert float(a_lol(now, batch)[0, 1].detach()) == pytest.approx(0.5 * math.exp(0.5) * 1.0)


def group_of(rewards: list[float], moved: list[float], groups: list[int]) -> tuple[Evaluation, Batch]:
    """Completions of two tokens that share their log-ratio to the reference, 0."""
    shares = torch.tensor([0.75, 0.25], dtype=torch.float64)
    now = torch.tensor(moved, dtype=torch.float64)[:, None] * shares
    mask, rows = torch.ones(len(moved), 2, dtype=torch.bool), torch.arange(len(moved))
    columns = {"advantage": torch.tensor(rewards, dtype=torch.float64)[:, None] * mask, "reference": 0 * now}
    return of(now, mask, **columns, group=torch.tensor(groups), episode=rows)


def whole(now: Evaluation, batch: Batch, **options) -> Tensor:
    return (copg(now, batch, **options) * sequence_mean(batch.mask)).sum()


def test_copg_equals_the_sum_over_pairs():
    """Numbers worked out from the pairs: h = R - .5 moved = (.9, .1, -.3), squared differences .64, 1.44, .16."""
    now, batch = group_of([1.0, 0.0, 0.0], [0.2, -0.2, 0.6], [0, 0, 0])
    pairs = (0.64 + 1.44 + 0.16) / 2  # k - 1
    assert float(whole(now, batch, beta=0.5).detach()) == pytest.approx(pairs / (2 * 0.5) / 3)


VALUES = st.lists(st.floats(-2, 2), min_size=5, max_size=5)


@given(VALUES, st.floats(0.05, 2))
def test_copg_at_the_reference_is_the_policy_gradient_with_leave_one_out(rewards, beta):
    """Its size would hang on beta, and its baseline be biased."""
    now, batch = group_of(rewards, [0.0] * 5, [0, 0, 0, 1, 1])
    (found,) = torch.autograd.grad(whole(now, batch, beta=beta), now.logprobs)
    own = torch.tensor(rewards, dtype=torch.float64)
    means = torch.stack([own[:3].mean()] * 3 + [own[3:].mean()] * 2)
    sizes = torch.tensor([3, 3, 3, 2, 2])
    torch.testing.assert_close(found[:, 0], -(own - means) * sizes / (sizes - 1) / 5)  # a mean over 5 completions
    assert torch.equal(found[:, 0], found[:, 1])


@given(VALUES, st.floats(0.05, 2), st.floats(-3, 3))
def test_copg_rests_where_the_policy_is_the_best_under_the_kl(rewards, beta, shift):
    """Recorded completions would pull the policy past its optimum: log(p / p_reference) = R / beta + anything."""
    moved = [reward / beta + shift for reward in rewards]
    now, batch = group_of(rewards, moved, [0] * 5)
    loss = whole(now, batch, beta=beta)
    (grad,) = torch.autograd.grad(loss, now.logprobs)
    assert float(loss.detach()) == pytest.approx(0, abs=1e-12) and grad.abs().max() < 1e-6


def test_copg_refuses_episodes_of_several_turns():
    """Each turn would be compared as if it were a completion of its own."""
    now, batch = group_of([1.0, 0.0], [0.0, 0.0], [0, 0])
    with pytest.raises(UserError, match=r"copg .* several turns"):
        copg(now, replace(batch, episode=torch.tensor([3, 3])))


@pytest.mark.parametrize("term", [sft, functools.partial(a_lol, ratio="none"), rl_plus])
def test_coefficients_scale(term):
    """A mixture's weights would do nothing."""
    now, batch = of(
        tensor([-0.5, -2.0], [-1.0, 0.0]), is_demonstration=torch.tensor([True, False]), advantage=tensor([1.0, 1.0],
        [2.0, 0.0]),
        reference=tensor([-0.5, -2.0], [-1.0, 0.0]),
    )  # fmt: skip
    torch.testing.assert_close(term(now, batch, coef=0.25), 0.25 * term(now, batch))
