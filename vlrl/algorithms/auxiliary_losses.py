"""Losses beside the policy's: distillation, imitation, preferences, regularisers, value."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from vlrl.algorithms.policy_losses import check_one_turn, same_group, token_means
from vlrl.config import Count, Rate
from vlrl.methods import Recipe, RecipePart, log_ratio, method
from vlrl.types import Batch, Evaluation

if TYPE_CHECKING:
    from torch import Tensor


# Learning from a teacher on what the policy writes itself.


@method(gives=("regularisation",), 
    needs=("teacher",), level="token",
    source="KDRL, arXiv 2506.02208; k1: on-policy distillation, TRL 1.16: sdpo, sampled_token",
)  # fmt: skip
def distill(now: Evaluation, batch: Batch, *, kind: Literal["k1", "k2"] = "k2", coef: float = 2e-3) -> Tensor:
    """KL(policy || teacher) per token that the policy wrote, with d = log(p / p_teacher):

    * k2: `d^2 / 2`; on tokens just sampled its gradient, `d grad log p`, is that of the KL in expectation.
    * k1: `r d`, d without gradient and r the ratio to the policy that sampled: the KL as a reward of each token, which
      stays right when the policy has moved since. (`d` itself, differentiated as it is, teaches nothing.)

    0 at demonstrations, which the policy did not write. The paper's coefficient and its annealing are not verified;
    here the coefficient is constant.

    Returns:
        [b, T]
    """
    gap = (now.logprobs - batch.teacher).masked_fill(~batch.mask, 0.0).clamp(-20.0, 20.0)
    loss = 0.5 * gap**2 if kind == "k2" else log_ratio(now, batch).exp() * gap.detach()
    return _without_demonstrations(coef * loss, batch)


def _without_demonstrations(loss: Tensor, batch: Batch) -> Tensor:
    """[b, T], 0 in rows that the policy did not write."""
    return loss if batch.is_demonstration is None else loss.masked_fill(batch.is_demonstration[:, None], 0.0)


def _with_tail(logprobs: Tensor) -> Tensor:
    """[..., K + 1]: the likeliest tokens', and behind them what all others have together."""
    import torch

    kept = logprobs.clamp(min=-60.0)  # of tokens that may not be written
    rest = -torch.expm1(kept.logsumexp(-1, keepdim=True).clamp(max=-1e-7))
    return torch.cat([kept, rest.log()], -1)


@method(gives=("regularisation",),
    needs=("teacher", "candidates"), level="token",
    source="GKD, arXiv 2306.13649, equation 1 (beta); its top K with a tail: SDPO, arXiv 2601.20802; "
    "TRL 1.16: compute_topk_self_distillation_loss",
)  # fmt: skip
def generalized_jsd(
    now: Evaluation,
    batch: Batch,
    *,
    beta: Annotated[float, Field(ge=0, le=1)] = 0.5,
    top_k: Count = 64,
    coef: float = 1.0,
) -> Tensor:
    """Divergence of the teacher's law p from the policy's q at each place of what the policy wrote.

    `beta KL(p || m) + (1 - beta) KL(q || m)`, m = beta p + (1 - beta) q; 0: KL(p || q), 1: KL(q || p). Laws are over
    the `top_k` tokens that were likeliest when the text was written, and one bucket for all others; from the
    vocabulary's size on it is the whole divergence. 0 at demonstrations, which the policy did not write. What it
    wrote is not weighed by the ratio to what sampled.

    Returns:
        [b, T]
    """
    out = ~batch.mask[..., None]
    q, p = (_with_tail(law.masked_fill(out, -1.0)) for law in (now.candidates, batch.teacher_candidates))
    if beta == 0:
        loss = p.exp() * (p - q)
    elif beta == 1:
        loss = q.exp() * (q - p)
    else:
        m = (p + math.log(beta)).logaddexp(q + math.log1p(-beta))
        loss = beta * p.exp() * (p - m) + (1 - beta) * q.exp() * (q - m)
    return _without_demonstrations(coef * loss.sum(-1).masked_fill(~batch.mask, 0.0), batch)


# Imitation, weighted by advantages.


@method(
    level="token", source="imitation weighted by advantages: DigiRL, arXiv 2406.11896; AWR, 1910.00177", vanishes=True
)
def likelihood(now: Evaluation, batch: Batch, *, coef: float = 1.0) -> Tensor:
    """`-A log p` per token, without a ratio to the policy that sampled: what was right then is right still."""
    return -coef * batch.advantage * now.logprobs


# Group preference: the right completions of a prompt, together, against its wrong ones.

