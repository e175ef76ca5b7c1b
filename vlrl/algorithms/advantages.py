"""Advantage estimators: pure functions `(rollouts, advantage, *, options) -> advantage`, applied in the YAML's order.

The list starts from the reward of each decision, [B]. Estimators keep [B] until one works token by token, [B, T]. Those
with a state are classes. Written with tensor methods only, so that reading a configuration needs no torch.

One with `start` responses per prompt is given their rewards before the first step, by `begin(key, rewards)`; one with
`revisit(policy, episodes)` is called in each step before it estimates, under the weights that are about to learn: those
that played the episodes, where `train.max_staleness` is 0. It may put log-probabilities of theirs in the decisions'
place.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from vlrl.config import Count, Rate
from vlrl.methods import Fact, method
from vlrl.types import Rollouts, UserError

if TYPE_CHECKING:
    from torch import Tensor


# Statistics over groups: of each member's own group, for every member.


def group_means(values: Tensor, group: Tensor) -> Tensor:
    """Mean of each member's group [N], for values [N] and group numbers [N]."""
    _, index, sizes = group.unique(return_inverse=True, return_counts=True)
    sums = values.new_zeros(len(sizes)).index_add(0, index, values)
    return (sums / sizes)[index]


def group_deviations(values: Tensor, group: Tensor) -> Tensor:
    """Bessel-corrected standard deviation of each member's group [N]; exactly 0 where all members are equal."""
    _, index, sizes = group.unique(return_inverse=True, return_counts=True)
    squares = (values - group_means(values, group)) ** 2
    low = values.new_full((len(sizes),), float("inf")).scatter_reduce(0, index, values, "amin")
    high = values.new_full((len(sizes),), float("-inf")).scatter_reduce(0, index, values, "amax")
    variance = values.new_zeros(len(sizes)).index_add(0, index, squares) / (sizes - 1).clamp(min=1)
    return variance.sqrt().masked_fill(low == high, 0.0)[index]


def group_sizes(group: Tensor) -> Tensor:
    """How many members each member's group has, int64 [N]."""
    _, index, sizes = group.unique(return_inverse=True, return_counts=True)
    return sizes[index]


def group_centred(values: Tensor, group: Tensor) -> Tensor:
    """Each member [N] minus its group's mean; exactly 0 where all members are equal, whatever the mean's rounding."""
    return (values - group_means(values, group)).masked_fill(group_deviations(values, group) == 0, 0.0)


def baseline_and_scale(options: Mapping[str, Any]) -> tuple[Fact, ...]:
    """What an estimator gives that subtracts a mean and, by its option `std`, divides by a deviation."""
    return ("baseline",) if options["std"] == "none" else ("baseline", "scale")


# Sums along episodes, whose steps (tokens or turns) stand one behind the other: columns [M], a flag at each end.


def ends(episode: Tensor, mask: Tensor) -> Tensor:
    """bool [M]: which of the M units inside the mask [B, T], row by row, is its episode's last."""
    return last_of(episode[:, None].expand(mask.shape)[mask])


def returns(rewards: Tensor, last: Tensor, gamma: float) -> Tensor:
    """[M]: `G_t = r_t + gamma G_(t+1)`, with nothing behind each episode's last step."""
    total, running = [], 0.0
    for reward, end in zip(reversed(rewards.tolist()), reversed(last.tolist()), strict=True):
        running = reward + (0.0 if end else gamma * running)
        total.append(running)
    return rewards.new_tensor(total[::-1])


def last_of(episode: Tensor) -> Tensor:
    """bool [B]: which decisions are their episode's last."""
    return episode.diff(append=episode[-1:] + 1) != 0


def by_token(advantage: Tensor, rollouts: Rollouts) -> Tensor:
    """An advantage [B] or [B, T] as [B, T]."""
    return advantage[:, None] * rollouts.mask if advantage.ndim == 1 else advantage


