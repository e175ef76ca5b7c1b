"""One step's updates, with a small real policy: nothing may hang on how the batch was split, or on a broken sample."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from vlrl.algorithms.advantages import grpo
from vlrl.algorithms.auxiliary_losses import entropy, kl, likelihood
from vlrl.algorithms.policy_losses import constant, gspo, ppo_clip, reg_grpo, sequence_mean, token_mean
from vlrl.batch import columns, decisions_of, estimate, mask_of, padded
from vlrl.types import Decision, Episode, Evaluation, Observation, Policy, Rollouts, Sample, Step, Turn
from vlrl.update import Updater, minibatches

VOCABULARY, PROMPTS, GROUP = 7, 6, 4
TERMS = (functools.partial(ppo_clip, low=0.2, high=0.3), kl, entropy)


class Bigrams(nn.Module, Policy):
    """A language model of one prompt embedding and one matrix: each token depends on the prompt and the one before."""

    def __init__(self, seed: int):
        super().__init__()
        draw = functools.partial(torch.randn, generator=torch.Generator().manual_seed(seed))
        self.prompt = nn.Parameter(draw(PROMPTS, VOCABULARY))
        self.after = nn.Parameter(draw(VOCABULARY, VOCABULARY))

    def logits(self, prompt: int, tokens: Tensor) -> Tensor:
        return (self.prompt[prompt] + self.after[tokens.roll(1).index_fill(0, torch.tensor(0), 0)]).log_softmax(-1)

    def score(self, decision: Decision) -> tuple[Tensor, Tensor]:
        """Log-probabilities and entropies [T]."""
        prompt, tokens = decision.inputs
        law = self.logits(prompt, tokens)
        return law.gather(1, tokens[:, None])[:, 0], -(law.exp() * law).sum(1)

    def evaluate(self, decisions: Sequence[Decision]) -> Evaluation:
        logprobs, entropies = zip(*map(self.score, decisions), strict=True)
        return Evaluation(padded(logprobs), padded(entropies), mask_of(decisions))


def episodes_of(policy: Bigrams, seed: int = 0) -> list[Episode]:
    """Groups of completions of different lengths with random rewards; the policy's own log-probabilities."""
    generator = torch.Generator().manual_seed(seed)
    episodes = []
    for number in range(PROMPTS * GROUP):
        prompt = number // GROUP
        length = int(torch.randint(1, 6, (), generator=generator))
        tokens = torch.randint(VOCABULARY, (length,), generator=generator)
        with torch.no_grad():
            logprobs, entropies = policy.score(Decision("", tokens, tokens, False, inputs=(prompt, tokens)))
        decision = Decision("", logprobs, entropies, False, inputs=(prompt, tokens))
        sample = Sample(f"prompt/{prompt}", Observation(()))
        reward = float(torch.rand((), generator=generator))
        turn = Turn(sample.prompt, decision, Step(sample.prompt, terminated=True))
        episodes.append(Episode(sample, prompt, [turn], reward=reward))
    return episodes


def step_of(policy: Bigrams) -> tuple[list[Decision], Rollouts, Tensor]:
    """Decisions sampled by a slightly older policy, a further one as reference, and GRPO's advantage."""
    older, first = Bigrams(0), Bigrams(1)
    with torch.no_grad():
        older.after += 0.2 * first.after
    episodes = episodes_of(older)
    decisions = decisions_of(episodes)
    rollouts = columns(episodes, first.evaluate(decisions).logprobs.detach())
    return decisions, rollouts, estimate(rollouts, [grpo])


def updater_of(policy: nn.Module, terms=TERMS, weigh: Callable = token_mean, lr: float = 1.0, **options) -> Updater:
    settings = {"parts": 1, "epochs": 1, "micro": None, "clip_range": (0.2, 0.3)} | options
    parameters = list(policy.parameters())
    return Updater(
        policy, torch.optim.SGD(parameters, lr=lr), terms, weigh, backward=lambda loss: loss.backward(),
        clip=lambda: nn.utils.clip_grad_norm_(parameters, 1e9), **settings,
    )  # fmt: skip


