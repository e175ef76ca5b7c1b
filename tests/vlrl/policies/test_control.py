"""Small robot policies: what they say of their own actions, and what is kept of them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from vlrl.config import PolicySection
from vlrl.policies import loading
from vlrl.policies.discrete import ControlPolicy, DiscreteShape, Network
from vlrl.types import Episode, Observation, Sample, UserError

SHAPE = DiscreteShape(3, ("vx", "grip"), (-0.4, 0.0), (0.4, 0.04), chunk=4, bins=5, hidden=16, layers=1)
SAMPLE = Sample("a", Observation(("Go.",)))


def policy(shape: DiscreteShape = SHAPE, seed: int = 0, **options) -> ControlPolicy:
    torch.manual_seed(seed)
    made = ControlPolicy(Network(shape), seed=seed, **options)
    torch.nn.init.normal_(made.model.head.weight, std=1.0)  # a law that is far from uniform
    return made


def shown(count: int, seed: int = 0) -> list[Observation]:
    states = np.random.default_rng(seed).normal(size=(count, 3)).astype(np.float32)
    return [Observation(("Go.",), state) for state in states]


def act(made: ControlPolicy, observations, **options):
    return made.act([Episode(SAMPLE, 0) for _ in observations], observations, **options)


@pytest.mark.parametrize(("level", "units"), [("token", 8), ("action", 4), ("chunk", 1)])
def test_sampled_and_trained_laws_agree(level, units):
    """A ratio that is not 1 before the first update would be learned from as if the policy had changed."""
    made = policy(level=level, temperature=1.7)
    decisions = act(made, shown(6))
    now = made.evaluate(decisions)
    assert now.logprobs.shape == (6, units) and now.mask.all()
    assert torch.allclose(torch.stack([d.logprobs for d in decisions]), now.logprobs, atol=1e-6)
    assert torch.allclose(torch.stack([d.entropy for d in decisions]), now.entropy, atol=1e-6)


def test_levels_are_sums_of_one_law():
    """Another level would be another policy, not another way to clip and weigh."""
    decisions = act(policy(), shown(3))
    of = {level: policy(level=level).evaluate(decisions).logprobs for level in ("token", "action", "chunk")}
    assert torch.allclose(of["token"].view(3, 4, 2).sum(2), of["action"], atol=1e-5)
    assert torch.allclose(of["action"].sum(1, keepdim=True), of["chunk"], atol=1e-5)


def test_gradients_are_those_of_the_plain_formula():
    """What is trained would not be the likelihood of what was done."""
    made = policy(temperature=0.8)
    decisions = act(made, shown(5))
    made.evaluate(decisions).logprobs.sum().backward()
    own = {name: p.grad.clone() for name, p in made.model.named_parameters()}
    made.model.zero_grad()
    for decision in decisions:
        logits = made.model(decision.inputs.state[None], [])[0]
        for tick, control in enumerate(decision.inputs.codes):
            for number, code in enumerate(control):
                (-torch.nn.functional.cross_entropy(logits[tick, number] / 0.8, code)).backward(retain_graph=True)
    for name, parameter in made.model.named_parameters():
        assert torch.allclose(own[name], parameter.grad, atol=1e-4), name


def test_greedy_is_the_likeliest_and_needs_no_luck():
    """Two evaluations of one policy would differ."""
    made, observations = policy(), shown(4)
    first, second = act(made, observations, greedy=True), act(made, observations, greedy=True)
    assert all((a.action == b.action).all() for a, b in zip(first, second, strict=True))
    sampled = [act(made, observations) for _ in range(20)]
    assert all(first[i].logprobs.sum() >= d[i].logprobs.sum() - 1e-6 for d in sampled for i in range(4))


@given(st.lists(st.floats(-2, 2, width=32), min_size=8, max_size=8))
def test_an_action_is_said_by_the_nearest_values(numbers):
    """Cloning would teach another action than was demonstrated."""
    made, given_ = policy(), np.array(numbers, np.float32).reshape(4, 2)
    decision = made.decide(shown(1)[0], given_)
    low, high = np.array(SHAPE.low), np.array(SHAPE.high)
    within = given_.clip(low, high)
    assert (np.abs(decision.action - within) <= (high - low) / (2 * (SHAPE.bins - 1)) + 1e-6).all()
    again = made.decide(shown(1)[0], decision.action)
    assert (again.action == decision.action).all()


def test_actions_are_within_the_limits_and_reach_them():
    """A gripper that cannot be closed whole would drop things."""
    made = policy()
    actions = np.stack([d.action for d in act(made, shown(200))])
    assert actions.dtype == np.float32 and actions.shape == (200, 4, 2)
    assert np.allclose(actions.min((0, 1)), SHAPE.low) and np.allclose(actions.max((0, 1)), SHAPE.high)


def test_a_policy_is_saved_whole(tmp_path):
    """A run that is resumed, or a policy that is evaluated later, would be another one."""
    made = policy()
    made.model.mean.fill_(0.3)
    made.save(tmp_path / "own")
    again = loading.load(PolicySection(model=str(tmp_path / "own"), temperature=1.0), seed=5)
    assert again.shape == SHAPE
    observations = shown(5)
    for a, b in zip(act(made, observations, greedy=True), act(again, observations, greedy=True), strict=True):
        assert (a.action == b.action).all() and torch.equal(a.logprobs, b.logprobs)
    again.load_state_dict(made.state_dict())
    assert all(
        (a.action == b.action).all() for a, b in zip(act(made, observations), act(again, observations), strict=True)
    )


@pytest.mark.parametrize("text", ["[]", '{"model_type": "vlrl_control"}', '{"model_type": "vlrl_control", "state": 3}'])
def test_a_folder_of_something_else_is_named(tmp_path, text):
    """A traceback would not say which file to look at."""
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(UserError, match=r"policy\.model"):
        loading.load(PolicySection(model=str(tmp_path)))


@pytest.mark.parametrize(
    "seen", [Observation(("Go.",)), Observation(("Go.",), np.zeros(4, np.float32)),
             Observation((Image.new("RGB", (8, 8)), "Go."), np.zeros(3, np.float32))],
)  # fmt: skip
def test_another_robot_is_refused(seen):
    """A policy fed with another robot's numbers would move, and nobody would know why so badly."""
    with pytest.raises(UserError, match="made for a state of 3 numbers"):
        act(policy(), [seen])