# DGPO (difficulty-aware group policy optimisation): every prompt moves the policy as much, hard ones a little more.


@method(
    reads=("reward",),
    gives=("baseline", "scale"),
    needs=("group",),
    source="DGPO: MathForge, arXiv 2601.20614; github.com/AMAP-ML/MathForge, grpo_trainer.py",
)
def dgpo(
    rollouts: Rollouts,
    advantage: Tensor,
    *,
    temperature: Rate | None = 2.0,
    fill: bool = True,
    eps: Rate = 1e-4,
) -> Tensor:
    """`(r - mean) / (MAD + eps / G)` times a weight for hard prompts, MAD the group's mean absolute deviation.

    Divided by the standard deviation, the advantages of a group with success rate p sum to 2 G sqrt(p (1 - p)) in
    absolute value: most for prompts of middling difficulty. Divided by the MAD they sum to G for each.

    Groups of equal rewards give exactly 0. The K others are weighed by K softmax(-m / temperature) over their mean
    accuracies m; a group that is all wrong, whose rewards differ in form alone, counts as all right, as in the
    published code. With `fill` all are multiplied by the step's tokens over those of the K groups, so that
    silent groups do not shrink the step.

    Args:
        temperature: null gives all prompts the same weight.

    Returns:
        [B]
    """
    reward, number = rollouts.reward, rollouts.group
    centred, size = group_centred(reward, number), group_sizes(number).to(reward.dtype)
    balanced = centred / (group_means(centred.abs(), number) + eps / size)
    taught = group_deviations(reward, number) > 0
    if temperature is not None:
        share = group_means(rollouts.correctness, number)
        hardness = (-share.where(share > 0, 1.0) / temperature).exp() * taught
        total = (hardness / size).sum()  # over groups
        balanced = balanced * hardness * (taught / size).sum() / total.where(total > 0, 1.0)
    scaled = balanced[rollouts.episode]
    tokens = rollouts.mask[taught[rollouts.episode]].sum()
    return scaled * (rollouts.mask.sum() / tokens.clamp(min=1)) if fill else scaled


# A completion against the others of its prompt.


@method(
    gives=baseline_and_scale,
    reads=("reward",),
    needs=("group",),
    source="GRPO, arXiv 2402.03300; Dr. GRPO (std: none), 2503.20783; Lite PPO (std: batch)",
)
def grpo(
    rollouts: Rollouts, advantage: Tensor, *, std: Literal["group", "batch", "none"] = "group", eps: float = 1e-6
) -> Tensor:
    """Reward minus the mean of its group, over the standard deviation (ddof 1) of the group or of the whole batch.

    A group whose rewards are all equal gives exactly 0.

    Returns:
        [B]
    """
    reward = rollouts.reward
    deviation, means = group_deviations(reward, rollouts.group), group_means(reward, rollouts.group)
    whole = reward.new_zeros(len(reward), dtype=rollouts.group.dtype)
    scale = {"group": deviation, "batch": group_deviations(reward, whole), "none": 0 * deviation + 1 - eps}[std]
    # Rounding of the mean must not turn into an advantage where there is nothing to compare.
    centred = (reward - means).masked_fill(deviation == 0, 0.0)
    return (centred / (scale + eps))[rollouts.episode]


# A completion against the mean of the others of its prompt.


@method(
    reads=("reward",),
    gives=("baseline",),
    needs=("group",),
    source="RLOO, arXiv 2402.14740; the estimator: Kool et al. 2019, Buy 4 REINFORCE Samples",
)
def leave_one_out(rollouts: Rollouts, advantage: Tensor) -> Tensor:
    """`A_i = r_i - mean of the other G - 1 rewards`, which is G / (G - 1) times the reward minus the group's mean.

    The baseline does not depend on the completion itself, so the policy gradient has no bias. The paper's KL is a k1
    penalty in the reward, here a loss term. A group of one, or of equal rewards, gives exactly 0.

    Returns:
        [B]
    """
    size = group_sizes(rollouts.group).to(rollouts.reward.dtype)
    return (group_centred(rollouts.reward, rollouts.group) * size / (size - 1).clamp(min=1))[rollouts.episode]


