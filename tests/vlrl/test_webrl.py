"""WebRL: its advantage and its update, new instructions from failures, the outcome model, the replay by confidence."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vlrl.algorithms.curriculum import WebRL
from vlrl.algorithms.multi_turn import hashed, webrl_advantage
from vlrl.algorithms.policy_losses import direct_advantage
from vlrl.checkpoint import flatten, unflatten
from vlrl.contrib.process_rewards.progress import OutcomeModel
from vlrl.contrib.rollouts.replay import between
from vlrl.types import Batch, Decision, Episode, Evaluation, Observation, Rollouts, Sample, Score, Step, Turn, UserError

COLORS = ("red", "green", "blue", "yellow", "purple")


def instruction(i: int) -> str:
    return f"Choose {COLORS[i % 5]}, {COLORS[i // 5 % 5]}."


SAMPLES = [
    Sample(f"s/{i}", Observation((instruction(i),)), None, tags={"page": "even" if i % 2 == 0 else "odd"})
    for i in range(60)
]


def episode_of(sample: Sample, correct: float, text: str = "x", group: int = 0) -> Episode:
    shown = sample.prompt
    turn = Turn(shown, Decision(text, None, None, False), Step(shown, terminated=True))
    return Episode(sample, group, [turn], Score({"success": correct}, correct), correct)


def roundtrip(state: dict) -> dict:
    """What a checkpoint makes of a state."""
    tensors: dict = {}
    return unflatten(flatten(state, tensors), tensors)


def make_sampler(**options) -> WebRL:
    sampler = WebRL(len(SAMPLES), 0, **{"limit": 20, "lr": 0.3, "epochs": 30} | options)
    sampler.follow(SAMPLES, ())
    return sampler


@pytest.mark.parametrize("lam", ["0.5", "1.0", "0.2"])
def test_advantages_equal_the_worked_example(golden, lam):
    """A turn would be paid for what a later one gained, or an episode's end for nothing."""
    inputs, outputs = golden("webrl_advantage")
    lengths = [len(row) for row in inputs["logits"]]
    episode = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))
    logits = torch.tensor([value for row in inputs["logits"] for value in row])
    one, reward = torch.ones(len(logits), 1), torch.tensor(inputs["rewards"], dtype=torch.float64)
    rollouts = Rollouts(
        ("a", "b", "c"), reward, torch.arange(3), episode, one.bool(), -one, one, features=logits[:, None]
    )
    method = webrl_advantage(lam=float(lam))
    method._make(1)
    method.critic.weight.data = torch.tensor([1.0, 0.0])
    found = method(rollouts, torch.zeros(len(logits), dtype=torch.float64))
    assert found.tolist() == pytest.approx([v for row in outputs["adv"][lam] for v in row], abs=2e-6)
    assert method.critic.weight.tolist() != [1.0, 0.0]
    resumed = webrl_advantage(lam=float(lam))
    resumed.load_state_dict(roundtrip(method.state_dict()))
    assert torch.equal(resumed.critic.weight.detach(), method.critic.weight.detach())


@given(seed=st.integers(0, 999), beta=st.floats(0.05, 2.0))
def test_its_update_is_direct_advantage(seed, beta):
    """`(beta log(p / p_reference) - A)^2`: the loss that is named would go elsewhere than the paper's."""
    draw = torch.Generator().manual_seed(seed)
    now = (-torch.rand(3, 4, generator=draw, dtype=torch.float64)).requires_grad_()
    reference = -torch.rand(3, 4, generator=draw, dtype=torch.float64)
    mask = torch.arange(4) < torch.tensor([4, 2, 1])[:, None]
    advantage = torch.randn(3, generator=draw, dtype=torch.float64)
    paper = ((beta * ((now - reference) * mask).sum(1) - advantage) ** 2).mean()
    (expected,) = torch.autograd.grad(paper, now)
    batch = Batch(
        advantage[:, None] * mask, now.detach(), mask, reference, torch.arange(3), torch.arange(3),
        is_correct=advantage > 0,
    )  # fmt: skip
    ours = direct_advantage(Evaluation(now, now.detach().abs(), mask), batch, beta=beta)
    (found,) = torch.autograd.grad((ours.sum(1) / mask.sum(1)).mean(), now)
    torch.testing.assert_close(2 * beta * found, expected)


