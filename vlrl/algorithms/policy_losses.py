"""Policy losses, and how tokens are averaged in a loss."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from vlrl.config import Rate
from vlrl.methods import log_ratio, method
from vlrl.types import Batch, Evaluation, UserError

if TYPE_CHECKING:
    from torch import Tensor


# What losses of whole completions and of groups share: statistics over rows [b] that stand for all their tokens.


def token_means(values: Tensor, mask: Tensor) -> Tensor:
    """Mean over each row's tokens [b], for values [b, T]; 0 for a row without tokens."""
    return values.masked_fill(~mask, 0.0).sum(1) / mask.sum(1).clamp(min=1)


def same_group(batch: Batch, like: Tensor) -> Tensor:
    """1 where two rows are of one group, else 0: [b, b], in the type of `like`."""
    return (batch.group[:, None] == batch.group).to(like.dtype)


def check_one_turn(batch: Batch, name: str, instead: str = "ppo_clip") -> None:
    """UserError where an episode took several turns, each of which would be compared as a completion of its own."""
    if len(batch.episode.unique()) < len(batch.episode):
        raise UserError(f"losses: {name} compares whole completions, but an episode took several turns: use {instead}")


# CISPO: the importance weight is clipped, the gradient never is.


@method(reads=("old_logprobs",), level="token", source="CISPO: MiniMax-M1, arXiv 2506.13585, Eq. 4-5", vanishes=True)
def cispo(now: Evaluation, batch: Batch, *, low: Rate = 1.0, high: Rate = 4.0, coef: float = 1.0) -> Tensor:
    """`-sg(clip(r, 1 - low, 1 + high)) A log p` per token: REINFORCE with a clipped importance weight.

    Where PPO's clipping silences a token, here it keeps learning with a bounded weight: rare tokens that start a
    change of mind are what a clipped ratio loses first. The paper sets no lower bound (low 1) and does not say its
    upper one; 1 + 4 is our choice, TRL's default. A stopped gradient: finite differences of the value are not the
    gradient.

    Returns:
        [b, T]
    """
    weight = log_ratio(now, batch).exp().clamp(1 - low, 1 + high).detach()
    return -coef * weight * batch.advantage * now.logprobs.masked_fill(~batch.mask, 0.0)


# Surrogates of the policy gradient with a clipped ratio.


@method(
    reads=("old_logprobs",),
    level="token",
    source="PPO, arXiv 1707.06347; clip-higher: DAPO, 2503.14476; dual clip: 1912.09729",
    vanishes=True,
)
def ppo_clip(
    now: Evaluation, batch: Batch, *, low: float = 0.2, high: float = 0.2, dual: float | None = None, coef: float = 1.0
) -> Tensor:
    """`max(-A r, -A clip(r, 1 - low, 1 + high))` per token; for A < 0 at most `-A dual`. r is the probability ratio."""
    ratio = log_ratio(now, batch).exp()
    loss = (-batch.advantage * ratio).maximum(-batch.advantage * ratio.clamp(1 - low, 1 + high))
    if dual is not None:
        loss = loss.minimum(-batch.advantage * dual).where(batch.advantage < 0, loss)
    return coef * loss


# Contrastive policy gradient: two completions differ in reward as they do in likelihood.


@method(
    needs=("group", "reference", "sequence_mean", "one_turn"),
    source="CoPG, arXiv 2406.19185; for groups of k: Command A, 2504.00698",
)  # fmt: skip
def copg(now: Evaluation, batch: Batch, *, beta: Rate = 0.1, coef: float = 1.0) -> Tensor:
    """`k / (k - 1) (h - mean h)^2 / (2 beta)` per completion of k to a prompt, `h = R - beta log(p / p_reference)`.

    Summed over a group that is `sum_{i<j} (h_i - h_j)^2 / (k - 1)`, over 2 beta. h is the reward less what the policy
    has moved for it already. The best policy under a KL to the reference is the one of which h is the same for all
    completions of a prompt, whoever wrote them: the loss is 0 there, for recorded episodes as for new ones, without a
    ratio to the behaviour policy.

    R is the advantage: the reward, or the reward less anything of the prompt's (`advantages: []`, or `group` with
    std: none). The division by 2 beta is ours: where the policy is still the reference, the gradient is the policy
    gradient with `leave_one_out`'s baseline, whatever beta. Groups of one give 0.

    Returns:
        [b, T], each completion's loss at all its tokens, 0 outside the mask.

    Raises:
        UserError: an episode took several turns.
    """
    check_one_turn(batch, "copg")
    moved = (now.logprobs - batch.reference).masked_fill(~batch.mask, 0.0).sum(1)
    left = token_means(batch.advantage, batch.mask) - beta * moved
    member = same_group(batch, left)
    size = member.sum(1)
    spread = (left - member @ left / size) ** 2 * size / (size - 1).clamp(min=1)
    return coef / (2 * beta) * spread[:, None] * batch.mask