def updated(**options) -> dict[str, Tensor]:
    policy = Bigrams(0)
    updater_of(policy, **options).step(*step_of(policy), (0, 0))
    return policy.state_dict()


@given(st.integers(1, 40), st.integers(1, 50), st.integers(1, 4), st.integers(0, 99))
def test_minibatches_cover_every_group_once_per_epoch(groups, parts, epochs, key):
    """Some prompts would be trained on twice and others never."""
    chosen = list(minibatches(groups, parts, epochs, (key, 3)))
    assert len(chosen) == min(parts, groups) * epochs
    assert max(map(len, chosen)) - min(map(len, chosen)) <= 1
    for epoch in range(epochs):
        part = chosen[epoch * min(parts, groups) : (epoch + 1) * min(parts, groups)]
        assert sorted(g for members in part for g in members) == list(range(groups))


@given(st.integers(20, 40), st.integers(2, 8), st.integers(0, 99))
def test_minibatches_depend_only_on_the_key(groups, parts, key):
    """A resumed run would update in another order than an unbroken one."""
    torch.manual_seed(key)
    one = list(minibatches(groups, parts, 2, (key, 1)))
    assert one == list(minibatches(groups, parts, 2, (key, 1)))
    assert one != list(minibatches(groups, parts, 2, (key, 2)))
    assert one[:parts] != one[parts:]


@pytest.mark.parametrize("weigh", [token_mean, sequence_mean, functools.partial(constant, length=8)])
@pytest.mark.parametrize("micro", [1, 2, 4])
def test_micro_batches_do_not_change_the_gradient(weigh, micro):
    """What is trained would hang on how much memory the machine has."""
    start, whole, split = Bigrams(0).state_dict(), updated(weigh=weigh), updated(weigh=weigh, micro=micro)
    for name in start:
        assert (whole[name] - start[name]).abs().max() > 1e-4
        assert (whole[name] - split[name]).abs().max() < 1e-6


@pytest.mark.parametrize("weigh", [token_mean, sequence_mean])
@pytest.mark.parametrize("micro", [None, 2])
@pytest.mark.parametrize("term", [TERMS[0], gspo])
def test_what_was_not_carried_out_moves_nothing(weigh, micro, term):
    """A robot's policy would learn from controls that were never sent, because the episode was over."""
    older, half = Bigrams(0), []
    with torch.no_grad():  # off-policy: a loss of whole sequences sees the ratios of all its units
        older.after += 0.2 * Bigrams(1).after
    episodes = episodes_of(older)
    for episode in episodes:
        (turn,) = episode.turns
        n = math.ceil(len(turn.decision.logprobs) / 2)
        prompt, tokens = turn.decision.inputs
        d = turn.decision
        cut = replace(d, logprobs=d.logprobs[:n], entropy=d.entropy[:n], inputs=(prompt, tokens[:n]))
        half.append(replace(episode, turns=[replace(turn, decision=cut)]))
        episode.turns[0] = replace(turn, step=replace(turn.step, executed=0.5))
    after = []
    for given_ in (episodes, half):
        policy, rollouts = Bigrams(0), columns(given_)
        step = updater_of(policy, [term, entropy], weigh, micro=micro).step
        step(decisions_of(given_), rollouts, estimate(rollouts, [grpo]), (0, 0))
        after.append(policy.state_dict())
    assert (after[0]["after"] - Bigrams(0).after).abs().max() > 1e-4
    assert all((after[0][name] - after[1][name]).abs().max() < 1e-6 for name in after[0])


@pytest.mark.parametrize("weigh", [token_mean, sequence_mean])
@pytest.mark.parametrize("micro", [None, 1])
def test_the_weights_of_each_optimizer_step_sum_to_one(weigh, micro):
    """More minibatches would mean a smaller step of each, and another learning rate."""
    policy = Bigrams(0)
    ones = [lambda now, batch: 0 * now.logprobs + 1]
    totals = updater_of(policy, ones, weigh, micro=micro, parts=3).step(*step_of(policy), (0, 0))
    assert totals.updates == 3
    assert totals.loss == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("micro", [1, 2])
