"""Reward shaping."""

from __future__ import annotations

import functools
import math
import re
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import Field

from vlrl.config import Count, Rate, Section
from vlrl.methods import Recipe, RecipePart, RewardShaping, method
from vlrl.types import Rollouts, UserError

if TYPE_CHECKING:
    from torch import Tensor


MixShare = Annotated[float, Field(ge=0, le=1)]
Decay = Annotated[float, Field(ge=0, allow_inf_nan=False)]


# What shapings read of a step's episodes.


@method(source="OpenVLThinker, arXiv 2503.17352: accuracy alone is paid")
def correctness(rollouts: Rollouts) -> Tensor:
    """Pays how correct an answer is, as the task's accuracy counts it, and nothing else, whatever the task's weights.

    Returns:
        [N]
    """
    return rollouts.correctness


def lengths(rollouts: Rollouts) -> Tensor:
    """int64 [N]: units that the policy wrote in all turns of each episode."""
    return rollouts.group.new_zeros(len(rollouts.reward)).index_add(0, rollouts.episode, rollouts.mask.sum(1))


def members(rollouts: Rollouts) -> list[Tensor]:
    """Positions of each group's episodes."""
    return [(rollouts.group == number).nonzero().flatten() for number in rollouts.group.unique()]


def pays_above(least: Callable[[Mapping[str, Any]], int]) -> Callable[[Recipe, RecipePart], str | None]:
    """A check that completions of one turn can be longer than `least(options)` tokens, from where a term treats them
    differently: else all would be paid, or punished, alike.
    """

    def check(recipe: Recipe, part: RecipePart) -> str | None:
        tokens, most = least(part.options), recipe.config.policy.max_tokens
        if recipe.takes_turns or tokens < most:
            return None
        return (
            f"{part.label} begins at {tokens} tokens, but completions end at policy.max_tokens = {most}: "
            "all would be treated alike; lower it"
        )

    return check


# The KL to the reference as part of the reward.


@method(needs=("reference",), source="RLOO, arXiv 2402.14740; estimators: joschu.net/blog/kl-approx.html")
def kl_in_reward(rollouts: Rollouts, *, kind: Literal["k1", "k2", "k3"] = "k1", coef: Rate = 1e-3) -> Tensor:
    """Takes `coef` times the KL(policy || reference) of each episode, summed over its tokens, from its reward.

    Per token, for policy p and reference q: k1 = log p/q, k2 = (log p/q)^2 / 2, k3 = q/p - log(q/p) - 1. p is the
    behaviour policy. k1 is unbiased and may be negative; of it alone the policy gradient is that of the KL. In the loss
    (`kl`) it is the other way round: there k1 has no gradient in expectation, k2 has the KL's.

    Returns:
        [N]
    """
    gap = (rollouts.reference - rollouts.logprobs).masked_fill(~rollouts.mask, 0.0).to(rollouts.reward.dtype)
    per_token = {"k1": -gap, "k2": 0.5 * gap**2, "k3": gap.clamp(-20, 20).exp() - gap - 1}[kind]
    total = rollouts.reward.new_zeros(len(rollouts.reward)).index_add(0, rollouts.episode, per_token.sum(1))
    return rollouts.reward - coef * total


# Small rewards that count only where the large one was earned.


@method(source="G-RA, gated reward accumulation: arXiv 2508.10548 (abstract); the form is a reconstruction")
def g_ra(rollouts: Rollouts, *, high: str, threshold: float, weight: Rate = 1.0) -> Tensor:
    """The whole reward where the part `high` reaches `threshold`, else that part alone.

    Published: immediate rewards are accumulated only where the long-term reward meets a threshold, so that a policy
    cannot live on them. Ours: immediate rewards are all other parts of the task's reward, of the whole episode; the
    paper's several levels are several of these in a row, the lowest first.

    Args:
        high: name of the part, as `reward/NAME` in the log.
        threshold: least value of it, without its weight.
        weight: its weight in the task's reward.

    Returns:
        [N]

    Raises:
        UserError: the task's reward has no such part.
    """
    part = part_of(rollouts, high, "g_ra")
    return rollouts.reward.where(part >= threshold, weight * part)


# Several judges of the same thing: the mean of them, and the one that likes the answer least.


