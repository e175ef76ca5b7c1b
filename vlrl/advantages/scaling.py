"""Advantages on one scale, and how much each sample counts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vlrl.methods import method
from vlrl.types import Rollouts

if TYPE_CHECKING:
    from torch import Tensor


@method(source="MSSR, arXiv 2512.18215, released code: whitening over all sequences of the step")
def batch_norm(rollouts: Rollouts, advantage: Tensor, *, ddof: int = 0, var_floor: float = 1e-6) -> Tensor:
    """Mean 0 and variance 1 over the step's decisions: `(A - mean) * rsqrt(max(var, var_floor))`.

    Returns:
        [B]
    """
    if advantage.ndim != 1:
        raise ValueError("batch_norm works on one value per decision: place it before token-level shaping")
    centred = advantage - advantage.mean()
    variance = (centred**2).sum() / max(len(advantage) - ddof, 1)
    return centred * variance.clamp(min=var_floor).rsqrt()


@method(source="GUI-G1, arXiv 2505.15810: `rate`, by the target's size")
def weighted(rollouts: Rollouts, advantage: Tensor) -> Tensor:
    """Times how much the decision's sample counts (`Sample.weight`), so that hard samples can move more.

    For a weight of 0 or more this is the weight of the sample's policy loss, as published.

    Returns:
        [B]
    """
    return advantage if rollouts.weight is None else advantage * rollouts.weight[rollouts.episode]