def test_micro_batches_do_not_split_what_a_loss_compares(micro):
    """`reg_grpo` would see half of a group, and regress onto another mean."""
    options = {"terms": [reg_grpo], "weigh": sequence_mean, "lr": 0.1}
    start, whole, split = Bigrams(0).state_dict(), updated(**options), updated(**options, micro=micro)
    for name in start:
        assert (whole[name] - start[name]).abs().max() > 1e-4
        assert (whole[name] - split[name]).abs().max() < 1e-6


def test_the_regression_moves_the_policy_on_its_own_samples():
    """At the first update every log-ratio is 0: the step would be skipped, or do nothing."""
    policy = Bigrams(0)
    episodes = episodes_of(policy)
    rollouts = columns(episodes)
    updater = updater_of(policy, terms=[functools.partial(reg_grpo, eps=1e-3)], weigh=sequence_mean, lr=1e-5, epochs=3)
    totals = updater.step(decisions_of(episodes), rollouts, estimate(rollouts, [grpo]), (0, 0))
    assert (totals.updates, totals.skipped) == (3, 0)
    now = policy.evaluate(decisions_of(episodes)).logprobs.sum(1) - rollouts.logprobs.sum(1)
    pairs = torch.stack([now.detach(), rollouts.reward])
    assert torch.corrcoef(pairs)[0, 1] > 0.3


def test_an_update_is_the_gradient_of_the_weighted_terms():
    """Slices, weights and terms would be put together wrongly, each of them being right."""
    policy = Bigrams(0)
    decisions, rollouts, advantage = step_of(policy)
    now = policy.evaluate(decisions)
    ratio = (now.logprobs - rollouts.logprobs).exp()
    clipped = torch.minimum(advantage * ratio, advantage * ratio.clamp(0.8, 1.3))
    gap = rollouts.reference - now.logprobs
    per_token = -clipped + 0.01 * (gap.exp() - gap - 1) - 0.01 * now.entropy
    loss = per_token[rollouts.mask].sum() / rollouts.mask.sum()
    wanted = torch.autograd.grad(loss, list(policy.parameters()))
    totals = updater_of(policy).step(decisions, rollouts, advantage, (0, 0))
    for parameter, start, grad in zip(policy.parameters(), Bigrams(0).parameters(), wanted, strict=True):
        torch.testing.assert_close(start - parameter, grad, rtol=1e-4, atol=1e-6)
    assert totals.loss == pytest.approx(loss.item(), abs=1e-6)
    assert totals.grad_norm == pytest.approx(float(torch.cat([g.flatten() for g in wanted]).norm()), rel=1e-4)
    assert (totals.updates, totals.skipped) == (1, 0)
    gaps = (now.logprobs.detach() - rollouts.logprobs).abs()
    assert totals.gap == pytest.approx(float(gaps[rollouts.mask].mean()), rel=1e-4)
    outside = (ratio < 0.8) | (ratio > 1.3)
    assert totals.clip_fraction == pytest.approx(float(outside[rollouts.mask].float().mean()), abs=1e-6)


def test_on_policy_there_is_no_gap():
    """The first warning that sampling and training disagree must be silent when they agree."""
    policy = Bigrams(0)
    episodes = episodes_of(policy)
    rollouts = columns(episodes)
    totals = updater_of(policy, terms=[ppo_clip]).step(
        decisions_of(episodes), rollouts, estimate(rollouts, [grpo]), (0, 0)
    )
    assert (totals.gap, totals.clip_fraction) == (0.0, 0.0)


