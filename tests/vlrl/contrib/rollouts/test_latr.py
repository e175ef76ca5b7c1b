"""Look-ahead trees: where completions branch, which branches stay, and that what is trained has its true law."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vlrl import registry
from vlrl.batch import columns
from vlrl.contrib.rollouts.tree_search import (
    Latr,
    Leaf,
    TokenBranch,
    alike,
    branches,
    scaled,
    share_at,
    suffix_match,
    torn,
)
from vlrl.policies.loading import load
from vlrl.policies.vlm import Reply
from vlrl.recipe_checks import load_config
from vlrl.rollout import collect
from vlrl.types import Decision, UserError

LONGEST = 16
WORDS = st.lists(st.integers(0, 2), min_size=1, max_size=6)
ALWAYS = {"least": 0.0, "gap": 1.0, "edit": None}  # every place branches, and nothing is pruned


@pytest.fixture(scope="module")
def policy():
    config = load_config("configs/gui_grounding.yaml", [f"policy.max_tokens={LONGEST}"])
    return load(config.policy, seed=0)


@pytest.fixture(scope="module")
def task():
    return registry.make_task(load_config("configs/gui_grounding.yaml"))


def written(tokens) -> Decision:
    values = -torch.arange(1.0, len(tokens) + 1)
    return Decision("", values, -values, False, inputs=Reply(None, tuple(tokens)))


# -- the rules -------------------------------------------------------------------------------------------------------


def test_places_branch_as_in_the_worked_example(golden):
    """Trees would branch where the policy is sure, or nowhere: `latr` branches where it is torn between two tokens."""
    inputs, outputs = golden("latr_tree")
    first, second = (torch.tensor(inputs[name]) for name in ("first", "second"))
    assert torn(first, second, inputs["least"], inputs["gap"]).tolist() == outputs["branch"]


def test_a_branch_takes_the_likeliest_token_that_was_not_taken():
    """A branch would repeat its parent, or follow an unlikely token, end at once or begin in what is not its own."""
    tokens = torch.tensor([[5, 6], [5, 6], [5, 6], [9, 6], [5, 6]])
    logprobs = torch.tensor([[0.45, 0.4]] * 4 + [[0.9, 0.1]]).log()
    leaf = Leaf(written([5, 6, 7, 6, 5]), born=1)
    found = list(branches(leaf, tokens, logprobs, (9,), 0.15, 0.25))
    assert [(b.at, b.token) for b in found] == [(1, 5), (2, 5)]  # 0 is its parent's, 3 would stop, 4 is sure
    assert [b.tokens for b in found] == [(5, 5), (5, 6, 5)]
    assert found[0].logprob == pytest.approx(float(torch.tensor(0.45).log()))


@given(st.integers(1, 6).flatmap(lambda n: st.tuples(*[st.lists(st.integers(0, 2), min_size=n, max_size=n)] * 2)))
def test_texts_are_alike_below_a_share_of_edits(texts):
    """Branches would be pruned by another measure than the one that is told."""

    def plain(x, y):
        if not x or not y:
            return len(x) + len(y)
        return min(plain(x[1:], y) + 1, plain(x, y[1:]) + 1, plain(x[1:], y[1:]) + (x[0] != y[0]))

    share = plain(*texts) / len(texts[0])
    assert alike(*texts, share + 1e-9, None) and not alike(*texts, share, None)


def test_the_suffix_match_finds_shifted_ends(golden):
    """A branch that says the same one word later would pass for another one."""
    inputs, outputs = golden("latr_tree")
    assert suffix_match(inputs["a"], inputs["b"]) == outputs["suffix_match"]
    share = outputs["edit_distance"] / len(inputs["a"])
    assert alike(inputs["a"], inputs["b"], share + 1e-9, None) and not alike(inputs["a"], inputs["b"], share, None)
    assert suffix_match([1, 2], [3, 4]) == 0 and suffix_match([1, 2], [1, 2]) == 1


def test_ages_shrink_for_short_answers_and_shares_fall_with_the_steps(golden):
    """Short answers would end before they are compared; trees would stay where exploring is over."""
    inputs, outputs = golden("latr_tree")
    assert [list(scaled(inputs["ages"], longest)) for longest in inputs["longest"]] == outputs["ages"]
    shares = {int(step): share for step, share in inputs["share"].items()}
    assert [share_at(shares, step) for step in inputs["steps"]] == outputs["share"]


def test_branches_like_their_parents_are_pruned(policy, task):
    """A group would be one answer in several spellings; or a digit, which is the whole answer, would not count."""
    strategy = Latr(policy, task, 0, ages=[50], edit=0.4)
    assert strategy.ages == (4,)
    encode = policy.codec.tokenizer.encode
    word, digit = encode("x", add_special_tokens=False)[0], encode("7", add_special_tokens=False)[0]
    rest = [11, 12, 13, 14]
    for first, then, same in [(word, rest, True), (word, [21, 22, 13, 14], False), (digit, rest, False)]:
        parent = written([3, first, *rest])
        branch = TokenBranch(parent, 1, 99, -1.0)
        assert strategy._alike(policy, branch, written([3, 99, *then])) is same
    short = TokenBranch(written([3, word, 11]), 1, 99, -1.0)
    assert not strategy._alike(policy, short, written([3, 99, 11, 12, 13]))  # its parent ended before


# -- groups ----------------------------------------------------------------------------------------------------------


def test_the_likeliest_tokens_are_those_that_greedy_writes(policy, task):
    """Trees would branch by another law than the one that is trained."""
    episodes = collect(policy, task, [task.samples("train")[i] for i in range(3)], 1, greedy=True)
    decisions = [e.turns[0].decision for e in episodes]
    for decision, (tokens, logprobs) in zip(decisions, policy.likeliest(decisions, 3), strict=True):
        assert tuple(tokens[:, 0].tolist()) == decision.inputs.tokens
        torch.testing.assert_close(logprobs[:, 0], decision.logprobs, rtol=0, atol=1e-4)
        assert (logprobs.diff(dim=1) <= 0).all()


def test_every_token_of_a_tree_is_trained_with_its_true_law(policy, task):
    """Ratios would be wrong from the first update on, or the tokens that make the difference would not be learned."""
    samples = [task.samples("train")[i] for i in range(3)]
    strategy = Latr(policy, task, 0, **ALWAYS)
    episodes = strategy(policy, task, samples, 5, 0)
    assert [e.group for e in episodes] == [g for g in range(3) for _ in range(5)]
    assert [e.sample.id for e in episodes] == [s.id for s in samples for _ in range(5)]
    assert strategy.metrics["latr/leaves"] == 1.0 and strategy.metrics["latr/branches"] == 4.0
    decisions, rollouts = [e.turns[0].decision for e in episodes], columns(episodes)
    with torch.no_grad():
        now = policy.evaluate(decisions)
    assert torch.equal(now.mask, rollouts.mask)  # nothing is forced
    torch.testing.assert_close(now.logprobs, rollouts.logprobs, rtol=0, atol=1e-4)
    torch.testing.assert_close(now.entropy, rollouts.entropy, rtol=0, atol=1e-3)
    for group in range(3):
        texts = [d.inputs.tokens for d in decisions[5 * group : 5 * group + 5]]
        assert len(set(texts)) == 5 and max(map(len, texts)) <= LONGEST
    assert all(e.completion == policy.codec.decode(d.inputs.tokens) for e, d in zip(episodes, decisions, strict=True))
    assert all(e.score is not None for e in episodes)


def test_the_share_of_trees_falls_and_plain_completions_fill_up(policy, task):
    """A group would be too small for its advantage, or exploration would never end."""
    samples = [task.samples("train")[i] for i in range(2)]
    strategy = Latr(policy, task, 0, **ALWAYS, share={0: 1.0, 10: 0.5, 20: 0.0})
    for step, leaves in [(0, 1.0), (10, 0.5), (20, 0.0)]:
        assert len(strategy(policy, task, samples, 4, step)) == 8
        assert strategy.metrics["latr/leaves"] == leaves
    never = Latr(policy, task, 0, least=1.0)
    assert len(never(policy, task, samples, 4, 0)) == 8 and never.metrics["latr/leaves"] == 0.25  # trunks alone


def test_a_policy_without_tokens_is_refused(task):
    """A robot's run would fail in its first step instead of before it."""
    control = load(load_config("configs/manipulation.yaml").policy, seed=0)
    with pytest.raises(UserError, match="use plain"):
        Latr(control, task, 0)


def test_the_bare_name_is_enough():
    """A configuration without options would end in a traceback."""
    assert load_config("configs/gui_grounding.yaml", ["rollout_strategy=latr"]).rollout_strategy.name == "latr"