Cost = Annotated[float, Field(ge=0, allow_inf_nan=False)]


@method(
    needs=("group", "reference", "sequence_mean", "one_turn"),
    source="GEPO: OORL, arXiv 2505.12723; the formula is our reconstruction from its abstract",
)
def gepo(now: Evaluation, batch: Batch, *, beta: Rate = 0.1, equal: Cost = 0.1, coef: float = 1.0) -> Tensor:
    """`-log sigmoid(mean_right h - mean_wrong h) + equal var_right h` per prompt, h = beta log(p_now / p_reference).

    GEPO lets a model tell the members of a group that are equivalent to a given one from those that are not, and use
    that the former are equivalent to each other. Here right completions of a prompt are the equivalent ones. Ours are
    the means over each side (DPO's loss, where each side is one), the population variance for the equivalence, both
    numbers, and that completions are the policy's own instead of prepared ones. h is of the whole completion. Prompts
    without a right or without a wrong completion give 0.

    Args:
        equal: weight of the spread among right completions; 0: they need not be equally likely.

    Returns:
        [b, T], the prompt's loss at each token of its completions, 0 outside the mask.

    Raises:
        UserError: an episode took several turns.
    """
    check_one_turn(batch, "gepo")
    gap = (now.logprobs - batch.reference).masked_fill(~batch.mask, 0.0)
    implied = beta * gap.sum(1)
    right = batch.is_correct.to(implied.dtype)
    member = same_group(batch, implied)
    n_right, n_wrong = member @ right, member @ (1 - right)
    above = member @ (right * implied) / n_right.clamp(min=1)
    below = member @ ((1 - right) * implied) / n_wrong.clamp(min=1)
    spread = member @ (right * (implied - above) ** 2) / n_right.clamp(min=1)
    loss = (below - above).logaddexp(above.new_zeros(())) + equal * spread
    return coef * loss.where((n_right > 0) & (n_wrong > 0), 0.0)[:, None] * batch.mask


# The shortest right completion of a prompt against its longer ones.


@method(
    needs=("group", "reference", "sequence_mean", "one_turn"),
    source="DPO of long2short: Kimi k1.5, arXiv 2501.12599, section 2.4; DPO, 2305.18290",
)
def long2short_dpo(
    now: Evaluation, batch: Batch, *, beta: Rate = 0.1, longer: Rate = 1.5, coef: float = 1.0
) -> Tensor:  # fmt: skip
    """`-log sigmoid(h_shortest - h)` per completion that its prompt's shortest right one is preferred to.

    h = beta log(p / p_reference) of the whole completion. Rejected are wrong completions that are longer, and right
    ones of more than `longer` times the length, as published. All other completions, and prompts without a right one,
    give 0. The mean is over all completions, so that a prompt counts by its pairs. Of equally short ones the first is
    preferred. The paper prepares pairs with the long model; here they are the policy's own of this step. beta is ours.

    Args:
        beta: scale of the log-ratio.
        longer: length from which a right completion is rejected, as a multiple of the shortest.

    Returns:
        [b, T], the pair's loss at each token of the rejected completion, 0 outside the mask.

    Raises:
        UserError: an episode took several turns.
    """
    check_one_turn(batch, "long2short_dpo")
    implied = beta * (now.logprobs - batch.reference).masked_fill(~batch.mask, 0.0).sum(1)
    tokens, right, member = batch.mask.sum(1), batch.is_correct.to(implied.dtype), same_group(batch, implied).bool()
    longest = batch.mask.shape[1] + 1
    best = tokens.masked_fill(right == 0, longest).expand_as(member).masked_fill(~member, longest + 1).argmin(1)
    rejected = (right[best] > 0) & (tokens > tokens[best] * (1 + (longer - 1) * right))
    loss = (implied - implied[best]).logaddexp(implied.new_zeros(()))
    return coef * loss.where(rejected, 0.0)[:, None] * batch.mask


# A good step against a bad one that was taken in its place: Step-APO.