@method(source="reward-robust RLHF, arXiv 2409.15360: J = share J_perform + (1 - share) J_robust")
def robust(
    rollouts: Rollouts, *, judges: Annotated[tuple[str, ...], Field(min_length=2)], share: MixShare = 0.5,
    amount: Rate = 1.0,
) -> Tensor:  # fmt: skip
    """Takes `(1 - share) amount (mean - min)` over the judges from the reward.

    Where the task pays `amount` times the mean of the judges' parts, what is left is `amount (share mean + (1 - share)
    min)`: an answer must please them all, so that what one of them overrates is not worth learning. With share 1 that
    is the mean, with 0 the worst case. Published: the mix, with an ensemble of reward models as the uncertainty set and
    their nominal member for the mean. Ours: the mean over judges, and share.

    Args:
        judges: names of the parts, as `reward/NAME` in the log, on one scale.
        share: how much the mean counts beside the smallest.
        amount: what the task pays for the mean of the parts.

    Returns:
        [N]

    Raises:
        UserError: the task's reward has no such part.
    """
    known = [part_of(rollouts, name, "robust") for name in judges]
    lowest = functools.reduce(lambda low, part: low.minimum(part), known)
    return rollouts.reward - (1 - share) * amount * (sum(known) / len(known) - lowest)


def part_of(rollouts: Rollouts, name: str, shaping: str) -> Tensor:
    """A part of the reward [N], in its type; UserError where there is none of the name."""
    if name not in rollouts.parts:
        known = ", ".join(sorted(rollouts.parts))
        raise UserError(f"reward_shaping: {shaping}: the reward has no part {name!r} (one of: {known})")
    return rollouts.parts[name].to(rollouts.reward.dtype)


# When to think is learned: right answers without thoughts pay most, as long as both ways are tried.

THOUGHT = re.compile(r"<think>(.*?)</think>", re.DOTALL)


@method(
    reads=("truth",),
    source="AutoThink, arXiv 2505.10832; github.com/TU2021/AutoThink, main_ppo.py: _reweight_rewards",
)
def auto_think(
    rollouts: Rollouts, *, balance: MixShare = 0.5, slope: Rate = 2.0, right_length: Decay = 0.0,
    wrong_length: Decay = 0.0,
) -> Tensor:  # fmt: skip
    """Right: 2 without thoughts, 1 with; wrong: -1 without, 0 with. It replaces the reward.

    Stage 1 keeps both ways alive (`balance` 0.5): where more than that share of the step's episodes think, their
    rewards go to 0 (right) and -1 (wrong), those of episodes without thoughts to 1 and -2 where they are too many, by
    `slope` times the excess, at most all the way. Stage 2 pays plainly (balance 1). Stage 3 (balance 1, both lengths
    0.05) adds `exp(-a z) - 1` to right episodes and takes `exp(-a z) - 1` from wrong ones, z the length in deviations
    from the mean of the group's right, or wrong, ones: short where right, not short where wrong.
    Thoughts are text inside `<think> </think>` that is more than dots. The paper's prompt ends in an ellipsis, after
    which its model may think or not; here the model must have learned both ways (task.thinking: true, examples of
    both).

    Args:
        balance: largest share of one way that is not held back; 1: none is.
        slope: how fast it is held back beyond.
        right_length, wrong_length: how much lengths count; 0: not.

    Returns:
        [N]
    """
    reward, right, tokens = rollouts.reward, rollouts.is_correct, lengths(rollouts).to(rollouts.reward.dtype)
    thinks = right.new_tensor([bool("".join(THOUGHT.findall(text)).strip(" .\n")) for text in rollouts.texts])
    paid = (1 + (~thinks).to(reward.dtype)).where(right, -(~thinks).to(reward.dtype))
    for side, decay in ((right, right_length), (~right, wrong_length)):
        for chosen in members(rollouts):
            alike = chosen[side[chosen]]
            if len(alike) > 1 and decay:
                z = (tokens[alike] - tokens[alike].mean()) / tokens[alike].std().clamp(min=1e-6)
                paid[alike] += ((-decay * z).exp() - 1) * (1 if side is right else -1)
    for way, (good, bad) in ((thinks, (0.0, -1.0)), (~thinks, (1.0, -2.0))):
        excess = min(max(slope * (float(way.double().mean()) - balance), 0.0), 1.0)
        held = reward.new_full(reward.shape, bad).masked_fill(right, good)
        paid = ((1 - excess) * paid + excess * held).where(way, paid)
    return paid


# RLSP: trying is paid a little, being right is paid well.


