"""Imitation, weighted by advantages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vlrl.methods import method
from vlrl.types import Batch, Evaluation

if TYPE_CHECKING:
    from torch import Tensor


@method(
    level="token", source="imitation weighted by advantages: DigiRL, arXiv 2406.11896; AWR, 1910.00177", vanishes=True
)
def likelihood(now: Evaluation, batch: Batch, *, coef: float = 1.0) -> Tensor:
    """`-A log p` per token, without a ratio to the policy that sampled: what was right then is right still."""
    return -coef * batch.advantage * now.logprobs
