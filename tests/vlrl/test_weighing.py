"""Weights per token: what they sum to, and that a split of the batch cannot change them."""

from __future__ import annotations

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from vlrl.algorithms.policy_losses import constant, ppo_clip, sequence_mean, token_mean
from vlrl.types import Batch, Evaluation


@st.composite
def masks(draw) -> torch.Tensor:
    """Any mask with at least one token; rows may be empty."""
    n, length = draw(st.integers(1, 6)), draw(st.integers(1, 9))
    rows = draw(st.lists(st.lists(st.booleans(), min_size=length, max_size=length), min_size=n, max_size=n))
    assume(any(map(any, rows)))
    return torch.tensor(rows)


@pytest.mark.parametrize("weigh", [token_mean, sequence_mean])
@given(mask=masks())
def test_weights_sum_to_one_and_leave_out_the_padding(weigh, mask):
    """The step size would hang on how many or how long the completions are."""
    weights = weigh(mask)
    assert float(weights.sum()) == pytest.approx(1.0, abs=1e-6)
    assert (weights[~mask] == 0).all()
    assert (weights[mask] > 0).all()


@given(masks())
def test_sequences_count_the_same(mask):
    """GRPO's averaging would favour long completions."""
    totals = sequence_mean(mask).sum(1)
    filled = totals[mask.any(1)]
    torch.testing.assert_close(filled, torch.full_like(filled, 1 / len(filled)))


@given(masks(), st.integers(0, 5))
def test_constant_weights_do_not_hang_on_the_lengths(mask, spare):
    """Dr. GRPO's point: a token of a short completion must not count more than one of a long completion."""
    length = mask.shape[1] + spare
    weights = constant(mask, length=length)
    torch.testing.assert_close(weights, mask / (len(mask) * length))
    assert float(weights.sum()) <= 1 + 1e-6


def _losses(inputs: dict, high: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Per-token losses and mask of a worked example."""
    now, old, mask = (torch.tensor(inputs[k], dtype=torch.float64) for k in ("new_logp", "old_logp", "mask"))
    advantage = torch.tensor(inputs["adv_seq"], dtype=torch.float64)[:, None] * mask
    mask = mask.bool()
    return ppo_clip(Evaluation(now, torch.zeros_like(now), mask), Batch(advantage, old, mask), high=high), mask


def test_token_mean_is_over_the_whole_step(golden, near):
    """Averaging micro-batches first gives twice the loss on this example: gradients would hang on memory settings."""
    inputs, outputs = golden("token_mean_scope")
    loss, mask = _losses(inputs, inputs["clip_high"])
    weights = token_mean(mask).double()
    parts = [(loss[rows] * weights[rows]).sum() for rows in inputs["micro_batches"]]
    near(sum(parts), outputs["global_token_mean"])
    own = [(loss[rows] * token_mean(mask[rows])).sum() for rows in inputs["micro_batches"]]
    near(torch.stack(own), outputs["per_micro_batch"])  # the examples are about the same losses


def test_constant_equals_the_worked_example(golden, near):
    """Dr. GRPO divides by batch and longest completion; some libraries forget the batch."""
    inputs, outputs = golden("drgrpo_loss_const")
    loss, mask = _losses(inputs, inputs["clip"])
    near((loss * constant(mask, length=inputs["L_max"])).sum(), outputs["loss"])