def test_pixels_are_seen():
    """A policy with a camera that ignores it could not be told from one that looks."""
    made = policy(DiscreteShape(3, ("vx",), (-1.0,), (1.0,), chunk=2, bins=5, cameras=((16, 12),), hidden=16))
    rng, state = np.random.default_rng(0), np.zeros(3, np.float32)
    pictures = [Image.fromarray(rng.integers(0, 255, (12, 16, 3), dtype=np.uint8)) for _ in range(2)]
    decisions = act(made, [Observation((picture, "Go."), state) for picture in pictures])
    same = [made.decide(Observation((picture, "Go."), state), decisions[0].action) for picture in pictures]
    now = made.evaluate(same).logprobs
    assert torch.allclose(now[0], decisions[0].logprobs, atol=1e-6) and not torch.allclose(now[0], now[1])
    now.sum().backward()
    assert all(p.grad.abs().sum() > 0 for name, p in made.model.named_parameters() if "eyes" in name)


def test_the_reference_stays():
    """A KL to a reference that moves along would always be 0."""
    made, observations = policy(), shown(3)
    made.freeze_reference()
    decisions = act(made, observations)
    with torch.no_grad():
        made.model.head.bias.add_(torch.randn_like(made.model.head.bias))
    assert torch.allclose(made.reference(decisions), torch.stack([d.logprobs for d in decisions]), atol=1e-6)
    assert not torch.allclose(made.evaluate(decisions).logprobs, made.reference(decisions))


def test_a_fresh_policy_knows_nothing():
    """The start of cloning would prefer some actions for no reason."""
    torch.manual_seed(0)
    (decision,) = act(ControlPolicy(Network(SHAPE)), shown(1))
    assert torch.allclose(decision.entropy, torch.full((8,), math.log(SHAPE.bins)), atol=0.05)
