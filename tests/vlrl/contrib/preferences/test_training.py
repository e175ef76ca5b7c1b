"""Preferences become rewards: the loss by hand, and an order that is found again in answers that err."""

from __future__ import annotations

import functools
import math

import numpy as np
import pytest
import torch
from scipy.stats import kendalltau

from vlrl.contrib.preferences.labelling import against, agreement
from vlrl.contrib.preferences.reward_model import (
    Ensemble,
    LabelledPairs,
    RewardModelShape,
    bradley_terry,
    ensemble_loss,
)
from vlrl.update import fit_supervised, linear_schedule


def test_the_loss_by_hand():
    """A wrong sign would learn the opposite, and training would look the same."""
    # p(second) = 1 / (1 + e^-(b - a)): rewards (1, 3) -> 1 / (1 + e^-2); the answers are 1, then 0, then 1
    first, second = torch.tensor([1.0, 0.5, 2.0]).double(), torch.tensor([3.0, 0.0, 2.0]).double()
    by_hand = (math.log(1 + math.exp(-2)) + math.log(1 + math.exp(-0.5)) + math.log(2)) / 3
    assert bradley_terry(first, second, torch.tensor([1.0, 0.0, 1.0]).double()).item() == pytest.approx(by_hand)


def answered(noise: float, seed: int = 0) -> tuple[torch.Tensor, np.ndarray, np.ndarray, np.ndarray]:
    """Moments whose progress is no linear one, pairs, and answers of which a share is wrong."""
    rng = np.random.default_rng(seed)
    moments = rng.normal(size=(300, 4)).astype(np.float32)
    progress = -np.hypot(moments[:, 0] - moments[:, 1], 0.5 * moments[:, 2])
    pairs = np.stack([rng.permutation(300)[:2] for _ in range(800)])
    right = progress[pairs[:, 1]] > progress[pairs[:, 0]]
    return torch.from_numpy(moments), progress, pairs, (right != (rng.random(800) < noise)).astype(np.int64)


def learned(moments, pairs, answers, seed=0) -> Ensemble:
    torch.manual_seed(seed)
    network = Ensemble(RewardModelShape(4, tuple("abcd"), (0, 1, 2, 3), hidden=64))
    rngs = [np.random.default_rng([seed, member]) for member in range(3)]
    batches = ([rng.integers(len(pairs), size=64) for rng in rngs] for _ in range(400))
    optimizer, asked = (
        torch.optim.AdamW(network.parameters(), weight_decay=1.0),
        LabelledPairs(pairs, answers, len(pairs)),
    )
    loss = functools.partial(ensemble_loss, network, moments, asked)
    fit_supervised(optimizer, batches, loss, lr=linear_schedule(3e-3, 400))
    return network


@pytest.mark.parametrize(("noise", "least"), [(0.0, 0.85), (0.1, 0.75), (0.5, -1.0)])
def test_an_order_is_found_again_in_answers_that_err(noise, least):
    """Off by a place in a pair, or learned from the wrong moments, the reward would rank nothing."""
    moments, _, pairs, answers = answered(noise)
    fresh = np.random.default_rng(9).normal(size=(300, 4)).astype(np.float32)
    truth = -np.hypot(fresh[:, 0] - fresh[:, 1], 0.5 * fresh[:, 2])
    values = learned(moments, pairs, answers)(torch.from_numpy(fresh)).detach().mean(0).numpy()
    tau = kendalltau(values, truth).statistic
    assert tau > least and (noise < 0.5 or abs(tau) < 0.3)  # answers by chance teach nothing


@pytest.mark.slow
def test_one_seed_is_one_model_and_members_differ():
    """A result could not be repeated; three equal members would be one."""
    moments, _, pairs, answers = answered(0.1)
    one, same, other = (learned(moments, pairs, answers, seed)(moments) for seed in (0, 0, 1))
    assert torch.equal(one, same) and not torch.equal(one, other)
    assert (one[0] - one[1]).abs().max() > 0.1


def test_agreement_by_hand():
    """A tie that counted would let a constant reward agree with everything."""
    values, pairs = np.array([0.0, 1.0, 1.0]), np.array([[0, 1], [1, 0], [1, 2], [0, 2]])
    assert agreement(values, pairs, np.array([1, 1, 1, 0]))[:2] == [1, 4]
    told = against(values, np.array([5.0, 7.0, 7.0]), pairs)
    assert told["agreement"][:2] == [3, 3] and told["kendall"] == pytest.approx(1.0)