# DisCO: right completions are to score above wrong ones, inside a trust region.


@method(
    reads=lambda options: ("old_logprobs",) if options["score"] == "ratio" else (),
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


@method(
    reads=("old_logprobs",),
    needs=("one_forward",),
    level="token",
    source="DisCO, arXiv 2505.12366: squared-hinge KL to the old policy",
)
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


# Kimi k1.5: a step of online mirror descent.


@method(
    reads=("old_logprobs",),
    needs=("sequence_mean", "one_turn"),
    source="online policy mirror descent of Kimi k1.5, arXiv 2501.12599, section 2.3.2",
)
def mirror_descent(now: Evaluation, batch: Batch, *, tau: Rate = 0.1, coef: float = 1.0) -> Tensor:
    """`-A rho + tau rho^2 / 2` per completion, `rho = log(p_now / p_old)` of the whole completion.

    That is `(A - tau rho)^2 / (2 tau)` less a constant: the paper's squared error of `r - tau log Z = tau rho`, which
    holds for the best policy under a KL of weight tau to the policy that sampled, with the rewards' mean in place of
    tau log Z. A is the reward less that mean: `{name: grpo, std: none}`. The gradient is `(tau rho - A) grad log p`, a
    policy gradient that is pulled back to where the step began; no ratio, no clipping. It counts from a step's second
    update on (`train.num_minibatches`, `train.update_epochs`): before, rho is 0. `copg` differs by a fixed reference
    and by taking the mean of rho out as well; the paper makes the optimizer anew each iteration (hook
    `reference_reset`, every: 1).

    Args:
        tau: of the KL, not given in the paper.

    Returns:
        [b, T], each completion's loss at all its tokens, 0 outside the mask.

    Raises:
        UserError: an episode took several turns.
    """
    check_one_turn(batch, "mirror_descent")
    return coef * _regression(log_ratio(now, batch).sum(1), batch, tau)


def _regression(moved: Tensor, batch: Batch, weight: float) -> Tensor:
    """`-A d + weight d^2 / 2` of each row's log-ratio d [b], at all its tokens [b, T], 0 outside the mask."""
    loss = -token_means(batch.advantage, batch.mask) * moved + weight / 2 * moved**2
    return loss[:, None] * batch.mask


@method(needs=("reference", "sequence_mean"), source="direct advantage policy optimization, arXiv 2412.18279, Eq. 7")
def direct_advantage(now: Evaluation, batch: Batch, *, beta: Rate = 0.1, coef: float = 1.0) -> Tensor:
    """`(A - beta d)^2 / (2 beta)` per decision, less a constant; `d = log(p / p_reference)` of the decision's tokens.

    `mirror_descent` with the reference in the place of the policy that sampled, and for each turn of an episode with
    its own advantage: the best policy under a KL of weight beta to the reference has `beta d = A`, whoever played. So
    it is for recorded episodes too. The paper trains a critic first and asks it for the advantage of each step of a
    solution; here a step is a turn, and `gae` with lam 0 gives one-step advantages.

    Args:
        beta: of the KL.

    Returns:
        [b, T], each decision's loss at all its tokens, 0 outside the mask.
    """
    return coef * _regression((now.logprobs - batch.reference).masked_fill(~batch.mask, 0.0).sum(1), batch, beta)


# Imitation of what went better than expected, weighted by how far the policy has come.

OfflineShare = Annotated[float, Field(gt=0, lt=1)]


@method(needs=("reference",), source="A-LoL, arXiv 2305.14718; github.com/abaheti95/LoL-RL", vanishes=True)
def a_lol(
    now: Evaluation, batch: Batch, *,
    ratio: Literal["sequence", "token", "none"] = "sequence", clip: OfflineShare = 0.9, coef: float = 1.0,
) -> Tensor:  # fmt: skip
    """`-max(A, 0) w log p` per token, `w = clip(p / p_reference, 1 - clip, 1 + clip)` without gradient.

    For recorded episodes: the ratio is to the reference, the policy from which the run started (in the
    paper fine-tuned on the same data), not the one that sampled, which nobody needs to know. Episodes that are no
    better than what the reference was expected to reach are left out; what remains is the paper's leftover lunch.

    Args:
        ratio: of the whole completion, as in A-LoL; of each token (A-LoL seq); none: w = 1 (A-LoL ref-free).

    Returns:
        [b, T]
    """
    gap = (now.logprobs.detach() - batch.reference).masked_fill(~batch.mask, 0.0)
    gap = gap.sum(1, keepdim=True) if ratio == "sequence" else gap
    weight = 1.0 if ratio == "none" else gap.clamp(-20.0, 20.0).exp().clamp(1 - clip, 1 + clip)
    return -coef * batch.advantage.clamp(min=0.0) * weight * now.logprobs


# Regression of log-ratios onto advantages.


@method(
    reads=("old_logprobs",),
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

    the policy gradient of whole completions times 2 scale / eps. So with one update a step (train.num_minibatches and
    train.update_epochs 1) this is GRPO with another step size; what is its own begins with the second update.
    Log-ratios far below eps are drawn to A_i eps / scale. Far above eps only their correlation r with the advantages
    counts: for ddof 0 and advantages of variance 1 the mean loss is 1 - 2 scale r + scale^2, at scale 1 that is 2 (1 -
    r). Then scale <= 1 always wants log-ratios larger, held by a KL and the learning rate alone; scale > 1 is content,
    where r = 1, with a deviation of eps / sqrt(scale^2 - 1).

    Args:
        eps: in nats of a whole completion; well above the numerical noise of rho (`logprob_gap` in the log).
        ddof: of var(rho): 1 as `grpo` divides rewards, 0 for the population's.

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


# Surrogates with the ratio of a whole completion: GSPO, and DHPO, which mixes it with the token's.

SequenceShare = Annotated[float, Field(ge=0, le=1)]


@method(reads=("old_logprobs",), needs=("sequence_mean",), source="GSPO, arXiv 2507.18071, Eq. 5-7", vanishes=True)
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
    reads=("old_logprobs",), needs=("sequence_mean",), source="LUSPO, arXiv 2602.05261; TRL 1.16: luspo", vanishes=True
)
def luspo(now: Evaluation, batch: Batch, *, low: Rate = 3e-4, high: Rate = 4e-4, coef: float = 1.0) -> Tensor:
    """`gspo` times the completion's length: every token counts the same, whatever the length of its completion.

    Under `sequence_mean` a token of a long completion counts less, so that what is wrong grows longer and what is right
    shorter. The loss grows with the lengths: the learning rate of `gspo` is too large by their mean.

    Returns:
        [b, T], the completion's loss at each of its tokens, 0 outside the mask.
    """
    return gspo(now, batch, low=low, high=high, coef=coef) * batch.mask.sum(1, keepdim=True)


@method(
    reads=("old_logprobs",),
    needs=("sequence_mean",),
    source="RLOO, arXiv 2402.14740; the clipped ratio: TRL 1.16, RLOOTrainer",
    vanishes=True,
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


@method(
    reads=("old_logprobs",),
    needs=("sequence_mean",),
    level="token",
    source="GSPO-token, arXiv 2507.18071, Eq. 13-15",
    vanishes=True,
)
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
    reads=("old_logprobs",),
    level="token",
    source="DHPO, arXiv 2601.05607; code unreleased: weights and ranges are our reconstruction",
    vanishes=True,
)
def dhpo(
    now: Evaluation, batch: Batch, *, share: SequenceShare = 0.5, low: Rate = 0.2, high: Rate = 0.2,
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


@method(
    reads=("old_logprobs",),
    needs=("one_forward",),
    level="token",
    source="DHPO, arXiv 2601.05607, entropy-guided; our reconstruction",
)
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


# A clipped surrogate whose log-ratio is bounded before its exponential is taken.


@method(
    reads=("old_logprobs",),
    level="token",
    source="StableReinforce: R1-Reward, arXiv 2505.02835; github.com/yfzhang114/r1_reward",
    vanishes=True,
)
def stable_clip(
    now: Evaluation,
    batch: Batch,
    *,
    low: float = 0.2,
    high: float = 0.2,
    least: Rate = 1e-3,
    most: Rate = 1e3,
    coef: float = 1.0,
) -> Tensor:
    """`max(-A r, -A clip(r, 1 - low, 1 + high))` per token with `r = exp(clip(log r, ln least, ln most))`.

    Where it differs from `ppo_clip`: a token with A < 0 whose ratio passed `most` costs at most `-A most` and has no
    gradient, where the plain surrogate is unbounded there. `dual` of `ppo_clip` does the same at 3.
    """
    ratio = log_ratio(now, batch).clamp(math.log(least), math.log(most)).exp()
    loss = (-batch.advantage * ratio).maximum(-batch.advantage * ratio.clamp(1 - low, 1 + high))
    return coef * loss


# Surrogates that weigh the ratio smoothly, where PPO's clipping has an edge.


def _by_sign(batch: Batch, positive: float, negative: float) -> Tensor:
    """`positive` where A > 0, else `negative` [b, T]."""
    return batch.advantage.new_full(batch.mask.shape, negative).masked_fill(batch.advantage > 0, positive)


@method(reads=("old_logprobs",), level="token", source="SAPO, arXiv 2511.20347; TRL 1.16: sapo", vanishes=True)
def sapo(
    now: Evaluation, batch: Batch, *, positive: Rate = 1.0, negative: Rate = 1.05, coef: float = 1.0
) -> Tensor:  # fmt: skip
    """`-A (4 / tau) sigmoid(tau (r - 1))` per token, tau `positive` where A > 0, else `negative`.

    Its gradient is that of the surrogate `-A r` times `4 s (1 - s)`, s the sigmoid: 1 where r is 1, and less the
    further r is from it, on either side. No token is silenced at an edge. The larger temperature lets go of tokens with
    A < 0 sooner, since lowering one token raises all others of the vocabulary.

    Args:
        positive, negative: temperatures.
    """
    tau = _by_sign(batch, positive, negative)
    return -coef * batch.advantage * 4 / tau * (tau * (log_ratio(now, batch).exp() - 1)).sigmoid()


@method(reads=("old_logprobs",), level="token", source="VESPO, arXiv 2602.10693; TRL 1.16: vespo", vanishes=True)
def vespo(
    now: Evaluation, batch: Batch, *, k_positive: Rate = 2.0, decay_positive: Rate = 3.0, k_negative: Rate = 3.0,
    decay_negative: Rate = 2.0, coef: float = 1.0,
) -> Tensor:  # fmt: skip
    """`-A w^k exp(decay (1 - w)) log p` per token, w = p_now / p_old of the whole completion, without gradient.

    The weight is 1 at w = 1 and largest at w = k / decay; it falls off on both sides, so that a completion that the
    policy has left, or has run after, counts little, as a whole. k and decay go by the sign of A. w is not taken to the
    power of 1 / length as in `gspo`: long completions leave 1 sooner. Each decision of an episode of several turns is a
    completion. A stopped gradient: finite differences of the value are not the gradient.

    Args:
        k_positive, k_negative: exponents of w: how fast the weight falls where the policy has left the completion.
        decay_positive, decay_negative: how fast it falls where the policy has come to prefer it.
    """
    gap = log_ratio(now, batch).detach().sum(1, keepdim=True).clamp(math.log(1e-8), 20.0)
    k, decay = _by_sign(batch, k_positive, k_negative), _by_sign(batch, decay_positive, decay_negative)
    weight = (k * gap + decay * (1 - gap.exp())).exp()
    return -coef * weight * batch.advantage * now.logprobs.masked_fill(~batch.mask, 0.0)


# Whole completions that older weights wrote and that the policy has left: nothing is gained by pushing them further.


@method(
    reads=("old_logprobs",),
    level="token",
    source="off-policy sequence masking: DeepSeek-V3.2, arXiv 2512.02556, Eq. 9; TRL 1.16: off_policy_mask_threshold",
    vanishes=True,
)
def opsm(
    now: Evaluation, batch: Batch, *, delta: Rate = 0.5, low: float = 0.2, high: float = 0.2, coef: float = 1.0
) -> Tensor:
    """`ppo_clip`, and 0 at tokens with A < 0 of completions with `mean_t log(p_old / p_now) > delta`.

    What did badly and has become unlikely already is left alone; what did well teaches however old it is. The mean is
    over the completion's tokens, in nats. p_old is what `ppo_clip` has for it: the policy that sampled, or what
    `decoupled` put in its place.

    Args:
        delta: nats per token; the report does not give it, 0.5 is TRL's example.
    """
    left = token_means(log_ratio(now, batch).detach(), batch.mask)[:, None] < -delta
    return ppo_clip(now, batch, low=low, high=high, coef=coef).masked_fill(left & (batch.advantage < 0), 0.0)


# ROVER: the policy is the value of acting at random.


@method(
    reads=("old_logprobs",),
    level="token",
    source="ROVER, arXiv 2509.24981; github.com/yuxiaooye/ROVER; the next token's value is left out",
)
def rover(now: Evaluation, batch: Batch, *, scale: Rate = 1.0, coef: float = 1.0) -> Tensor:
    """`(Q_t - A)^2` per token with `Q_t = scale log(p_now / p_old)`: log-ratios are regressed onto centred rewards.

    Where every text has one path and rewards come at the end, acting greedily on the values of a policy that acts at
    random is optimal, and a softmax over them keeps all good answers in play. The policy's logits are those values,
    counted from the policy that sampled. A is the reward less its group's mean (`grpo` with std: none) at every token.

    The published target is A plus the mean, over the whole vocabulary, of the next token's Q. A policy here gives the
    log-probability of the written token alone, so that this mean is left out. At the first update after sampling it is
    0 and the loss is the published one, with the gradient `-2 scale A grad log p`: the policy gradient. So with one
    update a step (train.num_minibatches and train.update_epochs 1) nothing is missing; with several each is drawn
    towards A itself, and comes to rest at a ratio of exp(A / scale), which no clipping does.

    Returns:
        [b, T]
    """
    return coef * (scale * log_ratio(now, batch) - batch.advantage) ** 2 * batch.mask


# Entropy kept up where it is lost: at the tokens whose advantage and log-probability go together.

CovarianceShare = Annotated[float, Field(gt=0, le=1)]
SOURCE = "arXiv 2505.22617; github.com/PRIME-RL/Entropy-Mechanism-of-RL, core_algos.py"


def covariances(now: Evaluation, batch: Batch) -> Tensor:
    """`(A_t - mean A)(log p_t - mean log p)` [b, T] without gradient, means over all tokens; 0 outside the mask."""
    factors = []
    for column in (batch.advantage, now.logprobs.detach()):
        inside = column.masked_fill(~batch.mask, 0.0)
        factors.append((inside - inside.sum() / batch.mask.sum()) * batch.mask)
    return factors[0] * factors[1]


@method(reads=("old_logprobs",), needs=("one_forward",), level="token", source=f"Clip-Cov, {SOURCE}")
def clip_cov(
    now: Evaluation, batch: Batch, *, share: CovarianceShare = 2e-4, least: float = 1.0, most: float = 5.0,
    low: float = 0.2, high: float = 0.2, coef: float = 1.0,
) -> Tensor:  # fmt: skip
    """`ppo_clip` without a few random tokens of high covariance: `max(1, floor(share N))` of those between the bounds.

    Raising a likely token that did well lowers the entropy, by as much as its covariance; these tokens are few. The
    dropped ones count as 0 and stay in the mean. Tokens that the ratio clips already are not drawn. The covariance and
    N are those of the optimizer step's tokens, so the step is forwarded at once (the published code takes what a
    micro-batch holds, so that its size changes the result). The draw hangs on the rollouts alone: a resumed run draws
    the same.

    Args:
        least, most: covariance below and above which a token is not drawn.

    Returns:
        [b, T]
    """
    loss = ppo_clip(now, batch, low=low, high=high)
    free = loss.detach() <= (-batch.advantage * log_ratio(now, batch).detach().exp())
    covariance = covariances(now, batch)
    able = batch.mask & free & (covariance > least) & (covariance < most)
    count = min(_count(share, batch), int(able.sum()))
    order = _draw(batch).to(loss.device).masked_fill(~able, -1.0).flatten()
    kept = loss.new_ones(order.shape).index_fill(0, order.topk(count).indices, 0.0)
    return coef * loss * kept.view(loss.shape)


@method(reads=("old_logprobs",), needs=("one_forward",), level="token", source=f"KL-Cov, {SOURCE}")
def kl_cov(
    now: Evaluation, batch: Batch, *, share: CovarianceShare = 2e-3, beta: Rate = 1.0, coef: float = 1.0
) -> Tensor:
    """`-A r`, unclipped, plus `beta |log r|` at the `max(1, floor(share N))` tokens of the largest covariance.

    The covariance and N are those of the optimizer step's tokens, so the step is forwarded at once. At the first update
    after sampling |log r| has no gradient: with one update a step this is the plain policy gradient. Take several
    (train.num_minibatches, train.update_epochs). The authors take share 2e-3 for a model of 7B, 2e-4 for one of 32B.

    Returns:
        [b, T]
    """
    gap = log_ratio(now, batch)
    covariance = covariances(now, batch).masked_fill(~batch.mask, float("-inf")).flatten()
    highest = covariance.topk(min(_count(share, batch), int(batch.mask.sum()))).indices
    held = gap.new_zeros(covariance.shape).index_fill(0, highest, beta).view(gap.shape)
    return coef * (-batch.advantage * gap.exp() + held * gap.abs())


def _count(share: float, batch: Batch) -> int:
    return max(1, int(share * int(batch.mask.sum())))


def _draw(batch: Batch) -> Tensor:
    """Uniform numbers [b, T] on the CPU, known from what was sampled."""
    import torch

    total = float(batch.old_logprobs.masked_fill(~batch.mask, 0.0).double().sum())
    return torch.rand(batch.mask.shape, generator=torch.Generator().manual_seed(hash(total) & 0x7FFFFFFF))


# Loss aggregation: how much each unit counts.
#
# The weights of one optimizer step sum to 1 over all its micro-batches and ranks (those of `constant` to the mean
# length over its own), so that splitting the batch differently cannot change the gradient.


@method(level="token", source="DAPO, arXiv 2503.14476; MSSR, 2512.18215")
def token_mean(mask: Tensor) -> Tensor:
    """Every token counts the same, whatever the length of its completion. mask bool [B, T] -> [B, T]."""
    return mask / mask.sum()


@method(level="token", source="GRPO, arXiv 2402.03300")
def sequence_mean(mask: Tensor) -> Tensor:
    """Every completion counts the same, shared equally among its tokens."""
    return mask / mask.sum(1, keepdim=True).clamp(min=1) / (mask.sum(1) > 0).sum()


@method(level="token", source="Dr. GRPO, arXiv 2503.20783, train_zero_math.py")
def constant(mask: Tensor, *, length: int) -> Tensor:
    """Every token counts 1 / (B length), whatever the lengths: no bias towards short completions.

    Args:
        length: the longest possible completion in Dr. GRPO, 64 of at most 128 tokens in GUI-G1 (arXiv 2505.15810).
    """
    return mask / (len(mask) * length)
