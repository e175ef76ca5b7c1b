"""Regression of log-ratios onto advantages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from vlrl.losses.ratios import log_ratio
from vlrl.methods import method
from vlrl.strict import Rate
from vlrl.types import Batch, Evaluation, UserError

if TYPE_CHECKING:
    from torch import Tensor


@method(
    needs=("group", "sequence_mean", "one_turn"),
    source="Reg-GRPO: DeepVideo-R1, arXiv 2506.07464 (text); scale is our own",
)
def reg_grpo(
    now: Evaluation, batch: Batch, *, eps: Rate = 0.1, scale: Rate = 1.0, ddof: Literal[0, 1] = 1, coef: float = 1.0
) -> Tensor:
    """`(A_i - scale p_i)^2` per completion: a regression of the group's log-ratios, standardised, onto its advantages.

    rho_i = sum_t log(p_now / p_old), c_i = rho_i - mean(rho), p_i = c_i / sqrt(var(rho) + eps^2), over a group of G.
    No clipping. A group whose advantages are all 0 gives 0. The paper divides by the deviation alone, which has no
    gradient at the first update after sampling, where all rho are 0. Here, for advantages that sum to 0, it is

        d(mean loss) / d rho_i = -2 scale A_i / (eps G),

    the policy gradient of whole completions times 2 scale / eps. So with one update a step (train.minibatches and
    train.epochs 1) this is GRPO with another step size; what is its own begins with the second update. Log-ratios far
    below eps are drawn to A_i eps / scale. Far above eps only their correlation r with the advantages counts: for ddof
    0 and advantages of variance 1 the mean loss is 1 - 2 scale r + scale^2, at scale 1 that is 2 (1 - r). Then scale
    <= 1 always wants log-ratios larger, held by a KL and the learning rate alone; scale > 1 is content, where r = 1,
    with a deviation of eps / sqrt(scale^2 - 1).

    Args:
        eps: in nats of a whole completion; well above the numerical noise of rho (`logprob_gap` in the log).
        ddof: of var(rho): 1 as `group` divides rewards, 0 for the population's.

    Returns:
        [b, T], the completion's loss at each of its tokens, 0 outside the mask.

    Raises:
        UserError: an episode took several turns.
    """
    if len(batch.episode.unique()) < len(batch.episode):
        raise UserError("losses: reg_grpo compares whole completions, but an episode took several turns: use ppo_clip")
    rho = log_ratio(now, batch).sum(1)
    target = batch.advantage.masked_fill(~batch.mask, 0.0).sum(1) / batch.mask.sum(1).clamp(min=1)
    member = (batch.group[:, None] == batch.group).to(rho.dtype)  # [b, b]
    size = member.sum(1)
    centred = rho - member @ rho / size
    variance = member @ centred**2 / (size - ddof).clamp(min=1)
    taught = member @ target.abs() > 0
    loss = (target - scale * centred * (variance + eps**2).rsqrt()) ** 2
    return coef * loss.where(taught, 0.0)[:, None] * batch.mask
