"""Laws that hold for every plug-in of a kind; new ones are found by themselves."""

from __future__ import annotations

import importlib.util
import inspect
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vlrl import methods, registry
from vlrl.config import Component
from vlrl.methods import RecipePart

_spec = importlib.util.spec_from_file_location("laws", Path(__file__).with_name("laws.py"))
laws = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(laws)

# kind.name -> law -> why it does not hold. docs/methods.md is made of this, so it is plain data.
EXEMPT = {
    "losses.kl": {"ratio_one": "pulls to the reference, whatever the advantage"},
    "losses.entropy": {"ratio_one": "pays for openness, whatever the advantage"},
    "losses.reg_grpo": {"ratio_one": "the policy gradient times 2 scale / eps (tests/vlrl/test_losses.py)"},
    "losses.mirror_descent": {
        "ratio_one": "the policy gradient of whole completions: longer ones count more (tests/vlrl/test_kimi.py)"
    },
    "losses.completion_clip": {
        "ratio_one": "the policy gradient of whole completions: longer ones count more (test_recipe_gradients.py)"
    },
    "losses.direct_advantage": {
        "ratio_one": "the policy gradient of whole decisions, and a pull to the reference (test_group_losses.py)"
    },
    "losses.long2short_dpo": {"ratio_one": "prefers short right completions; the size of advantages does not count"},
    "losses.step_apo": {"ratio_one": "prefers steps of A > 0 to those of A < 0; not linear in their advantages"},
    "losses.luspo": {"ratio_one": "the policy gradient times each completion's length"},
    "losses.disco": {"ratio_one": "pushes right completions above wrong ones; the size of advantages does not count"},
    "losses.gepo": {"ratio_one": "pushes right completions above wrong ones; the size of advantages does not count"},
    "losses.sft": {"ratio_one": "imitates demonstrations, whatever the advantage"},
    "losses.generalized_jsd": {"ratio_one": "pulls to the teacher, whatever the advantage"},
    "losses.distill": {"ratio_one": "pulls to the teacher, whatever the advantage"},
    "losses.a_lol": {"ratio_one": "imitates what has a positive advantage, weighted by the ratio to the reference"},
    "losses.copg": {
        "ratio_one": "the policy gradient where the policy is the reference (tests/vlrl/test_mixing_losses.py)"
    },
    "losses.trust_region": {
        "ratio_one": "pulls to the policy that sampled, whatever the advantage",
        "micro": "needs one_forward: its KL is that of the optimizer step",
    },
    "losses.clip_cov": {
        "permutation": "drops random tokens, drawn by their place",
        "micro": "needs one_forward: covariances are those of the optimizer step",
        "ratio_one": "drops the tokens of high covariance",
    },
    "losses.kl_cov": {"micro": "needs one_forward: covariances are those of the optimizer step"},
    "losses.dhpo_entropy": {
        "micro": "needs one_forward: the largest entropy is that of the optimizer step",
        "ratio_one": "tokens of high entropy count with their own ratio, others with their completion's",
    },
}
# losses that are a multiple of the policy gradient there
MULTIPLES = {"rover": 2.0}
# estimators whose advantages sum to 0 over every group
CENTRED = ("grpo", "leave_one_out", "max_rl")
# what only scales or bounds an advantage, and what only adds to it less than it is
KEEPS_SIGNS = ("entropy_shaping", "weighted", "middling", "top_entropy")
# shapings after which no wrong completion of a group is paid more than a right one, for rewards of 0 and 1
RIGHT_FIRST = ("laser", "laser_d", "shortest_bonus", "noise_backward", "noise_forward", "g_ra", "kimi_length")

SEEDS = st.integers(0, 9999)
FEW = settings(max_examples=4, deadline=None)


def all_of(kind: str, law: str) -> list[str]:
    """The plug-ins of a kind to which a law applies."""
    return [name for name in registry.names(kind) if law not in EXEMPT.get(f"{kind}.{name}", {})]