def test_new_instructions_are_like_those_that_failed_and_neither_hopeless_nor_easy():
    """Tasks would be made of what is solved, or of what the critic rules out."""
    sampler = make_sampler(share=1.0, tries=20)
    assert all(position < 20 for position in sampler.draw(10))  # nothing has failed yet
    known = [episode_of(sample, float("red" in sample.prompt.text)) for sample in SAMPLES[:20]]
    sampler.observe(known)
    assert {text for _, text in sampler.failures} == {e.sample.prompt.text for e in known if not e.score.correct}
    value = dict(enumerate(sampler.critic.values(hashed([s.prompt.text for s in SAMPLES], sampler.width)).tolist()))
    assert value[20] > 0.75 and min(value.values()) < 0.2  # 20 is red
    middle = sorted(value.values())[30]
    sampler.low, sampler.high = 0.0, middle
    drawn = sampler.draw(30)
    assert drawn and all(position >= 20 and value[position] <= middle for position in drawn)
    # of what passes, the one whose words are most like the failed one's
    failed = SAMPLES[6]
    likeness = hashed([s.prompt.text for s in SAMPLES], sampler.width) @ hashed([failed.prompt.text], sampler.width)[0]
    passing = [p for p in range(20, 60, 2) if value[p] <= middle]
    assert float(likeness[sampler.choose("even", failed.prompt.text)]) == max(likeness[passing].tolist())
    sampler.low = sampler.high = 1.0
    assert sampler.choose("even", failed.prompt.text) is None
    assert all(position < 20 for position in sampler.draw(10))


def test_what_is_solved_later_is_no_failure_and_a_resumed_run_draws_the_same():
    """The run would go on making tasks of what it can do, or of others than an unbroken one."""
    sampler = make_sampler(low=0.0, high=1.0)
    sampler.observe([episode_of(sample, 0.0) for sample in SAMPLES[:4]])
    sampler.observe([episode_of(SAMPLES[0], 1.0)])
    assert [text for _, text in sampler.failures] == [instruction(i) for i in (1, 2, 3)]
    resumed = make_sampler(low=0.0, high=1.0)
    resumed.load_state_dict(roundtrip(sampler.state_dict()))
    assert sampler.draw(8) == resumed.draw(8)
    with pytest.raises(UserError, match=r"low = 0\.8 is above high = 0\.2"):
        make_sampler(low=0.8, high=0.2)
    with pytest.raises(UserError, match="new ones must lie behind the pool"):
        make_sampler(limit=60)


def test_the_outcome_model_learns_from_labels_and_pays_the_others():
    """A verdict would be read that nobody gave, or a labelled reward be overwritten."""
    features = SimpleNamespace(
        has_features=True, features=lambda decisions: torch.tensor([[d.inputs, 1.0] for d in decisions])
    )
    model = OutcomeModel(features, None, 0, labelled=0.5, lr=0.1, epochs=30)
    episodes = []
    for i, sample in enumerate(SAMPLES):
        episode = episode_of(sample, float(i % 3 == 0), group=i)
        decision = replace(episode.turns[0].decision, inputs=float(i % 3 == 0))
        episodes.append(replace(episode, turns=[replace(episode.turns[0], decision=decision)], reward=0.7))
    labelled = [model.has_label(episode.sample.id) for episode in episodes]
    assert 15 < sum(labelled) < 45
    for step in range(3):
        paid = model(episodes, step)
    assert model.metrics["outcome_model/agreement"] == 1.0
    for episode, before, known in zip(paid, episodes, labelled, strict=True):
        assert episode.reward == (0.7 if known else before.score.correct)
    resumed = OutcomeModel(features, None, 0, labelled=0.5, lr=0.1, epochs=30)
    resumed.load_state_dict(roundtrip(model.state_dict()))
    assert [e.reward for e in resumed(episodes, 3)] == [e.reward for e in paid]


@pytest.mark.parametrize(("chance", "earns"), [(0.97, False), (0.94, True), (0.51, True), (0.49, False)])
def test_what_the_actor_is_sure_of_or_would_never_do_earns_no_credit(chance, earns):
    """WebRL replays actions whose perplexity lies between 1 / 0.95 and 1 / 0.5."""
    decision = Decision("x", torch.full((3,), math.log(chance)), None, False)
    episode = episode_of(SAMPLES[0], 1.0)
    episode = replace(episode, turns=[replace(episode.turns[0], decision=decision)])
    forced = between(episode, 1 / 0.95, 1 / 0.5).turns[0].decision.forced_mask
    assert (forced is None) if earns else forced.tolist() == [True] * 3