@method(
    needs=("group", "reference", "sequence_mean", "one_turn"),
    source="Step-APO: CPL, arXiv 2409.08642; github.com/keesh0410/CPL-Reasoning, train/dpo/trainer.py",
    vanishes=True,
)
def step_apo(now: Evaluation, batch: Batch, *, beta: Rate = 0.3, alpha: Cost = 1.0, coef: float = 1.0) -> Tensor:
    """`-log sigmoid(h_w - h_l - alpha (A_w - A_l))` per pair of steps w, l from one state: DPO with a margin.

    h = beta log(p / p_reference) of the step's tokens. A group holds the steps that were tried from one state
    (`plan_search`), and A is what `advantages` makes of their values Q. With `advantages: []` it is Q itself: steps
    from one state share its value V, so that `A_w - A_l = Q_w - Q_l`. Preferred is each step of A > 0 to each of
    A < 0, as released, where Q is in [-1, 1]: right more often than wrong against wrong more often than right. The
    more two steps differ in worth, the further apart their likelihoods are to be. The mean is over all steps, not over
    pairs, so that a state counts by its pairs.

    Args:
        beta: scale of the log-ratio; the released scripts' 0.3.
        alpha: weight of the difference of advantages, released as 1; 0: DPO.

    Returns:
        [b, T], the loss of a rejected step's pairs at each of its tokens, 0 elsewhere.

    Raises:
        UserError: an episode took several turns.
    """
    check_one_turn(batch, "step_apo")
    advantage = token_means(batch.advantage, batch.mask)
    implied = beta * (now.logprobs - batch.reference).masked_fill(~batch.mask, 0.0).sum(1)
    worth = implied - alpha * advantage
    lead = worth - worth[:, None]  # [rejected, preferred]
    paired = same_group(batch, worth).bool() & (advantage > 0) & (advantage < 0)[:, None]
    loss = (-lead).logaddexp(lead.new_zeros(())).where(paired, 0.0).sum(1)
    return coef * loss[:, None] * batch.mask


# What keeps a policy near another one, or open.


@method(
    gives=("regularisation",),
    reads=lambda options: ("old_logprobs",) if options["weighted"] else (),
    needs=("reference",),
    level="token",
    source="estimators: joschu.net/blog/kl-approx.html; k3: GRPO; weighted: DeepSeek-V3.2, arXiv 2512.02556, Eq. 7",
)
def kl(
    now: Evaluation, batch: Batch, *, kind: Literal["k1", "k2", "k3"] = "k3", weighted: bool = False,
    coef: float = 0.01,
) -> Tensor:  # fmt: skip
    """KL(policy || reference) per token: k1 = log p/q, k2 = (log p/q)^2 / 2, k3 = q/p - log(q/p) - 1.

    As values, k1 and k3 are unbiased. As loss terms, on tokens that the policy has just sampled, only k2 has the
    gradient of the KL itself in expectation; k1 has none at all, k3 that of KL(reference || policy). With k1 use
    `kl_in_reward`, or `weighted`.

    Args:
        weighted: times the ratio p / p_old, with its gradient: value and gradient of k1 and k3 are then the KL's own in
            expectation, also when the policy has moved since it sampled.
    """
    gap = (batch.reference - now.logprobs).masked_fill(~batch.mask, 0.0)
    estimate = {"k1": -gap, "k2": 0.5 * gap**2, "k3": gap.clamp(-20, 20).exp() - gap - 1}[kind]
    return coef * (estimate * log_ratio(now, batch).exp() if weighted else estimate)


@method(gives=("regularisation",), level="token", source="maximum-entropy bonus, arXiv 1602.01783")
def entropy(now: Evaluation, batch: Batch, *, coef: float = 0.01, target: Rate | None = None) -> Tensor:
    """Minus the entropy of the distribution at each token: a positive coefficient keeps the policy exploring.

    Args:
        target: in nats; tokens that have as much or more are left alone, so that the bonus cannot make noise of what
            is open enough. None: no bound.
    """
    return -coef * (now.entropy if target is None else now.entropy.clamp(max=target))


# What is learned from demonstrations: episodes that a part of `replay` shows.

Power = Annotated[float, Field(ge=0, allow_inf_nan=False)]


def check_demonstrations(replay: str) -> Callable[[Recipe, RecipePart], str | None]:
    """A check that there are demonstrations to learn from."""

    def check(recipe: Recipe, part: RecipePart) -> str | None:
        givers = recipe.of("replay_mixing", "rollout_strategy")
        if any("demonstrations" in giver.gives or giver.undeclared for giver in givers):
            return None
        return f"{part.label} learns from what is shown, but nothing is: add {replay} to replay"

    return check


def check_rl_plus(recipe: Recipe, part: RecipePart) -> str | None:
    """Beside it a policy gradient would take the advantages of demonstrations for those of the policy's own."""
    for other in recipe.of("losses"):
        if other.name != part.name and "regularisation" not in other.gives and not other.undeclared:
            return f"{other.label} and rl_plus both follow the advantage: leave one out"
    return check_demonstrations("demonstrate")(recipe, part)