def test_groups_stay_together():
    """A group's advantages sum to zero only if one update sees the whole group."""
    seen: list[list[int]] = []

    class Watched(Bigrams):
        def evaluate(self, decisions: Sequence[Decision]) -> Evaluation:
            seen.append([decision.inputs[0] for decision in decisions])
            return super().evaluate(decisions)

    policy = Watched(0)
    updater_of(policy, parts=3, epochs=2, micro=1).step(*step_of(policy), (0, 0))
    assert all(prompts == [prompts[0]] * GROUP for prompts in seen)
    assert sorted(prompts[0] for prompts in seen) == sorted([*range(PROMPTS)] * 2)


def broken_gradient(now: Evaluation, batch) -> Tensor:
    """Zero, with a gradient of NaN."""
    return (now.logprobs - now.logprobs.detach()).abs().sqrt()


def not_a_number(now: Evaluation, batch) -> Tensor:
    return now.logprobs * float("nan")


@pytest.mark.parametrize("term", [broken_gradient, not_a_number])
@pytest.mark.parametrize("micro", [None, 1])
def test_a_non_finite_update_moves_nothing(term, micro):
    """One overflow would destroy the weights, and every checkpoint after it."""
    policy = Bigrams(0)
    updater = updater_of(policy, terms=[*TERMS, term], micro=micro)
    updater.optimizer = torch.optim.AdamW(policy.parameters(), lr=0.1)
    totals = updater.step(*step_of(policy), (0, 0))
    assert (totals.updates, totals.skipped) == (0, 1)
    assert totals.skipped_ids == [f"prompt/{i}" for i in range(PROMPTS)]
    assert not updater.optimizer.state
    for name, value in Bigrams(0).state_dict().items():
        assert torch.equal(policy.state_dict()[name], value)


def test_only_the_minibatch_with_the_broken_sample_is_skipped():
    """One bad sample would cost the whole step, or its id would stay unknown."""
    policy = Bigrams(0)
    decisions, rollouts, advantage = step_of(policy)
    advantage[GROUP] = float("inf")  # the first completion of prompt 1
    totals = updater_of(policy, parts=PROMPTS, lr=0.1).step(decisions, rollouts, advantage, (0, 0))
    assert (totals.updates, totals.skipped, totals.skipped_ids) == (PROMPTS - 1, 1, ["prompt/1"])
    assert torch.equal(policy.prompt[1], Bigrams(0).prompt[1])
    assert all(not torch.equal(policy.prompt[i], Bigrams(0).prompt[i]) for i in range(PROMPTS) if i != 1)
    assert all(torch.isfinite(p).all() for p in policy.parameters())


# -- groups without a difference -------------------------------------------------------------------------------------


class Watched(Bigrams):
    """The policy, telling which prompts it evaluated."""

    def __init__(self, seed: int):
        super().__init__(seed)
        self.seen: list[list[int]] = []

    def evaluate(self, decisions: Sequence[Decision]) -> Evaluation:
        self.seen.append([decision.inputs[0] for decision in decisions])
        return super().evaluate(decisions)


class Separate(Watched):
    """The same with a parameter per prompt, which nothing but its own group reaches."""

    def __init__(self, seed: int):
        super().__init__(seed)
        rows = self.prompt.detach().clone()
        del self.prompt
        self.prompt = nn.ParameterList(map(nn.Parameter, rows))