@method(source="RLSP, arXiv 2502.06773: its simplest exploration reward, more intermediate steps; the form is ours")
def exploration(rollouts: Rollouts, *, most: Count, share: MixShare = 0.2) -> Tensor:
    """`(1 - share) r + share min(1, tokens / most)`: longer thoughts are paid, whether the answer is right or not.

    Published: a mix of an outcome verifier and an exploration reward that does not depend on being right, of which the
    simplest pays for more steps, so that backtracking and verification can emerge. Linear in tokens up to `most`, and
    share, are ours. Trap: alone it pays for filling; watch the accuracy beside the reward.

    Args:
        most: tokens from which no more is paid.
        share: how much exploration counts.

    Returns:
        [N]
    """
    effort = (lengths(rollouts).to(rollouts.reward.dtype) / most).clamp(max=1.0)
    return (1 - share) * rollouts.reward + share * effort


# Rewards of a verifier that errs at known rates (arXiv 2510.00915; formulas from a summary of it).

ErrorRate = Annotated[float, Field(ge=0, lt=0.5)]


def check_correction(recipe: Recipe, part: RecipePart) -> str | None:
    """One scale and shift for all rewards does nothing before an estimator that removes both."""
    estimators = recipe.of("advantages")
    undone = next((e.name for e in estimators if "scale" in e.gives), None)
    if undone is None or any("prompt_values" in e.gives for e in estimators):
        return None
    return (
        f"{part.label} has no effect, {undone} takes it out again: "
        "use {name: grpo, std: none}, leave_one_out or beta_tracker without it"
    )


def check_shift(recipe: Recipe, part: RecipePart) -> str | None:
    """One shift for all rewards does nothing before an estimator that subtracts a mean of them."""
    undone = next((e.name for e in recipe.of("advantages") if "baseline" in e.gives), None)
    return f"{part.label} has no effect, {undone} takes it out again: set advantages: []" if undone else None


@method(check_recipe=check_correction, source="noisy verifier, backward correction: arXiv 2510.00915")
def noise_backward(rollouts: Rollouts, *, false_positive: ErrorRate, false_negative: ErrorRate) -> Tensor:
    """`(r - p) / (1 - p - n)`: its expectation over the verifier's errors is the true reward, for both kinds of answer.

    p is the share of wrong answers that it takes for right, n of right ones that it takes for wrong; r is 0 or 1. One
    scale and shift for all, so an estimator that standardises takes it out again: recipes with both are refused.

    Returns:
        [N]
    """
    return (rollouts.reward - false_positive) / (1 - false_positive - false_negative)


@method(check_recipe=check_shift, source="noisy verifier, forward correction: arXiv 2510.00915")
def noise_forward(rollouts: Rollouts, *, false_negative: ErrorRate) -> Tensor:
    """`r - (1 - n)`: n for what the verifier took for right, n - 1 else; the weight of the policy gradient itself.

    The rate of false negatives is enough. Use it with `advantages: []`: any baseline takes the shift out again, and
    such recipes are refused. The paper estimates n while it trains, with a judge to whom wrong answers appeal.

    Returns:
        [N]
    """
    return rollouts.reward - (1 - false_negative)


# Observe-R1: a bonus for the shortest right completion.


@method(
    check_recipe=pays_above(lambda options: options["longer_than"]),
    needs=("group",),
    source="Observe-R1, arXiv 2505.12432; github.com/zrguo/Observe-R1, experience_maker.py",
)
def shortest_bonus(rollouts: Rollouts, *, bonus: float = 0.2, longer_than: int = 100) -> Tensor:
    """Adds `bonus` to the shortest right completion of each group, if it has more than `longer_than` tokens.

    Below that, brevity is no longer paid. Of equally short ones the first is paid. Lengths are those of the whole
    episode; right is what the task's accuracy counts.

    Returns:
        [N]
    """
    tokens, solved, shaped = lengths(rollouts), rollouts.is_correct, rollouts.reward.clone()
    for chosen in members(rollouts):
        able = chosen[solved[chosen]]
        if len(able):
            first = able[tokens[able].argmin()]
            shaped[first] += bonus * (tokens[first] > longer_than)
    return shaped


# Rewards in stages: what is harder counts once what is easier was met.


class RewardStage(Section):
    part: str  # of the reward, as `reward/NAME` in the log
    weight: float = 1.0
    met: float = 1.0  # least value at which the next stage counts
    begin: Annotated[int, Field(ge=0)] = 0  # training steps before which this stage does not count