# MaxRL: the likelihood of being right instead of its probability.


@method(reads=("reward",), gives=("baseline", "scale"), needs=("group",), source="MaxRL, arXiv 2602.02710")
def max_rl(rollouts: Rollouts, advantage: Tensor) -> Tensor:
    """`(r - mean) / mean` over the group: for rewards of 0 and 1, `1 / p - 1` where right and -1 where wrong.

    In expectation the gradient of `sum_(k <= G) pass@k / k`, which tends to that of log p as the group grows: prompts
    that are seldom solved count by 1 / p, where `grpo` has 1 / sqrt(p (1 - p)). Rewards are not negative; a group whose
    mean is 0 or less, or whose rewards are all equal, gives exactly 0.

    Returns:
        [B]
    """
    mean = group_means(rollouts.reward, rollouts.group)
    centred = group_centred(rollouts.reward, rollouts.group).masked_fill(mean <= 0, 0.0)
    return (centred / mean.masked_fill(mean <= 0, 1.0))[rollouts.episode]


# NGRPO (negative-enhanced GRPO): groups that are all wrong teach as well.


@method(
    reads=("reward",),
    gives=("baseline",),
    needs=("group",),
    source="NGRPO, arXiv 2509.18851; github.com/nangongrui-ngr/NGRPO, core_algos.py",
)
def ngrpo(rollouts: Rollouts, advantage: Tensor, *, best: float = 1.0, virtual: Count = 1, eps: Rate = 1e-6) -> Tensor:
    """GRPO's advantage, with mean and deviation (ddof 1) of the group and of `virtual` completions that earn `best`.

    The virtual ones are not trained on. A group that is all wrong becomes negative (-0.447 for 4 zeros) instead of
    silent, one whose rewards are all `best` stays exactly 0. Advantages no longer sum to 0 over a group: their mean is
    at most 0, so a policy with nothing right is pushed away from all it wrote. The published run therefore clips
    tighter (0.16, 0.24).

    Args:
        best: the largest reward that a completion can earn; rewards above it are refused.

    Returns:
        [B]

    Raises:
        UserError: a reward is above `best`.
    """
    reward, size = rollouts.reward, group_sizes(rollouts.group).to(rollouts.reward.dtype)
    highest = float(reward.max())
    if highest > best + 1e-6:  # float32 sums of parts
        raise UserError(f"advantages: ngrpo: a reward of {highest:g} is above best = {best:g}: set best to the largest")
    gap = reward - best  # of the virtual ones 0
    mean = group_means(gap, rollouts.group) * size / (size + virtual)
    squares = group_means((gap - mean) ** 2, rollouts.group) * size + virtual * mean**2
    deviation = (squares / (size + virtual - 1)).sqrt()
    return ((gap - mean) / (deviation + eps))[rollouts.episode]


# Observe-R1: prompts of middling difficulty count most.


@method(needs=("group",), source="Observe-R1, arXiv 2505.12432; github.com/zrguo/Observe-R1, experience_maker.py")
def middling(rollouts: Rollouts, advantage: Tensor, *, sigma: Rate = 1.8) -> Tensor:
    """Times `4 sigma d (1 - d)`, d the share of the group's completions that are right: sigma at a half, 0 at the ends.

    Comes after `grpo`. Right is what the task's accuracy counts. The published code takes d as the mean of the rewards
    cut to whole numbers, which is the same for its rewards of accuracy + 0.5 form + 0.2 brevity.

    Returns:
        [B]
    """
    share = group_means(rollouts.is_correct.to(rollouts.reward.dtype), rollouts.group)
    return advantage * (4 * sigma * share * (1 - share))[rollouts.episode]