@method(
    reads=("demonstrations",),
    check_recipe=check_demonstrations("relift"),
    level="token",
    source="supervised fine-tuning; beside RL in ReLIFT, arXiv 2506.07527, SASR, 2505.13026",
    vanishes=True,
)
def sft(now: Evaluation, batch: Batch, *, coef: float = 1.0) -> Tensor:
    """`-log p` per token of demonstrations; 0 at the policy's own episodes.

    Demonstrations have credit 0, so that other terms leave them alone; they count among the tokens of the weighing.

    Returns:
        [b, T]
    """
    return -coef * now.logprobs * _demonstration_mask(now, batch)


@method(
    reads=("old_logprobs", "demonstrations"),
    check_recipe=check_rl_plus,
    level="token",
    source="RL-PLUS, arXiv 2508.00222; github.com/YihongDong/RL-PLUS",
    vanishes=True,
)
def rl_plus(now: Evaluation, batch: Batch, *, gamma: Power = 0.5, coef: float = 1.0) -> Tensor:
    """`-A r` per token, with another ratio and advantage at demonstrations; instead of `ppo_clip`.

    * Own tokens: `r = p / p_old`, not clipped, as in the released code.
    * Demonstrations: `r = 2 p / (p_old + q)` and `A (1 - p)^gamma`, p in the latter without gradient. Nobody knows the
      law q that wrote them: it is taken to lie between the policy's and certainty, `q = (p_old + 1) / 2`. Importance
      sampling from the mixture of both laws keeps r below 4 where p / p_old has no bound. What the policy finds likely
      already counts less: it is to learn what it would not have explored.

    p_old is the policy's at the beginning of the step. Advantages of demonstrations come from `demonstrate`.

    Returns:
        [b, T]
    """
    likely = now.logprobs.masked_fill(~batch.mask, 0.0).clamp(max=0.0).exp()
    before = batch.old_logprobs.masked_fill(~batch.mask, 0.0).clamp(max=0.0).exp()
    other = 2 * likely / (before + (before + 1) / 2)
    demonstrations = _demonstration_mask(now, batch).bool()
    ratio = other.where(demonstrations, log_ratio(now, batch).exp())
    new = (1 - likely.detach()).clamp(min=0.0) ** gamma
    return -coef * batch.advantage * new.where(demonstrations, 1.0) * ratio


def _demonstration_mask(now: Evaluation, batch: Batch) -> Tensor:
    """1 at the tokens of demonstrations, else 0: [b, T]."""
    none = batch.is_demonstration is None
    return batch.mask & (batch.mask.new_zeros(()) if none else batch.is_demonstration[:, None])


# What a critic minimises. Functions of values [B] and targets [B], no terms of the policy's loss.


def clipped_squares(value: Tensor, target: Tensor, old: Tensor, clip: float | None) -> Tensor:
    """`max((V - R)^2, (V_clip - R)^2) / 2` [B], `V_clip = old + clip(V - old, -clip, clip)`; None: no clipping.

    As in the reference implementation of PPO (github.com/openai/baselines, ppo2): the larger of the two, so that a
    step that ran past the clip towards the target has no gradient left.
    """
    plain = (value - target) ** 2
    if clip is None:
        return plain / 2
    near = old + (value - old).clamp(-clip, clip)
    return plain.maximum((near - target) ** 2) / 2


def edges(like: Tensor, low: float, high: float, bins: int) -> Tensor:
    """The bins' bounds [bins + 1], evenly from low to high, in the type and place of a tensor."""
    return like.new_ones(bins + 1).cumsum(0).sub(1).mul((high - low) / bins).add(low)


def hl_gauss(target: Tensor, low: float, high: float, bins: int, sigma: float = 0.75) -> Tensor:
    """Targets [B] as distributions [B, bins]: a normal density around each, integrated over the bins.

    HL-Gauss, "Stop Regressing", arXiv 2403.03950, section 3.1 and appendix A: the share of a bin is a difference of the
    normal distribution function, over its whole in [low, high]. Trap: what the bounds cut off shifts the mean inwards,
    so they should lie several standard deviations beyond the targets. Targets outside are taken to the nearest bound.

    Args:
        sigma: standard deviation in widths of a bin; the paper's 0.75 spreads a target over about six of them.
    """
    deviation = sigma * (high - low) / bins
    centred = edges(target, low, high, bins) - target.clamp(low, high)[:, None]
    below = (centred / (2**0.5 * deviation)).erf()
    return below.diff(dim=1) / (below[:, -1:] - below[:, :1])


def expected(probability: Tensor, low: float, high: float) -> Tensor:
    """The mean [B] of distributions [B, bins], each bin by its centre."""
    bounds = edges(probability, low, high, probability.shape[1])
    return probability @ ((bounds[1:] + bounds[:-1]) / 2)