def quiet(advantage: Tensor, prompts: set[int]) -> Tensor:
    """The advantages with some prompts' groups at 0."""
    zero = torch.tensor([row // GROUP in prompts for row in range(PROMPTS * GROUP)])
    return advantage.masked_fill(zero[:, None], 0.0)


def trained(skip: bool, zero: list[set[int]], terms=TERMS[:1], made=Watched, **options) -> tuple[Watched, list]:
    """A policy after one AdamW step of the loop for each set of prompts without advantages, and what it reported."""
    policy, totals = made(0), []
    decisions, rollouts, advantage = step_of(Bigrams(0))
    updater = updater_of(policy, terms=terms, skip=skip, **options)
    updater.optimizer = torch.optim.AdamW(policy.parameters(), lr=0.05, weight_decay=0.1)
    for number, prompts in enumerate(zero):
        totals.append(updater.step(decisions, rollouts, quiet(advantage, prompts), (0, number)))
    return policy, totals


SOME = [{1, 2}, {0, 4, 5}, {3}]
ALL = set(range(PROMPTS))


@pytest.mark.parametrize("zero", [SOME, [{1}, ALL, {0, 2}], [ALL, {1, 3}, ALL]])
@pytest.mark.parametrize(
    "options",
    [{"made": Separate}, {"micro": 1}, {"parts": 3, "micro": 2, "epochs": 2}, {"weigh": sequence_mean}],
)
def test_leaving_out_groups_without_advantages_changes_no_weight(zero, options):
    """The fast path would train another policy: weights of the rest, momentum or weight decay would differ."""
    (plain, told), (fast, said) = (trained(skip, zero, **options) for skip in (False, True))
    starts = options.get("made", Watched)(0).parameters()
    for one, other, start in zip(plain.parameters(), fast.parameters(), starts, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-6, atol=1e-9)
        assert (one - start).abs().max() > 1e-3
    for one, other in zip(told, said, strict=True):
        assert (one.updates, one.skipped) == (other.updates, other.skipped)
        assert other.loss == pytest.approx(one.loss, rel=1e-5, abs=1e-7)
        assert other.grad_norm == pytest.approx(one.grad_norm, rel=1e-5, abs=1e-7)


@pytest.mark.parametrize("micro", [None, 1, 2])
def test_groups_without_advantages_are_not_forwarded(micro):
    """The step would cost what it cost before, or train its groups in another order."""
    policy, totals = trained(True, SOME, micro=micro)
    size = micro or PROMPTS
    kept = [[p for p in range(PROMPTS) if p not in prompts] for prompts in SOME]
    wanted = [step[i : i + size] for step in kept for i in range(0, len(step), size)]
    assert policy.seen == [[p for p in part for _ in range(GROUP)] for part in wanted]
    assert [total.left_out for total in totals] == pytest.approx([2 / 6, 3 / 6, 1 / 6])


def test_a_step_without_any_advantage_forwards_nothing():
    """When all prompts are solved or none is, a step would cost a whole update for a gradient of 0."""
    policy, (total,) = trained(True, [ALL], parts=2)
    assert policy.seen == []
    assert (total.updates, total.skipped, total.left_out, total.loss, total.grad_norm) == (2, 0, 1.0, 0.0, 0.0)
    assert (total.clip_fraction, total.gap) == (0.0, 0.0)


@pytest.mark.parametrize("terms", [TERMS, [ppo_clip, kl], [reg_grpo], [lambda now, batch: -now.logprobs]])
def test_all_is_forwarded_where_a_term_does_not_vanish(terms):
    """Groups that everybody solves would be held by no KL to the reference, and a term of a user's own be ignored."""
    policy, totals = trained(True, SOME, terms=terms, weigh=sequence_mean)
    assert [len(prompts) for prompts in policy.seen] == [PROMPTS * GROUP] * 3
    assert [total.left_out for total in totals] == [0.0] * 3


def test_without_the_switch_all_is_forwarded():
    """Nobody could compare with the plain path."""
    policy, totals = trained(False, SOME)
    assert [len(prompts) for prompts in policy.seen] == [PROMPTS * GROUP] * 3
    assert [total.left_out for total in totals] == [0.0] * 3


def test_one_advantage_is_enough_to_keep_a_group():
    """The only completion that differs would be lost; what was not carried out is no reason to keep its group."""
    policy = Watched(0)
    decisions, rollouts, advantage = step_of(Bigrams(0))
    advantage, mask = torch.zeros_like(advantage), rollouts.mask.clone()
    advantage[GROUP, 0] = -0.5  # one token of a completion of prompt 1
    mask[3 * GROUP] = False
    advantage[3 * GROUP] = float("nan")
    updater = updater_of(policy, terms=[likelihood], skip=True)
    totals = updater.step(decisions, replace(rollouts, mask=mask), advantage, (0, 0))
    assert policy.seen == [[1] * GROUP] and totals.skipped == 0


def test_statistics_are_of_what_was_evaluated():
    """Left-out rows would count as rows that never clip and never differ, and hide a gap between the engines."""
    decisions, rollouts, advantage = step_of(Bigrams(0))
    zero = set(range(2, PROMPTS))
    gap = Bigrams(0).evaluate(decisions).logprobs.detach() - rollouts.logprobs
    outside = ((gap.exp() < 0.8) | (gap.exp() > 1.3)).float()
    kept = rollouts.mask.clone()
    kept[2 * GROUP :] = False
    _, (total,) = trained(True, [zero])
    assert total.gap == pytest.approx(float(gap[kept].abs().mean()), rel=1e-4)
    assert total.clip_fraction == pytest.approx(float(outside[kept].mean()), abs=1e-6) and total.clip_fraction > 0
    still = updater_of(Bigrams(0), terms=TERMS[:1], lr=0.0, parts=PROMPTS, skip=True)  # one prompt an update
    split = still.step(decisions, rollouts, quiet(advantage, zero), (0, 0))
    each = [float(outside[rows][rollouts.mask[rows]].mean()) for rows in torch.arange(2 * GROUP).split(GROUP)]
    assert split.updates == PROMPTS
    assert split.clip_fraction == pytest.approx(sum(each) / 2, abs=1e-6)


def test_a_broken_update_names_no_sample_that_was_left_out():
    """A user would look for the broken sample among those that were never forwarded."""
    policy = Watched(0)
    decisions, rollouts, advantage = step_of(Bigrams(0))
    advantage = quiet(advantage, {0, 2, 3, 5})
    advantage[GROUP] = float("inf")
    totals = updater_of(policy, terms=[ppo_clip], skip=True).step(decisions, rollouts, advantage, (0, 0))
    assert (totals.updates, totals.skipped, totals.skipped_ids) == (0, 1, ["prompt/1", "prompt/4"])


# -- a stop by divergence --------------------------------------------------------------------------------------------


def test_epochs_end_where_the_policy_has_gone_far_enough():
    """Many passes over few rollouts would carry the policy to where they say nothing of it."""
    episodes = episodes_of(Bigrams(0))
    decisions, rollouts = decisions_of(episodes), columns(episodes)
    advantage, terms = estimate(rollouts, [grpo]), [functools.partial(ppo_clip, low=0.2, high=0.2)]

    def run(epochs: int, **options) -> tuple[Bigrams, list]:
        policy = Bigrams(0)
        updater = updater_of(policy, terms=terms, parts=2, epochs=epochs, lr=2.0, **options)
        return policy, updater.step(decisions, rollouts, advantage, (0, 0))

    of = {n: run(n)[1] for n in (1, 2, 3, 6)}
    assert of[1].kl < of[2].kl < of[3].kl and of[6].epochs == 6
    policy, totals = run(6, target_kl=(of[2].kl + of[3].kl) / 2)
    assert (totals.epochs, totals.updates, totals.kl) == (3, 6, of[3].kl)
    assert all(torch.equal(a, b) for a, b in zip(policy.parameters(), run(3)[0].parameters(), strict=True))
    assert run(6, target_kl=1e9)[1].epochs == 6


@pytest.mark.parametrize("micro", [None, 1])
def test_the_kl_of_an_epoch_is_k3_over_its_units(micro):
    """By hand: mean of r - 1 - log r, r = p_now / p_old. The run would stop too early or never, or by its memory."""
    policy = Bigrams(0)
    decisions, rollouts, advantage = step_of(policy)
    moved = (policy.evaluate(decisions).logprobs - rollouts.logprobs).detach()[rollouts.mask].double()
    totals = updater_of(policy, parts=1, epochs=1, micro=micro).step(decisions, rollouts, advantage, (0, 0))
    assert totals.kl == pytest.approx(float((moved.exp() - 1 - moved).mean()), rel=1e-4) and totals.kl > 1e-3