def test_exemptions_name_plugins_and_give_reasons():
    """A renamed method would keep an exemption that nobody sees, or a law be left out for no reason."""
    for name, reasons in EXEMPT.items():
        kind, plain = name.split(".")
        assert plain in registry.names(kind)
        assert all(len(reason) > 10 for reason in reasons.values())


def test_required_options_are_known_here():
    """A new method would be left out of the laws because nobody said how to make it."""
    for kind in laws.KINDS:
        for name, target in registry.names(kind).items():
            required = [o for o, (_, default) in registry.options_of(target).items() if default is ...]
            assert set(required) <= set(laws.OPTIONS.get(name, {})), (
                f"tests/vlrl/laws.py: OPTIONS of {name}: {required}"
            )


# -- estimators ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("turns", [1, 2])
@pytest.mark.parametrize("name", all_of("advantages", "permutation"))
@FEW
@given(seed=SEEDS)
def test_the_order_of_episodes_only_orders_their_advantages(name, turns, seed):
    """A completion's gradient would hang on where in the batch it happened to stand."""
    rollouts = laws.step(seed, turns=turns)
    order = torch.randperm(len(rollouts.reward), generator=torch.Generator().manual_seed(seed))
    moved, rows = laws.chosen(rollouts, order)
    there, here = laws.advantage_of(name, moved), laws.advantage_of(name, rollouts)[rows]
    torch.testing.assert_close(there, here, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", all_of("advantages", "mask"))
@FEW
@given(seed=SEEDS, garbage=st.sampled_from([-1e3, 5.0, 1e3]))
def test_padding_gives_no_advantage(name, seed, garbage):
    """What stands behind a completion's end would train the policy."""
    rollouts = laws.step(seed)
    dirty = laws.advantage_of(name, laws.soiled(rollouts, garbage))
    assert torch.equal(dirty, laws.advantage_of(name, rollouts))


@pytest.mark.parametrize("name", all_of("advantages", "finite"))
@pytest.mark.parametrize("value", [0.0, 1.0, 0.1, None])
@pytest.mark.parametrize(("groups", "size"), [(3, 4), (4, 1), (1, 1), (1, 4)])
def test_degenerate_groups_give_numbers(name, value, groups, size):
    """One prompt that all completions solve would make the update NaN."""
    rollouts = laws.step(7, groups=groups, size=size)
    if value is not None:
        rollouts = laws.rewarded(rollouts, torch.full_like(rollouts.reward, value))
    assert torch.isfinite(laws.advantage_of(name, rollouts)).all()


@pytest.mark.parametrize("name", all_of("advantages", "float64"))
def test_estimators_keep_the_precision(name):
    """Worked examples could not be checked to six digits."""
    assert laws.advantage_of(name, laws.step(1)).dtype == torch.float64


@pytest.mark.parametrize("name", CENTRED)
@FEW
@given(seed=SEEDS)
def test_centred_advantages_sum_to_zero_over_a_group(name, seed):
    """A group would be pushed up or down as a whole."""
    rollouts = laws.step(seed)
    each = laws.made("advantages", name)(rollouts, rollouts.reward)
    sums = each.new_zeros(3).index_add(0, rollouts.group, each)
    torch.testing.assert_close(sums, torch.zeros_like(sums), rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", KEEPS_SIGNS)
@FEW
@given(seed=SEEDS)
def test_shaped_advantages_keep_their_signs(name, seed):
    """What was wrong would be learned as right because the policy was unsure of it."""
    rollouts = laws.step(seed)
    before = torch.randn(len(rollouts.mask), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    after = laws.advantage_of(name, rollouts, before)
    assert (after * before[:, None] >= 0).all()


# -- losses ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", all_of("losses", "permutation"))
@FEW
@given(seed=SEEDS)
def test_the_order_of_rows_only_orders_their_losses(name, seed):
    """The same minibatch would give another gradient."""
    now, batch = laws.micro(seed)
    order = torch.randperm(len(batch.mask), generator=torch.Generator().manual_seed(seed))
    loss = laws.made("losses", name)
    torch.testing.assert_close(loss(*laws.some(now, batch, order)), loss(now, batch)[order])


@pytest.mark.parametrize("name", all_of("losses", "mask"))
@FEW
@given(seed=SEEDS, garbage=st.sampled_from([-1e3, 5.0, 1e3]))
def test_padding_has_no_gradient(name, seed, garbage):
    """What stands behind a completion's end would train the policy."""
    now, batch = laws.micro(seed)
    dirty = {c: getattr(batch, c).masked_fill(~batch.mask, garbage) for c in ("advantage", "old_logprobs", "reference")}
    loss, weights = laws.made("losses", name), laws.weights(name, batch.mask)
    clean = laws.gradient((loss(now, batch) * weights).sum(), now)
    soiled = laws.gradient((loss(now, replace(batch, **dirty)) * weights).sum(), now)
    assert torch.equal(clean, soiled) and (clean[~batch.mask] == 0).all()


@pytest.mark.parametrize("name", all_of("losses", "finite"))
@pytest.mark.parametrize("spread", [0.0, 0.4])
@pytest.mark.parametrize("advantage", [0.0, 1.0, None])
@pytest.mark.parametrize(("groups", "size"), [(3, 4), (4, 1), (1, 1)])
def test_degenerate_batches_have_finite_gradients(name, spread, advantage, groups, size):
    """The first update of a step, where every ratio is 1, or a group without a difference would be skipped as NaN."""
    now, batch = laws.micro(3, groups=groups, size=size, spread=spread)
    if advantage is not None:
        batch = replace(batch, advantage=advantage * batch.mask.double())
    loss = laws.made("losses", name)(now, batch)
    assert torch.isfinite(loss[batch.mask]).all() and loss.dtype == torch.float64
    assert torch.isfinite(laws.gradient((loss * laws.weights(name, batch.mask)).sum(), now)).all()


@pytest.mark.parametrize("name", all_of("losses", "micro"))
@FEW
@given(seed=SEEDS)
def test_splitting_into_micro_batches_does_not_change_the_gradient(name, seed):
    """What is trained would hang on how much memory the machine has."""
    now, batch = laws.micro(seed)
    loss, weights = laws.made("losses", name), laws.weights(name, batch.mask)
    whole = laws.gradient((loss(now, batch) * weights).sum(), now)
    parts = [(batch.group == g).nonzero().flatten() for g in batch.group.unique()]
    split = sum((loss(*laws.some(now, batch, rows)) * weights[rows]).sum() for rows in parts)
    assert (laws.gradient(split, now) - whole).abs().max() < 1e-6


@pytest.mark.parametrize("name", all_of("losses", "ratio_one"))
@FEW
@given(seed=SEEDS)
def test_at_ratio_one_a_loss_is_the_plain_policy_gradient(name, seed):
    """The first update of each step must be REINFORCE with the given advantage, whatever the ratio is clipped to."""
    now, batch = laws.micro(seed, spread=0.0)
    weights = laws.weights(name, batch.mask)
    own = laws.gradient((laws.made("losses", name)(now, batch) * weights).sum(), now)
    plain = laws.gradient((-batch.advantage * now.logprobs * weights).sum(), now)
    torch.testing.assert_close(own, MULTIPLES.get(name, 1.0) * plain, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("name", registry.names("losses"))
def test_what_needs_the_law_that_sampled_is_known(name):
    """A replayed batch would be trained on with ratios of 1 that mean nothing."""
    now, batch = laws.micro(5)
    loss, other = laws.made("losses", name), replace(batch, old_logprobs=batch.old_logprobs - 0.3 * batch.mask)
    same = torch.equal(loss(now, batch)[batch.mask], loss(now, other)[batch.mask])
    part = RecipePart("losses", Component(name=name), registry.find("losses", name), "losses.0")
    assert same == ("old_logprobs" not in part.reads)


# -- shaping and weighing --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("turns", [1, 2])
@pytest.mark.parametrize("name", all_of("reward_shaping", "permutation"))
@FEW
@given(seed=SEEDS)
def test_the_order_of_episodes_only_orders_their_rewards(name, turns, seed):
    """A completion would be paid for where in the batch it stands."""
    rollouts = laws.step(seed, turns=turns)
    order = torch.randperm(len(rollouts.reward), generator=torch.Generator().manual_seed(seed))
    moved, _ = laws.chosen(rollouts, order)
    there, here = laws.made("reward_shaping", name)(moved), laws.made("reward_shaping", name)(rollouts)[order]
    torch.testing.assert_close(there, here)


@pytest.mark.parametrize("name", all_of("reward_shaping", "mask"))
@FEW
@given(seed=SEEDS, garbage=st.sampled_from([-1e3, 5.0, 1e3]))
def test_padding_is_not_paid(name, seed, garbage):
    """A reward would hang on what stands behind the completion's end."""
    rollouts = laws.step(seed)
    dirty = laws.made("reward_shaping", name)(laws.soiled(rollouts, garbage))
    assert torch.equal(dirty, laws.made("reward_shaping", name)(rollouts))


@pytest.mark.parametrize("name", all_of("reward_shaping", "finite"))
@pytest.mark.parametrize("value", [0.0, 1.0, None])
@pytest.mark.parametrize(("groups", "size"), [(3, 4), (4, 1), (1, 1)])
def test_degenerate_groups_have_rewards(name, value, groups, size):
    """A group that nobody or everybody solves would make the update NaN; the log's reward must stay the task's."""
    rollouts = laws.step(7, groups=groups, size=size)
    if value is not None:
        rollouts = laws.rewarded(rollouts, torch.full_like(rollouts.reward, value))
    before = rollouts.reward.clone()
    shaped = laws.made("reward_shaping", name)(rollouts)
    assert shaped.shape == before.shape and shaped.dtype == torch.float64
    assert torch.isfinite(shaped).all() and torch.equal(rollouts.reward, before)


@pytest.mark.parametrize("name", RIGHT_FIRST)
@FEW
@given(seed=SEEDS)
def test_no_wrong_completion_is_paid_more_than_a_right_one(name, seed):
    """The policy would learn to be short, or long, instead of right."""
    rollouts = laws.step(seed)
    rollouts = replace(rollouts, reward=rollouts.correct)
    shaped, solved = laws.made("reward_shaping", name)(rollouts), rollouts.is_correct
    for g in rollouts.group.unique():
        good, bad = shaped[(rollouts.group == g) & solved], shaped[(rollouts.group == g) & ~solved]
        assert not len(good) or not len(bad) or good.min() > bad.max()


@pytest.mark.parametrize("name", registry.names("loss_aggregation"))
@FEW
@given(seed=SEEDS)
def test_weights_follow_their_rows_and_leave_out_the_padding(name, seed):
    """Padding would count, or a completion more than another because of its place."""
    mask = laws.step(seed).mask.clone()
    mask[2] = False  # nothing of it was carried out
    weigh = laws.made("loss_aggregation", name)
    order = torch.randperm(len(mask), generator=torch.Generator().manual_seed(seed))
    found = weigh(mask)
    torch.testing.assert_close(weigh(mask[order]), found[order])
    assert torch.isfinite(found).all() and (found[~mask] == 0).all() and 0 < float(found.sum()) <= 1 + 1e-6


@pytest.mark.parametrize("kind", laws.KINDS)
def test_every_plugin_says_what_it_is_and_whose(kind):
    """`vlrl list methods` and docs/methods.md would have nothing to say of it."""
    for name, target in registry.names(kind).items():
        about = registry.describe(target)
        assert about["source"] and len(inspect.getdoc(target) or "") > 20, name
        assert set(methods.of(target).needs) <= set(methods.ALTERNATIVES), name
