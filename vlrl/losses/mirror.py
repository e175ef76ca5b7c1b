"""Kimi k1.5: a step of online mirror descent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vlrl.losses.groups import check_one_turn, token_means
from vlrl.losses.ratios import log_ratio
from vlrl.methods import method
from vlrl.strict import Rate
from vlrl.types import Batch, Evaluation

if TYPE_CHECKING:
    from torch import Tensor


@method(
    needs=("sequence_mean", "one_turn"),
    source="online policy mirror descent of Kimi k1.5, arXiv 2501.12599, section 2.3.2",
)
def mirror_descent(now: Evaluation, batch: Batch, *, tau: Rate = 0.1, coef: float = 1.0) -> Tensor:
    """`-A rho + tau rho^2 / 2` per completion, `rho = log(p_now / p_old)` of the whole completion.

    That is `(A - tau rho)^2 / (2 tau)` less a constant: the paper's squared error of `r - tau log Z = tau rho`, which
    holds for the best policy under a KL of weight tau to the policy that sampled, with the rewards' mean in place of
    tau log Z. A is the reward less that mean: `{name: group, std: none}`. The gradient is `(tau rho - A) grad log p`, a
    policy gradient that is pulled back to where the step began; no ratio, no clipping. It counts from a step's second
    update on (`train.minibatches`, `train.epochs`): before, rho is 0. `copg` differs by a fixed reference and by taking
    the mean of rho out as well; the paper makes the optimizer anew each iteration (hook `reference_reset`, every: 1).

    Args:
        tau: of the KL, not given in the paper.

    Returns:
        [b, T], each completion's loss at all its tokens, 0 outside the mask.

    Raises:
        UserError: an episode took several turns.
    """
    check_one_turn(batch, "mirror_descent")
    rho = log_ratio(now, batch).sum(1)
    loss = -token_means(batch.advantage, batch.mask) * rho + tau / 2 * rho**2
    return coef * loss[:, None] * batch.mask
