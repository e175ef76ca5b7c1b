"""The search tree over steps: visits and values add up, PUCT chooses, and what is learned from are the steps alone."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vlrl import registry
from vlrl.batch import columns
from vlrl.config import Config
from vlrl.contrib.rollouts.tree_search import PlanNode, PlanSearch, find_end, undecided
from vlrl.policies.loading import load
from vlrl.policies.vlm import Reply
from vlrl.recipe_checks import check, load_config
from vlrl.types import Decision, Episode, Observation, Sample, Step, Turn, UserError

ROOT = Path(__file__).parents[4]
RECIPE = ROOT / "configs" / "recipes" / "cpl.yaml"
PROMPT = Observation(("?",))
C = 1.5


@pytest.fixture(scope="module")
def config():
    return load_config(RECIPE)


@pytest.fixture(scope="module")
def policy(config):
    return load(config.policy, seed=0)


@pytest.fixture(scope="module")
def task(config):
    return registry.make_task(config)


def episode(tokens) -> Episode:
    """A completion whose n-th token has the log-probability -n / 10."""
    values = -torch.arange(1.0, len(tokens) + 1) / 10
    decision = Decision("", values, -values, False, inputs=Reply(None, tuple(tokens)))
    return Episode(Sample("a", PROMPT), 0, [Turn(PROMPT, decision, Step(PROMPT, terminated=True))])


def walk(node: PlanNode):
    yield node
    for child in node.children:
        yield from walk(child)


# -- the tree --------------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.booleans(), st.booleans()), min_size=1, max_size=40))
def test_visits_and_values_of_a_tree_add_up(completions):
    """A step would be worth what other steps brought, or a state be visited without a completion through it."""
    root, through = PlanNode(), {}
    for token, is_right, ends in completions:
        node = root.select(C)
        if node is None:
            break
        assert not node.children and not node.is_last
        value = 1.0 if is_right else -1.0
        whole = (*node.tokens, token, 9)
        node.expand(episode(whole), len(node.tokens) + 1, ends, value)
        for end in range(len(node.tokens) + 2):  # every state on the way
            through.setdefault(whole[:end], []).append(value)
    nodes = list(walk(root))
    assert {node.tokens for node in nodes} == set(through) and len(nodes) == len(through)
    for node in nodes:
        values = through[node.tokens]
        assert node.visits == len(values) and node.q == pytest.approx(sum(values) / len(values))
        assert all(child.parent is node and child.start == len(node.tokens) for child in node.children)
        behind = sum(child.visits for child in node.children)
        assert behind <= node.visits and (node is not root or behind == node.visits)
        assert node.is_last or node.is_closed == (bool(node.children) and all(c.is_closed for c in node.children))
    for state in root.states():  # siblings share V, so that their advantages differ as their values
        first, *others = [child.q - state.q for child in state.children]
        assert all(first - a == pytest.approx(state.children[0].q - b.q)
                   for a, b in zip(others, state.children[1:], strict=True))  # fmt: skip


def test_the_search_goes_where_value_prior_and_visits_say():
    """By another formula it would repeat the best step for ever, or every step alike."""
    root = PlanNode()
    for token, values in ((1, (1.0, -1.0, 1.0)), (2, (-1.0,)), (3, (1.0,))):
        for value in values:
            root.expand(episode((token, 9)), 1, token == 3, value)
    first, second, third = root.children
    assert (root.visits, root.q) == (5, pytest.approx(0.2))
    assert first.puct(C) == pytest.approx(1 / 3 + 1.5 * math.exp(-0.1) * math.sqrt(5) / 4)
    assert second.puct(C) == pytest.approx(-1 + 1.5 * math.exp(-0.1) * math.sqrt(5) / 2)
    assert third.puct(C) > first.puct(C) > second.puct(C)
    assert root.select(C) is first  # the third has come to its end
    assert root.select(20.0) is second  # exploration outweighs values
    first.expand(episode((1, 4, 9)), 2, True, -1.0)
    assert root.select(C) is second  # nothing is left to try behind the first
    assert first.children[0].prior == pytest.approx(math.exp(-0.2)) and first.children[0].start == 1
    second.expand(episode((2, 4, 9)), 3, True, -1.0)
    assert root.is_closed and root.select(C) is None


def test_undecided_states_have_steps_on_both_sides_of_0():
    """Steps that are all good, or as often right as wrong, would be set against each other."""
    root = PlanNode()
    root.expand(episode((1, 9)), 1, False, 1.0)
    assert undecided(root) == [root]  # else a step of training would have nothing
    (one,) = root.children
    for token, values in ((4, (1.0, 1.0, -1.0)), (5, (-1.0,)), (6, (1.0, -1.0))):
        for value in values:
            one.expand(episode((1, token, 9)), 2, True, value)
    assert root.children[0].q == pytest.approx(1 / 7)
    assert undecided(root) == [one]
    root.expand(episode((2, 9)), 1, True, -1.0)
    assert undecided(root) == [root, one]


def test_steps_end_behind_their_mark(policy):
    """A step would be a token, empty, or the whole answer."""
    tokens = policy.codec.tokens("<think>circle square</think>\n<answer>2</answer>")
    mark, steps, begin = re.compile(" |</think>"), [], 0
    while begin < len(tokens):
        end = find_end(policy.codec, tokens, begin, mark)
        steps.append(policy.codec.decode(tokens[begin:end]))
        begin = end
    assert [step.strip() for step in steps] == ["<think>circle", "square</think>", "<answer>2</answer>"]
    assert "".join(steps) == policy.codec.decode(tokens)
    assert find_end(policy.codec, tokens, 0, re.compile("nowhere")) == len(tokens)


# -- groups ----------------------------------------------------------------------------------------------------------


def test_every_step_is_trained_by_its_own_tokens_with_their_true_law(policy, task):
    """The steps before and behind would be learned besides, or ratios be wrong from the first update on."""
    samples = [task.samples("train")[i] for i in range(3)]
    strategy = PlanSearch(policy, task, 0, mark="[a-z] ?", width=2, first=4, depth=3)
    episodes = strategy(policy, task, samples, 9, 0)
    assert 12 <= strategy.played <= 27 and strategy.metrics["plan_search/completions"] == strategy.played / 3
    rollouts, decisions = columns(episodes), [e.turns[0].decision for e in episodes]
    with torch.no_grad():
        now = policy.evaluate(decisions)
    assert rollouts.mask.any(1).all()
    torch.testing.assert_close(now.logprobs[rollouts.mask], rollouts.logprobs[rollouts.mask], rtol=0, atol=1e-4)
    groups: dict[int, list[int]] = {}
    for i, each in enumerate(episodes):
        groups.setdefault(each.group, []).append(i)
    assert sorted(groups) == list(range(len(groups))) and len(groups) >= 3
    for rows in groups.values():
        steps = set()
        for i in rows:
            places = rollouts.mask[i].nonzero()[:, 0].tolist()
            begin, end = places[0], places[-1] + 1
            assert rollouts.mask[i, begin:end].all()
            steps.add((decisions[i].inputs.tokens[:begin], decisions[i].inputs.tokens[:end]))
        assert len({before for before, _ in steps}) == 1 and len(steps) == len(rows)  # siblings, all different
    for each, decision in zip(episodes, decisions, strict=True):
        assert each.completion == policy.codec.decode(decision.inputs.tokens) and -1 <= each.reward <= 1
        assert len(decision.inputs.tokens) <= policy.max_tokens


def test_the_recipe_learns_from_pairs_from_the_command_line(train, tmp_path):
    """What the search finds would not reach the loss."""
    small = ["train.steps=2", "train.prompts_per_step=2", "train.group_size=12", "eval.num_samples=2",
             "task.pool=4", "task.held_out=2", "log.trackers=[]", "policy.max_tokens=20"]  # fmt: skip
    code = train(tmp_path, str(RECIPE), f"out={tmp_path / 'run'}", *small)
    assert code == 0, (tmp_path / "err").read_text()
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    steps = [row for row in rows if "plan_search/gap" in row]
    assert [row["step"] for row in steps] == [1, 2] and all(0 < row["played"] <= 24 for row in steps)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"rollout_strategy": {"name": "plan_search", "mark": "("}}, "rollout_strategy (plan_search).mark: no regular"),
        ({"task": "manipulation", "rollout_strategy": {"name": "plan_search"}}, "plan_search writes one answer"),
        ({"rollout_strategy": {"name": "plan_search"}, "train": {"group_size": 1}}, "needs several completions"),
    ],
)
def test_what_cannot_be_searched_is_refused_when_it_is_read(change, named):
    """A run would fail at its first step, or search the turns of a robot for words."""
    values = {"task": "counting", "out": "runs/x", "losses": ["ppo_clip"], "train": {"group_size": 4}} | change
    with pytest.raises(UserError, match=re.escape(named)):
        check(Config.model_validate(values), "x.yaml")