@method(source="PRS, progressive reward shaping: arXiv 2512.07478 (abstract); the form is a reconstruction")
class Prs(RewardShaping):
    """`R = sum_k w_k p_k g_k`, g_k = 1 where the parts of all earlier stages reach what `met` asks of them, else 0.

    The parts p of the task's reward in stages, the easiest first: an answer that cannot be read earns nothing for what
    stands in it, however right, so that each stage is learned before the next one pays; and nobody can live on a later
    part without the earlier ones. What is no stage does not count. With `begin` a stage enters later in the run.
    `prs/NAME` in the log is the share of the episodes that met a stage and all before it.

    Published: stages, well-formed tool calls first, then right answers, then their quality, by a length-aware BLEU for
    short answers and a judge's score for long ones (`judged`, where `arena`, `polar` or `grm` is among `process`). The
    gates' form, thresholds, weights and `begin` are ours.

    Args:
        stages: {part, weight, met, begin} each, in order.

    Raises:
        UserError: the reward has no such part.
    """

    def __init__(self, *, stages: Annotated[list[RewardStage], Field(min_length=1)]):
        self.stages = stages

    def __call__(self, rollouts: Rollouts) -> Tensor:
        """-> [N]"""
        total, passed = 0 * rollouts.reward, rollouts.reward == rollouts.reward
        self.metrics = {}
        for stage in self.stages:
            part = part_of(rollouts, stage.part, "prs")
            if rollouts.step < stage.begin:
                continue
            total = total + stage.weight * part.where(passed, 0.0)
            passed = passed & (part >= stage.met)
            self.metrics[f"prs/{stage.part}"] = float(passed.double().mean())
        return total


prs = Prs


# Rewards without a true answer, from what a prompt's completions agree on: test-time reinforcement learning.

Part = Annotated[float, Field(gt=0, le=1)]
Share = Annotated[float, Field(ge=0, le=1)]
Vote = tuple[str, float]  # an answer and its weight; "": none


def winner(votes: Sequence[Vote]) -> str:
    """The answer of the largest weight; of equal ones the first in alphabetical order; "" where there is none."""
    weight: dict[str, float] = {}
    for answer, w in votes:
        if answer:
            weight[answer] = weight.get(answer, 0.0) + w
    return min(weight, key=lambda answer: (-round(weight[answer], 9), answer), default="")


def agreed(answers: Sequence[str], labels: Sequence[str]) -> list[float]:
    """1 for each answer that is its label, else 0."""
    return [float(bool(answer) and answer == label) for answer, label in zip(answers, labels, strict=True)]


@method(gives=("reward",), needs=("group",), source="TTRL, arXiv 2504.16084")
class Ttrl(RewardShaping):
    """1 for completions whose answer is that of the group's majority, else 0. The true answer is not read.

    Answers count as equal where they are, as parsed: fit for choices, classes, counts, cells of a grid and short words.
    It replaces the reward: what stands before it in the list has no effect. The paper votes over 64 completions and
    trains 32 of them; here a group is both.

    Returns:
        [N]
    """

    def __init__(self):
        self.metrics: dict[str, float] = {}

    def __call__(self, rollouts: Rollouts) -> Tensor:
        answers = rollouts.answers or ("",) * len(rollouts.reward)
        reward = rollouts.reward.new_zeros(len(answers))
        for chosen in members(rollouts):
            own = [answers[i] for i in chosen.tolist()]
            reward[chosen] = reward.new_tensor(agreed(own, [winner([(a, 1.0) for a in own])] * len(own)))
        self.metrics = {"ttrl/agreement": float(reward.mean())}
        return reward


ttrl = Ttrl


