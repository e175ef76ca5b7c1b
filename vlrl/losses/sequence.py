"""Surrogates with the ratio of a whole completion: GSPO, and DHPO, which mixes it with the token's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from vlrl.losses.groups import token_means
from vlrl.losses.ratios import log_ratio
from vlrl.methods import method
from vlrl.strict import Rate
from vlrl.types import Batch, Evaluation

if TYPE_CHECKING:
    from torch import Tensor

Share = Annotated[float, Field(ge=0, le=1)]


@method(needs=("sequence_mean",), source="GSPO, arXiv 2507.18071, Eq. 5-7", vanishes=True)
def gspo(now: Evaluation, batch: Batch, *, low: Rate = 3e-4, high: Rate = 4e-4, coef: float = 1.0) -> Tensor:
    """`max(-A s, -A clip(s, 1 - low, 1 + high))` per completion, s = exp(mean_t log(p_now / p_old)).

    A is the completion's mean advantage, s its ratio to the power of 1 / length, which stays near 1: the clip range is
    a thousandth of PPO's, and a clipped completion loses all its tokens at once. Each decision of an episode of
    several turns is a completion.

    Returns:
        [b, T], the completion's loss at each of its tokens, 0 outside the mask.
    """
    ratio = token_means(log_ratio(now, batch), batch.mask).exp()
    gain = -token_means(batch.advantage, batch.mask)
    return coef * (gain * ratio).maximum(gain * ratio.clamp(1 - low, 1 + high))[:, None] * batch.mask


@method(
    needs=("sequence_mean",), source="RLOO, arXiv 2402.14740; the clipped ratio: TRL 1.16, RLOOTrainer", vanishes=True
)
def completion_clip(now: Evaluation, batch: Batch, *, low: Rate = 0.2, high: Rate = 0.2, coef: float = 1.0) -> Tensor:
    """`max(-A s, -A clip(s, 1 - low, 1 + high))` per completion, s = p_now / p_old of the whole completion.

    At the first update after sampling s is 1 and the gradient is REINFORCE's, `-A sum_t grad log p_t`: a completion is
    one action, and a long one counts with all of its tokens. A is the completion's mean advantage. Each decision of an
    episode of several turns is a completion. `gspo` takes s to the power of 1 / length.

    Returns:
        [b, T], the completion's loss at each of its tokens, 0 outside the mask.
    """
    ratio = log_ratio(now, batch).sum(1).clamp(-20.0, 20.0).exp()
    gain = -token_means(batch.advantage, batch.mask)
    return coef * (gain * ratio).maximum(gain * ratio.clamp(1 - low, 1 + high))[:, None] * batch.mask


@method(needs=("sequence_mean",), level="token", source="GSPO-token, arXiv 2507.18071, Eq. 13-15", vanishes=True)
def gspo_token(now: Evaluation, batch: Batch, *, low: Rate = 3e-4, high: Rate = 4e-4, coef: float = 1.0) -> Tensor:
    """GSPO for advantages that differ from token to token: `sg(s) p_t / sg(p_t)` takes the place of s.

    The value is that of the completion's ratio, the gradient goes to each token by its own advantage. For advantages
    that are equal over a completion value and gradient are `gspo`'s. A stopped gradient: finite differences of the
    value are not the gradient.

    Returns:
        [b, T]
    """
    own = log_ratio(now, batch)
    whole = token_means(own, batch.mask).detach()[:, None]
    ratio = (own - own.detach() + whole).exp()
    return coef * (-batch.advantage * ratio).maximum(-batch.advantage * ratio.clamp(1 - low, 1 + high)) * batch.mask


@method(
    level="token",
    source="DHPO, arXiv 2601.05607; code unreleased: weights and ranges are our reconstruction",
    vanishes=True,
)
def dhpo(
    now: Evaluation, batch: Batch, *, share: Share = 0.5, low: Rate = 0.2, high: Rate = 0.2,
    sequence_low: Rate = 3e-4, sequence_high: Rate = 4e-4, coef: float = 1.0,
) -> Tensor:  # fmt: skip
    """`-A (w clip(r_t, token range) + (1 - w) clip(s, sequence range))`: a token's ratio and its completion's.

    The paper clips each in its own range and mixes them by a fixed weight or by entropy (`dhpo_entropy`). Its numbers
    are not known: w = 1/2, PPO's range and GSPO's are ours, as is leaving out the minimum with the unclipped ratio: a
    ratio that moved the wrong way beyond its range has no gradient to come back by.

    Args:
        share: w, of the token's ratio.

    Returns:
        [b, T]
    """
    mixed = _mixed(now, batch, share, (low, high), (sequence_low, sequence_high))
    return -coef * batch.advantage * mixed * batch.mask


@method(needs=("one_forward",), level="token", source="DHPO, arXiv 2601.05607, entropy-guided; our reconstruction")
def dhpo_entropy(
    now: Evaluation, batch: Batch, *, low: Rate = 0.2, high: Rate = 0.2,
    sequence_low: Rate = 3e-4, sequence_high: Rate = 4e-4, coef: float = 1.0,
) -> Tensor:  # fmt: skip
    """`dhpo` with w = H_t / max H, without gradient: where the policy wavers, the token's ratio counts.

    The largest entropy is that of the optimizer step's tokens, so the step is forwarded at once.

    Returns:
        [b, T]
    """
    entropy = now.entropy.detach().masked_fill(~batch.mask, 0.0)
    mixed = _mixed(now, batch, entropy / entropy.max().clamp(min=1e-9), (low, high), (sequence_low, sequence_high))
    return -coef * batch.advantage * mixed * batch.mask


def _mixed(now: Evaluation, batch: Batch, share: Tensor | float, token: tuple, sequence: tuple) -> Tensor:
    """Both ratios, each clipped in its range, mixed [b, T]."""
    own = log_ratio(now, batch)
    whole = token_means(own, batch.mask).exp()[:, None].clamp(1 - sequence[0], 1 + sequence[1])
    return share * own.exp().clamp(1 - token[0], 1 + token[1]) + (1 - share) * whole