# REINFORCE++ (arXiv 2501.03262): a KL penalty in each token's reward, and advantages on one scale over the batch.


@method(needs=("reference",), level="token", source="REINFORCE++, arXiv 2501.03262; OpenRLHF, verl")
def kl_return(rollouts: Rollouts, advantage: Tensor, *, beta: float = 0.001, gamma: float = 1.0) -> Tensor:
    """Return of each token: the outcome at the episode's last token, `-beta (log p - log q)` (k1) at every one.

    `G_t = r_t + gamma G_(t+1)` over all tokens of an episode, turn after turn. The outcome is what stands in
    `advantage` for the episode's last decision: the reward, or what an earlier estimator has made of it. p is the
    behaviour policy, q the reference. Published for one turn, with beta 0.001 to 0.01 and gamma 1; turns: ours.
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


@method(
    reads=("whole_step",),
    gives=("baseline", "scale"),
    level="token",
    source="REINFORCE++, arXiv 2501.03262; verl: masked_whiten",
)
def whiten(rollouts: Rollouts, advantage: Tensor, *, eps: float = 1e-8) -> Tensor:
    """Mean 0 and variance 1 over all tokens of the step: `(A - mean) / sqrt(var + eps)`, Bessel-corrected.

    Long completions weigh more than in `batch_norm`, which counts decisions. Equal advantages give 0. After
    `{name: grpo, std: none}` this is REINFORCE++-baseline.
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


# Advantages on one scale, and how much each sample counts.


@method(
    reads=("whole_step",),
    gives=("baseline", "scale"),
    source="MSSR, arXiv 2512.18215, released code: whitening over all sequences of the step",
)
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


# No advantages: for runs in which something else than the gradient learns.


@method(source="gradient-free training, as in ESSA, arXiv 2507.04453")
def silent(rollouts: Rollouts, advantage: Tensor) -> Tensor:
    """0 for all, so that a surrogate loss moves nothing: the step is evaluated and logged, and left out of the update.

    Returns:
        [B]
    """
    return advantage.new_zeros(advantage.shape)


# StableReinforce (R1-Reward, arXiv 2505.02835): advantages on one scale, outliers left out.


@method(
    reads=("whole_step",),
    gives=("baseline", "scale"),
    source="StableReinforce: R1-Reward, arXiv 2505.02835; github.com/yfzhang114/r1_reward",
)
def sigma_filter(
    rollouts: Rollouts, advantage: Tensor, *, threshold: Rate = 3.0, bounds: Literal["paper", "released"] = "paper"
) -> Tensor:
    """`z = (A - mean) / std` over the step's decisions (biased), and 0 where |z| > threshold.

    `released` is the published code: it asks whether z lies within the *raw* mean +- threshold, and drops |z| > 10.
    Equal advantages give 0. Trap: |z| is at most sqrt(B - 1), so below 11 decisions nothing exceeds 3.

    Returns:
        [B]
    """
    if advantage.ndim != 1:
        raise ValueError("sigma_filter works on one value per decision: place it before token-level shaping")
    mean = advantage.mean()
    centred = (advantage - mean) * (advantage.max() > advantage.min())  # rounding of the mean is no advantage
    z = centred / (centred**2).mean().sqrt().clamp(min=1e-12)
    centre = mean if bounds == "released" else 0 * mean
    kept = (z - centre).abs() <= threshold
    return z * (kept if bounds == "paper" else kept & (z.abs() <= 10))


# Advantages token by token.