@method(
    gives=("reward",),
    needs=("group",),
    source="SCOPE, arXiv 2512.15146; github.com/szu-tera/SCOPE; the confidence is ours",
)
class Scope(RewardShaping):
    """1 for completions whose answer is the pseudo-label of their subgroup, else 0. The true answer is not read.

    A group is divided, in its order, into subgroups of one size. Each draws `votes` of the group's completions and
    takes the answer of the largest total confidence as its label. Of the sizes 1, 2, 4, ... and the whole group, one
    is chosen for the step: from those on the Pareto front of the mean reward r and of the mean number d of different
    labels a prompt, both scaled to 0 ... 1 on the front, the one with the smallest
    sqrt(lam (1 - r)^2 + (1 - lam) (1 - d)^2), of equal ones the smaller.

    A completion's confidence is exp of the mean log-probability of what it sampled, averaged over each step of it and
    then over its steps. The paper takes minus the mean log-probability of the likeliest tokens, which sampling does not
    keep, and lines as steps; here a step is a turn. It replaces the reward, as `ttrl` does.

    Args:
        votes: share of the group that a subgroup hears, at least one (32 of 64).
        lam: how much rewards count, beside different labels.
        seed: of the draws, which hang on it, the step and the sample alone.

    Returns:
        [N]
    """

    def __init__(self, *, votes: Part = 0.5, lam: Share = 0.7, seed: int = 0):
        self.votes, self.lam, self.seed = votes, lam, seed

    def __call__(self, rollouts: Rollouts) -> Tensor:
        answers = rollouts.answers or ("",) * len(rollouts.reward)
        sure, groups = confidence(rollouts).tolist(), [chosen.tolist() for chosen in members(rollouts)]
        sizes = {min(2**k, max(map(len, groups))) for k in range(max(map(len, groups)).bit_length() + 1)}
        labels_by_size = {size: self._labels(rollouts, answers, sure, groups, size) for size in sorted(sizes)}
        rated = {size: _rated(answers, labels, groups) for size, labels in labels_by_size.items()}
        size = chosen_size(rated, self.lam)
        self.metrics = {"scope/size": float(size), "scope/agreement": rated[size][0], "scope/labels": rated[size][1]}
        return rollouts.reward.new_tensor(agreed(answers, labels_by_size[size]))

    def _labels(
        self, rollouts: Rollouts, answers: Sequence[str], sure: Sequence[float], groups: Sequence[list[int]], size: int
    ) -> list[str]:
        """[N], each completion's label if subgroups have this size."""
        labels = [""] * len(answers)
        for group in groups:
            name = zlib.crc32(rollouts.sample_ids[group[0]].encode())
            rng = np.random.default_rng([self.seed, rollouts.step, name, size])
            for start in range(0, len(group), size):
                voters = rng.permutation(group)[: max(1, round(self.votes * len(group)))].tolist()
                label = winner([(answers[i], sure[i]) for i in voters])
                for i in group[start : start + size]:
                    labels[i] = label
        return labels


scope = Scope


def confidence(rollouts: Rollouts) -> Tensor:
    """Of each episode, in (0, 1]: exp of the mean over its decisions of their units' mean log-probability. [N]"""
    mask = rollouts.mask
    each = (rollouts.logprobs * mask).sum(1) / mask.sum(1).clamp(min=1)
    total = rollouts.reward.new_zeros(len(rollouts.reward)).index_add(0, rollouts.episode, each.to(rollouts.reward))
    counts = rollouts.reward.new_zeros(len(rollouts.reward)).index_add(0, rollouts.episode, mask.any(1).to(total))
    return (total / counts.clamp(min=1)).exp()


def chosen_size(rated: Mapping[int, tuple[float, float]], lam: float) -> int:
    """The size of subgroups: of those that no other beats in reward and labels, the nearest to the best of both."""
    front = {
        size: own for size, own in rated.items()
        if not any(o != own and o[0] >= own[0] and o[1] >= own[1] for o in rated.values())
    }  # fmt: skip
    low, high = (np.array([pick(column) for column in zip(*front.values(), strict=True)]) for pick in (min, max))
    short = {size: 1 - (np.array(own) - low) / (high - low + 1e-8) for size, own in front.items()}
    return min(short, key=lambda size: (round(lam * short[size][0] ** 2 + (1 - lam) * short[size][1] ** 2, 9), size))


def _rated(answers: Sequence[str], labels: Sequence[str], groups: Sequence[list[int]]) -> tuple[float, float]:
    """The mean reward, and the mean number of different labels a group."""
    rewards = agreed(answers, labels)
    kinds = [len({labels[i] for i in group}) for group in groups]
    return sum(rewards) / len(rewards), sum(kinds) / len(kinds)


# Trust-GRPO (SophiaVL-R1): a judge's reward for the thinking, as far as it agrees with the answers.


