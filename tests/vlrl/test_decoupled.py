"""Decoupled PPO: the published numbers by hand, and what it makes of episodes."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch

from vlrl import registry
from vlrl.algorithms.gae import Decoupled
from vlrl.algorithms.policy_losses import ppo_clip
from vlrl.batch import columns, decisions_of, mask_of
from vlrl.config import Config, PolicySection
from vlrl.policies.loading import load
from vlrl.rollout import collect
from vlrl.types import Batch, Decision, Episode, Evaluation, Observation, Policy, Sample, Step, Turn

SHOWN = Observation(("Say it.",))
LOG = lambda *values: torch.tensor(values, dtype=torch.float64).log()  # noqa: E731


@dataclass
class Present(Policy):
    """A law of three tokens as it is now."""

    logprobs: torch.Tensor

    def evaluate(self, decisions):
        rows = self.logprobs.expand(len(decisions), -1)
        return Evaluation(rows, rows, torch.ones_like(rows, dtype=torch.bool))


def episode(logprobs: torch.Tensor, engine: torch.Tensor | None = None) -> Episode:
    decision = Decision("said", logprobs, torch.zeros_like(logprobs), False, engine_logprobs=engine)
    return Episode(Sample("a", SHOWN), 0, [Turn(SHOWN, decision, Step(SHOWN, terminated=True))], reward=2.0)


def test_the_objective_is_the_published_one():
    """AReaL's equation would be another one: clipped against the weights that played, or not weighed by them.

    Three tokens of an episode with advantage 2. q = (0.4, 0.2, 0.1) played them, p = (0.5, 0.1, 0.6) as the update
    begins, so w = p / q = (1.25, 0.5, 6); 6 is above 5 and left out. Then p_now = (0.65, 0.06, 0.6), u = p_now / p =
    (1.3, 0.6, 1), and w min(u A, clip(u, 0.8, 1.2) A) = 1.25 min(2.6, 2.4), 0.5 min(1.2, 1.6), 0 = 3, 0.6, 0.
    """
    present, played = Present(LOG(0.5, 0.1, 0.6)), [episode(LOG(0.4, 0.2, 0.1))]
    method = Decoupled()
    method.revisit(present, played)
    rollouts = columns(played)
    weighed = method(rollouts, rollouts.reward)
    torch.testing.assert_close(weighed.double(), torch.tensor([[2.5, 1.0, 0.0]], dtype=torch.float64))
    now = Evaluation(LOG(0.65, 0.06, 0.6)[None], torch.zeros(1, 3), rollouts.mask)
    loss = ppo_clip(now, Batch(weighed.double(), rollouts.logprobs, rollouts.mask, None), low=0.2, high=0.2)
    torch.testing.assert_close(loss, torch.tensor([[-3.0, -0.6, 0.0]], dtype=torch.float64))
    assert method.metrics["decoupled/weight"] == pytest.approx(1.75 / 3)
    assert method.metrics["decoupled/left_out"] == pytest.approx(1 / 3)
    # -(log 1.25 + log 0.5 + log 6) / 3 = -(0.22314355 - 0.69314718 + 1.79175947) / 3
    assert method.metrics["decoupled/kl"] == pytest.approx(-0.44058528)


def test_without_a_bound_nothing_is_left_out():
    """The paper's own objective, which has none, could not be run."""
    played, method = [episode(LOG(0.4, 0.2, 0.1))], Decoupled(most=None)
    method.revisit(Present(LOG(0.5, 0.1, 0.6)), played)
    rollouts = columns(played)
    torch.testing.assert_close(method(rollouts, rollouts.reward)[0], torch.tensor([2.5, 1.0, 12.0]), check_dtype=False)


def test_the_engine_s_law_counts_where_it_is_known():
    """What an engine sampled by other numbers would be weighed as if the trainer's old weights had."""
    engine = LOG(0.25, 0.2, 0.2)
    played, method = [episode(LOG(0.4, 0.2, 0.1), engine)], Decoupled()
    method.revisit(Present(LOG(0.5, 0.1, 0.6)), played)
    rollouts = columns(played)
    torch.testing.assert_close(method(rollouts, rollouts.reward)[0], torch.tensor([4.0, 1.0, 6.0]), check_dtype=False)


def test_by_the_weights_that_played_nothing_changes():
    """A synchronous run would learn something else than without it; what was put there would earn credit."""
    policy = load(PolicySection(max_tokens=6))
    task = registry.make_task(Config.model_validate({"task": {"name": "gui_grounding", "pool": 4}, "out": "x"}))
    played = collect(policy, task, task.samples("train")[:2], 2, begun=[[7, 8]] * 4)
    before, method = [replace(d) for d in decisions_of(played)], Decoupled()
    method.revisit(policy, played)
    for old, new in zip(before, decisions_of(played), strict=True):
        torch.testing.assert_close(new.logprobs, old.logprobs, rtol=0, atol=1e-5)
        assert new.logprobs[:2].tolist() == [0, 0]
    rollouts = columns(played)
    own = rollouts.mask.clone()
    torch.testing.assert_close(method(rollouts, torch.ones(4)), own.float(), rtol=0, atol=1e-5)
    assert mask_of(decisions_of(played)).sum() == own.sum() + 8
