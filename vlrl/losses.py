"""Loss terms: pure functions `(now, batch, *, options) -> [b, T]`, to be minimised.

The trainer weighs every unit with one weight that sums to 1 over the optimizer step (vlrl/weighing.py) and adds the
terms, each times its `coef`. Written with tensor methods only, so that reading a configuration needs no torch.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

from vlrl.methods import method
from vlrl.strict import Rate
from vlrl.types import Batch, Evaluation, UserError

if TYPE_CHECKING:
    from torch import Tensor


@method(level="token", source="PPO, arXiv 1707.06347; clip-higher: DAPO, 2503.14476; dual clip: 1912.09729")
def ppo_clip(
    now: Evaluation, batch: Batch, *, low: float = 0.2, high: float = 0.2, dual: float | None = None, coef: float = 1.0
) -> Tensor:
    """`max(-A r, -A clip(r, 1 - low, 1 + high))` per token; for A < 0 at most `-A dual`. r is the probability ratio."""
    ratio = log_ratio(now, batch).exp()
    loss = (-batch.advantage * ratio).maximum(-batch.advantage * ratio.clamp(1 - low, 1 + high))
    if dual is not None:
        loss = loss.minimum(-batch.advantage * dual).where(batch.advantage < 0, loss)
    return coef * loss


@method(needs=("reference",), level="token", source="estimators: joschu.net/blog/kl-approx.html; k3 as in GRPO")
def kl(now: Evaluation, batch: Batch, *, kind: Literal["k1", "k2", "k3"] = "k3", coef: float = 0.01) -> Tensor:
    """KL(policy || reference) per token: k1 = log p/q, k2 = (log p/q)^2 / 2, k3 = q/p - log(q/p) - 1."""
    gap = (batch.reference - now.logprobs).masked_fill(~batch.mask, 0.0)
    if kind == "k1":
        return coef * -gap
    if kind == "k2":
        return coef * 0.5 * gap**2
    return coef * (gap.clamp(-20, 20).exp() - gap - 1)


@method(level="token", source="maximum-entropy bonus, arXiv 1602.01783")
def entropy(now: Evaluation, batch: Batch, *, coef: float = 0.01) -> Tensor:
    """Minus the entropy of the distribution at each token: a positive coefficient keeps the policy exploring."""
    return -coef * now.entropy


@method(level="token", source="imitation weighted by advantages: DigiRL, arXiv 2406.11896; AWR, 1910.00177")
def likelihood(now: Evaluation, batch: Batch, *, coef: float = 1.0) -> Tensor:
    """`-A log p` per token, without a ratio to the policy that sampled: what was right then is right still."""
    return -coef * batch.advantage * now.logprobs


@method(needs=("group", "sequence_mean"), source="Reg-GRPO: DeepVideo-R1, arXiv 2506.07464 (text); scale is our own")
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


def log_ratio(now: Evaluation, batch: Batch) -> Tensor:
    """log(p_now / p_old) [b, T], 0 outside the mask, clamped to [-20, 20] before anyone takes its exponential."""
    return (now.logprobs - batch.old).masked_fill(~batch.mask, 0.0).clamp(-20.0, 20.0)


def clip_fraction(now: Evaluation, batch: Batch, low: float, high: float) -> float:
    """Share of units whose ratio lies outside [1 - low, 1 + high]."""
    outside = log_ratio(now, batch)
    least = math.log1p(-low) if low < 1 else -math.inf  # no ratio lies below 0
    hit = (outside < least) | (outside > math.log1p(high))
    return float(hit[batch.mask].float().mean())