@method(
    gives=("token_shaping",),
    level="token",
    source="MSSR, arXiv 2512.18215; Reasoning with Exploration, 2506.14758 (alpha 0.4, kappa 2)",
)
def entropy_shaping(
    rollouts: Rollouts,
    advantage: Tensor,
    *,
    alpha: float = 0.4,
    kappa: float = 2.0,
    entropy: Literal["sampled_plogp", "full"] = "sampled_plogp",
) -> Tensor:
    """Adds `min(alpha * H_t, |A_t| / kappa)` to each token, without gradient; never flips a sign for kappa >= 1.

    Args:
        entropy: H_t is `-p log p` of the sampled token (what the released code measures, at most 1/e) or the full
            entropy of the sampling distribution (what the paper writes).

    Returns:
        [B, T]
    """
    advantage = by_token(advantage, rollouts)
    logprobs = rollouts.logprobs.masked_fill(~rollouts.mask, 0.0)
    measure = (-logprobs.exp() * logprobs if entropy == "sampled_plogp" else rollouts.entropy).to(advantage.dtype)
    return advantage + (alpha * measure).minimum(advantage.abs() / kappa) * rollouts.mask


EntropyShare = Annotated[float, Field(gt=0, le=1)]


@method(
    reads=("whole_step",),
    level="token",
    source="beyond the 80/20 rule, arXiv 2506.01939; TRL 1.16: top_entropy_quantile",
)
def top_entropy(rollouts: Rollouts, advantage: Tensor, *, share: EntropyShare = 0.2) -> Tensor:
    """Keeps the advantage of the `share` of the step's tokens that have the highest entropy; 0 at all others.

    Most tokens follow from what stands before them; the few where the policy could go several ways decide an answer.
    Those left out stay in the mean of the loss, as published. The entropy is that of the policy that sampled, and the
    quantile is of the step, so that micro-batches change nothing (published: the policy's as it learns, in a
    micro-batch). Tokens that tie with the last one are kept.

    Args:
        share: of the tokens that learn.

    Returns:
        [B, T]
    """
    inside = rollouts.entropy[rollouts.mask]
    if not len(inside):
        return by_token(advantage, rollouts)
    least = inside.kthvalue(1 + math.ceil((1 - share) * (len(inside) - 1) - 1e-9)).values
    return by_token(advantage, rollouts).where((rollouts.entropy >= least) & rollouts.mask, 0.0)


# A-GRAE (asymmetric group-relative advantage): easy prompts first, hard ones later; little reward for being right.


@method(
    reads=("reward",),
    gives=("baseline", "scale"),
    needs=("group",),
    source="A-GRAE, arXiv 2602.05548; github.com/Yu7-code/A-GRAE, verl/trainer/ppo/core_algos.py",
)
def a_grae(rollouts: Rollouts, advantage: Tensor, *, alpha: Rate = 1.0, best: Rate = 1.0, eps: Rate = 1e-6) -> Tensor:
    """GRPO's advantage A0, weighed by how hard its prompt is and how far the policy has come.

    With m the group's mean reward as a share of `best` and M the mean of m over the step's groups:

        A = (1 - M) A0 / (2 (1 - sqrt(m) + eps)) + M A0 / (2 (sqrt(m) + eps)), times min(1, M / alpha) where A > 0.

    So a policy that solves little (M near 0) learns most from prompts that it nearly solves, a good one from those
    that it seldom solves, and right answers count less than wrong ones until M reaches alpha. Groups of equal rewards
    give exactly 0. Positive and negative advantages of a group no longer cancel.

    Args:
        alpha: 1 for mathematics, 0.5 for geometry and medicine in the published runs.
        best: the largest reward; m is clamped to [0, 1].

    Returns:
        [B]
    """
    plain = grpo(rollouts, advantage, eps=eps)
    share = (group_means(rollouts.reward, rollouts.group) / best).clamp(0, 1)
    size = group_sizes(rollouts.group).to(share.dtype)
    overall = (share / size).sum() / (1 / size).sum()
    root = share.sqrt()[rollouts.episode]
    mixed = plain * ((1 - overall) / (2 * (1 - root + eps)) + overall / (2 * (root + eps)))
    return mixed * (overall / alpha).clamp(max=1.0).where(mixed > 0, 1.0)