@method(needs=("group",), source="Trust-GRPO: SophiaVL-R1, arXiv 2505.17018; github.com/kxfan2002/SophiaVL-R1")
def trust(
    rollouts: Rollouts, *, thinking: str, amount: float = 0.3, period: Rate = 500.0, least: float = 0.0
) -> Tensor:
    """Adds `amount exp(-step / period) gamma t` to each reward, t the part of the score that judges the thinking.

    gamma, per group, is 1 where the right answers' thinking is judged at least as good on average as the wrong ones',
    else exp of the difference, below 1: the judge contradicts the answers and is believed less. An answer counts as the
    task's accuracy does, in [0, 1], and is right from 0.5 on; without right ones, or wrong ones, gamma is 1. A group
    whose answers are all at least 0.9 or all at most 0.1 gains nothing. Give the thinking a weight of 0 in
    `task.weights`, or it counts twice.

    Args:
        thinking: the part that judges the thinking, in [0, 1].
        period: steps until the term has fallen to 1 / e; 500 in the class, 12000 in the published run.
        least: thinking of answers below it counts as 0. The published code has 0.2, with which answers of 0 and 1
            never lower gamma.

    Returns:
        [N]

    Raises:
        UserError: the task's score has no such part.
    """
    answers = rollouts.correctness
    thoughts = part_of(rollouts, thinking, "trust").where(answers >= least, 0.0)
    shaped, weight = rollouts.reward.clone(), amount * math.exp(-rollouts.step / period)
    for chosen in members(rollouts):
        own = answers[chosen]
        if not ((own >= 0.9).all() or (own <= 0.1).all()):
            shaped[chosen] += weight * _belief(own >= 0.5, thoughts[chosen]) * thoughts[chosen]
    return shaped


def _belief(right: Tensor, thoughts: Tensor) -> float:
    """gamma of one group, for right bool [G] and thoughts [G]."""
    if right.all() or not right.any():
        return 1.0
    return math.exp(min(float(thoughts[right].mean() - thoughts[~right].mean()), 0.0))


# Rewards of a verifier that errs on purpose: what noise does to a run, and what a correction is worth.


@method(source="verifiers that err: arXiv 2505.22203 (pitfalls of verifiers), 2510.00915 (noisy rewards); for studies")
class Flipped(RewardShaping):
    """Wrong completions gain `worth` with the chance `false_positive`, right ones lose it with `false_negative`.

    Right is what the task's accuracy counts; it is not changed, so that the log and held-out accuracy tell the truth
    while the policy learns from the noise, and `noise_backward` behind this one can be tried. List it first: shapings
    that ask what is right (`kimi_length`, `shortest_bonus`) see the truth.

    The errors of a real verifier are its own: with `errs: answer` the same answer to the same prompt is misjudged
    always or never, which a policy can learn. With `completion` every completion is judged anew, and groups average it
    out. Nothing is remembered: errors follow from seed, prompt and answer, or also step and place among equal ones.

    Args:
        worth: what being right earns: the weight of the reward's accuracy.
        seed: of the errors.
    """

    def __init__(
        self, *, false_positive: ErrorRate = 0.0, false_negative: ErrorRate = 0.0,
        errs: Literal["answer", "completion"] = "answer", worth: Rate = 1.0, seed: int = 0,
    ):  # fmt: skip
        self.false_positive, self.false_negative = false_positive, false_negative
        self.errs, self.worth, self.seed = errs, worth, seed

    def __call__(self, rollouts: Rollouts) -> Tensor:
        """-> [N]"""
        solved = rollouts.is_correct
        chance = rollouts.reward.new_tensor(self._chances(rollouts))
        up, down = ~solved & (chance < self.false_positive), solved & (chance < self.false_negative)
        self.metrics = {
            "flipped/false_positive": float(up.sum() / (~solved).sum().clamp(min=1)),
            "flipped/false_negative": float(down.sum() / solved.sum().clamp(min=1)),
        }
        return rollouts.reward + self.worth * (up.to(rollouts.reward.dtype) - down.to(rollouts.reward.dtype))

    def _chances(self, rollouts: Rollouts) -> list[float]:
        """A number in [0, 1) for each episode."""
        n = len(rollouts.reward)
        answers = rollouts.answers or rollouts.texts or ("",) * n
        texts = [a or t for a, t in zip(answers, rollouts.texts or answers, strict=True)]
        counts: Counter[tuple[str, str]] = Counter()
        chances = []
        for key in zip(rollouts.sample_ids, texts, strict=True):
            again = (rollouts.step, counts[key]) if self.errs == "completion" else ()
            counts[key] += 1
            digest = blake2b(repr((self.seed, key, again)).encode(), digest_size=8).digest()
            chances.append(int.from_bytes(digest) / 2**64)
        return chances


flipped = Flipped
