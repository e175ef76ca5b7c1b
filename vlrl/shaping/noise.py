"""Rewards of a verifier that errs at known rates (arXiv 2510.00915; formulas from a summary of it)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from vlrl.methods import method
from vlrl.types import Rollouts

if TYPE_CHECKING:
    from torch import Tensor

ErrorRate = Annotated[float, Field(ge=0, lt=0.5)]


@method(source="noisy verifier, backward correction: arXiv 2510.00915")
def noise_backward(rollouts: Rollouts, *, false_positive: ErrorRate, false_negative: ErrorRate) -> Tensor:
    """`(r - p) / (1 - p - n)`: its expectation over the verifier's errors is the true reward, for both kinds of answer.

    p is the share of wrong answers that it takes for right, n of right ones that it takes for wrong; r is 0 or 1. One
    scale and shift for all, so an estimator that standardises takes it out again: recipes with both are refused.

    Returns:
        [N]
    """
    return (rollouts.reward - false_positive) / (1 - false_positive - false_negative)


@method(source="noisy verifier, forward correction: arXiv 2510.00915")
def noise_forward(rollouts: Rollouts, *, false_negative: ErrorRate) -> Tensor:
    """`r - (1 - n)`: n for what the verifier took for right, n - 1 else; the weight of the policy gradient itself.

    The rate of false negatives is enough. Use it with `advantages: []`: any baseline takes the shift out again, and
    such recipes are refused. The paper estimates n while it trains, with a judge to whom wrong answers appeal.

    Returns:
        [N]
    """
    return rollouts.reward - (1 - false_negative)
