"""DisCO: right completions are to score above wrong ones, inside a trust region."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from vlrl.losses.groups import check_one_turn, same_group, token_means
from vlrl.losses.ratios import log_ratio
from vlrl.methods import method
from vlrl.strict import Rate
from vlrl.types import Batch, Evaluation

if TYPE_CHECKING:
    from torch import Tensor


@method(
    needs=("group", "sequence_mean", "one_turn"),
    source="DisCO, arXiv 2505.12366; github.com/Optimization-AI/DisCO, core_algos.py",
)
def disco(
    now: Evaluation, batch: Batch, *, score: Literal["logprob", "ratio"] = "logprob", tau: Rate | None = 10.0,
    coef: float = 1.0,
) -> Tensor:  # fmt: skip
    """`tau log mean_wrong exp(s / tau) - mean_right s` per prompt, s a completion's score.

    Right is what accuracy counts as correct (`Score.is_correct`), whatever else the reward pays for.
    s is the mean log-probability of its tokens, or the mean of their ratios (then the paper takes tau 1). The wrong
    ones that score highest weigh most; with tau null all weigh the same (DisCO-b). Unlike a group's normalised
    advantages, no prompt counts more for being of middling difficulty. Prompts without a right or without a wrong
    completion give 0. Nothing holds the policy back: add `trust_region`.

    Returns:
        [b, T], the prompt's loss at each token of its completions, 0 outside the mask. The released code logs another
        value with the same gradient.

    Raises:
        UserError: an episode took several turns.
    """
    check_one_turn(batch, "disco")
    own = now.logprobs if score == "logprob" else log_ratio(now, batch).exp()
    scores = token_means(own, batch.mask)
    right = batch.is_correct
    member = same_group(batch, scores)
    n_right, n_wrong = member @ right.to(scores.dtype), member @ (~right).to(scores.dtype)
    wrong = member.bool() & ~right
    if tau is None:
        below = (wrong * scores).sum(1) / n_wrong.clamp(min=1)
    else:
        terms = (scores / tau).expand_as(member).masked_fill(~wrong, float("-inf"))
        terms = terms.where(n_wrong[:, None] > 0, 0.0)  # a row of -inf has no gradient
        below = tau * (terms.logsumexp(1) - n_wrong.clamp(min=1).log())
    loss = below - (member.bool() & right).to(scores.dtype) @ scores / n_right.clamp(min=1)
    return coef * loss.where((n_right > 0) & (n_wrong > 0), 0.0)[:, None] * batch.mask


@method(needs=("one_forward",), level="token", source="DisCO, arXiv 2505.12366: squared-hinge KL to the old policy")
def trust_region(
    now: Evaluation, batch: Batch, *, delta: Rate = 1e-4, beta: Rate = 1000.0, coef: float = 1.0
) -> Tensor:
    """`sg(max(beta (KL - delta), 0)) KL`: nothing inside the trust region, a steep pull back outside.

    KL is the mean over the optimizer step's tokens of `r - log r - 1`, an estimate of KL(old || now) that is never
    negative; r is the ratio. It is the step's, so the step is forwarded at once. At the first update after sampling
    it is 0. The gradient is that of the squared hinge `beta / 2 max(KL - delta, 0)^2`, the value is not.

    Returns:
        [b, T], the same at each token, so that the step's loss is this term under any weighing that sums to 1.
    """
    gap = log_ratio(now, batch)
    drift = ((gap.exp() - gap - 1) * batch.mask).sum() / batch.mask.sum()
    pull = (beta * (drift - delta)).clamp(min=0).detach()
    return coef * pull * drift * batch.mask
