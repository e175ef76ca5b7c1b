"""REINFORCE++ (arXiv 2501.03262): a KL penalty in each token's reward, and advantages on one scale over the batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vlrl.advantages.returns import ends, returns
from vlrl.methods import method
from vlrl.types import Rollouts

if TYPE_CHECKING:
    from torch import Tensor


@method(needs=("reference",), level="token", source="REINFORCE++, arXiv 2501.03262; OpenRLHF, verl")
def kl_return(rollouts: Rollouts, advantage: Tensor, *, beta: float = 0.001, gamma: float = 1.0) -> Tensor:
    """Return of each token: the outcome at the episode's last token, `-beta (log p - log q)` (k1) at every one.

    `G_t = r_t + gamma G_(t+1)` over all tokens of an episode, turn after turn. The outcome is what stands in
    `advantage` for the episode's last decision: the reward, or what an earlier estimator has made of it. p is the law
    that sampled, q the reference. Published for one turn, with beta 0.001 to 0.01 and gamma 1; several turns are ours.
    Trap: k1 is negative where the policy became less sure, so a single token may be paid for moving away; in
    expectation it is a penalty.

    Returns:
        [B, T]
    """
    if advantage.ndim != 1:
        raise ValueError("kl_return takes one value per decision: place it before what works token by token")
    mask = rollouts.mask
    last = ends(rollouts.episode, mask)
    penalty = -beta * (rollouts.logprobs - rollouts.reference)[mask].to(advantage.dtype)
    outcome = advantage[rollouts.episode.diff(append=rollouts.episode[-1:] + 1) != 0]  # [N], at each last decision
    total = returns(penalty + outcome[rollouts.episode[:, None].expand(mask.shape)[mask]] * last, last, gamma)
    return advantage.new_zeros(mask.shape).masked_scatter(mask, total)


@method(level="token", source="REINFORCE++, arXiv 2501.03262; verl: masked_whiten")
def whiten(rollouts: Rollouts, advantage: Tensor, *, eps: float = 1e-8) -> Tensor:
    """Mean 0 and variance 1 over all tokens of the step: `(A - mean) / sqrt(var + eps)`, Bessel-corrected.

    Long completions weigh more than in `batch_norm`, which counts decisions. Equal advantages give 0. After
    `{name: group, std: none}` this is REINFORCE++-baseline.
    Trap: where all rewards of a step are equal, what is left is the penalty of `kl_return`, and that is put on the same
    scale, however small beta is.

    Returns:
        [B, T]
    """
    mask = rollouts.mask
    tokens = (advantage[:, None] * mask if advantage.ndim == 1 else advantage)[mask]
    if not len(tokens):
        return advantage.new_zeros(mask.shape)
    centred = (tokens - tokens.mean()) * (tokens.max() > tokens.min())  # rounding of the mean is no advantage
    variance = (centred**2).sum() / max(len(tokens) - 1, 1)
    return advantage.new_zeros(mask.shape).masked_scatter(mask, centred * (variance + eps).rsqrt())
