"""Rollout strategies that branch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from vlrl.algorithms.rollout_common import check_one_answer, complete_samples, limited, played, remembered
from vlrl.config import Count
from vlrl.methods import RolloutStrategy, method
from vlrl.types import Decision, Episode, Policy, Sample, UserError

if TYPE_CHECKING:
    from torch import Tensor


# How alike two texts are, token by token.


def edit_distance(a: Sequence[int], b: Sequence[int]) -> int:
    """The fewest tokens to insert, leave out or replace until one is the other (Levenshtein)."""
    row = list(range(len(b) + 1))
    for i, one in enumerate(a, start=1):
        corner, row[0] = row[0], i
        for j, other in enumerate(b, start=1):
            corner, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, corner + (one != other))
    return row[-1]


def suffix_match(a: Sequence[int], b: Sequence[int]) -> float:
    """The longest end of either text that stands somewhere in the other, as a share of the longer one's length."""
    return max(_end_within(a, b), _end_within(b, a)) / max(len(a), len(b))


def alike(a: Sequence[int], b: Sequence[int], edit: float | None, suffix: float | None) -> bool:
    """Whether texts of one length have an edit distance, as a share of it, below `edit`, or a suffix match above."""
    if edit is not None and edit_distance(a, b) / len(a) < edit:
        return True
    return suffix is not None and suffix_match(a, b) > suffix


def _end_within(a: Sequence[int], b: Sequence[int]) -> int:
    """Tokens of the longest end of `a` that stands in `b`."""
    longest = 0
    for last in range(len(b)):
        n = 0
        while n <= last and n < len(a) and a[-1 - n] == b[last - n]:
            n += 1
        longest = max(longest, n)
    return longest


# A prompt's completions as a tree: where they branch, and which branches differ from their parents.

REACH = 4  # from so many lengths of the longest look-ahead on completions count as long


@dataclass(frozen=True, eq=False)
class Leaf:
    """A whole completion; `born` is the first place that is its own and may branch."""

    decision: Decision
    born: int = 0


@dataclass(frozen=True, eq=False)
class TokenBranch:
    """Another token in the place `at` of a completion."""

    parent: Decision
    at: int
    token: int
    logprob: float

    @property
    def tokens(self) -> tuple[int, ...]:
        return (*self.parent.inputs.tokens[: self.at], self.token)


@dataclass
class Tree:
    """A prompt's leaves, `size` in the end, and the branches that wait, earlier places first."""

    sample: Sample
    size: int
    leaves: list[Leaf] = field(default_factory=list)
    waiting: list[TokenBranch] = field(default_factory=list)
    asked: int = 0  # leaves whose branches are known

    def fresh(self) -> list[Leaf]:
        """The leaves whose branches are to be found, none of a full tree's; they count as asked from here on."""
        new = self.leaves[self.asked :] if len(self.leaves) < self.size else []
        self.asked = len(self.leaves)
        return new

    def taken(self) -> list[TokenBranch]:
        """As many of the waiting branches as leaves are missing."""
        n = self.size - len(self.leaves)
        chosen, self.waiting = self.waiting[:n], self.waiting[n:]
        return chosen


def torn(first: Tensor, second: Tensor, least: float, gap: float) -> Tensor:
    """bool [T]: where the runner-up's probability is above `least` and less than `gap` below the likeliest's."""
    return (second > least) & (first - second < gap)


def branches(
    leaf: Leaf, tokens: Tensor, logprobs: Tensor, stops: Sequence[int], least: float, gap: float
) -> Iterator[TokenBranch]:
    """The branches of a leaf, by the two likeliest tokens [T, 2] at its places and their log-probabilities."""
    own = leaf.decision.inputs.tokens
    for at in torn(*logprobs.exp().unbind(-1), least, gap).nonzero()[:, 0].tolist():
        other = int(own[at] == int(tokens[at, 0]))  # the likeliest token that the leaf did not take
        if at >= leaf.born and int(tokens[at, other]) not in stops:
            yield TokenBranch(leaf.decision, at, int(tokens[at, other]), float(logprobs[at, other]))


def scaled(ages: Sequence[int], longest: int) -> tuple[int, ...]:
    """Ages of comparison for completions of at most `longest` tokens, ascending, 2 at least: shorter for short ones."""
    share = min(1.0, longest / (REACH * max(ages)))
    return tuple(sorted({max(2, round(share * age)) for age in ages}))


def share_at(share: Mapping[int, float], step: int) -> float:
    """The value of the latest step that has come; before the first one its own."""
    return share[max((known for known in share if known <= step), default=min(share))]


# Completions that branch where the policy is torn between two tokens: rollout strategy `latr`.

AGES = (20, 30, 50)
SHARES = {0: 1.0, 100: 0.75, 200: 0.5, 300: 0.25}
EXACT = frozenset("0123456789+-*/=<>()[]{}^_%&$\\")  # of which one may be the whole difference between two answers

Share = Annotated[float, Field(ge=0, le=1)]


@method(
    reads=("all_episodes",),
    check_recipe=check_one_answer,
    needs=("group",),
    source="look-ahead tree rollouts: LATR; github.com/starreeze/latr, model/generation.py",
)
class Latr(RolloutStrategy):
    """Groups whose completions differ early: a second one branches off where two tokens are nearly as likely.

    A place branches where p2 > `least` and p1 - p2 < `gap`, p1 and p2 the probabilities of the two likeliest tokens.
    The branch takes the likeliest token that its parent did not take there, and looks ahead. It is pruned where, at one
    of the `ages` r, the r tokens of both are alike: edit distance / r < `edit`, or suffix match > `suffix`. What is
    left goes on to its end and may branch itself, until a prompt has its leaves; plain completions fill the rest.
    A branch is trained as any completion, with its true log-probabilities, those of the tokens that the tree chose
    included. As these were not sampled, the gradient is not that of the mean reward, in the paper as here.

    Published: the rule, the ages, edit 0.4 (the code's default; its scripts take suffix 0.2 and ROUGE-L > 0.5), that a
    branch at a digit or sign is kept, the shares. The released filter reads p1 - p2 > gap; here it is the paper's.
    Ours: completions are written whole and branch afterwards, earlier places first, not token by token; they are
    sampled, where the code writes the likeliest token until a tree is full; ages shrink where policy.max_tokens is
    below 4 of the longest; no branch starts with a stop token.

    Args:
        ages: tokens after which a branch is compared with its parent, if both are as long.
        edit, suffix: bounds of likeness; null: not asked.
        share: step -> share of a group that is to come from its tree from there on.
        rounds: of branching at most.

    Raises:
        UserError: the policy writes no text; no ages or no share; the task shows other prompts than its samples'.
    """

    def __init__(
        self, policy: Policy, task: Any, seed: int, *,
        least: Share = 0.15, gap: Share = 0.25, ages: Sequence[Count] = AGES, edit: Share | None = 0.4,
        suffix: Share | None = None, share: Mapping[int, Share] = SHARES, rounds: Count = 4,
    ):  # fmt: skip
        if not policy.writes_text:
            raise UserError("rollout_strategy: latr branches between tokens, but this policy writes none: use plain")
        if not ages or not share:
            raise UserError("rollout_strategy: latr: ages and share need an entry at least: ages: [20, 30, 50]")
        self.least, self.gap, self.edit, self.suffix = least, gap, edit, suffix
        self.share, self.rounds, self.ages = dict(share), rounds, scaled(ages, policy.max_tokens)

    def __call__(
        self, policy: Policy, task: Any, samples: Sequence[Sample], group_size: int, step: int, **act: Any
    ) -> list[Episode]:
        act.pop("keep", None)  # a prefill that is kept serves prompts of one forward pass only
        size = round(group_size * share_at(self.share, step))
        trees = [Tree(sample, size) for sample in samples]
        self.metrics = self._grow(policy, trees, act) if size else {}
        self.metrics["latr/leaves"] = sum(len(tree.leaves) for tree in trees) / (len(trees) * group_size)
        missing = [tree for tree in trees for _ in range(group_size - len(tree.leaves))]
        for tree, made in zip(missing, complete_samples(policy, [tree.sample for tree in missing], act), strict=True):
            tree.leaves.append(Leaf(made))
        decisions = [leaf.decision for tree in trees for leaf in tree.leaves]
        asked = [sample for sample in samples for _ in range(group_size)]
        episodes = played(policy, task, asked, decisions, "latr")
        return [replace(episode, group=i // group_size) for i, episode in enumerate(episodes)]

    def _grow(self, policy: Any, trees: Sequence[Tree], act: dict[str, Any]) -> dict[str, float]:
        """Gives the trees their leaves, as far as branches are found. Returns what is told of it."""
        for tree, trunk in zip(trees, complete_samples(policy, [tree.sample for tree in trees], act), strict=True):
            tree.leaves.append(Leaf(trunk))
        tried = pruned = 0
        for _ in range(self.rounds):
            self._find(policy, trees)
            chosen = [(tree, branch) for tree in trees for branch in tree.taken()]
            looks = self._looks(policy, chosen, act)
            each = [(tree, branch, look) for (tree, branch), look in zip(chosen, looks, strict=True)]
            kept = [(tree, branch, look) for tree, branch, look in each if not self._alike(policy, branch, look)]
            tried, pruned = tried + len(chosen), pruned + len(chosen) - len(kept)
            for (tree, branch, _), whole in zip(kept, self._ended(policy, kept, act), strict=True):
                tree.leaves.append(Leaf(replace(whole, forced_mask=None), branch.at + 1))
        return {"latr/branches": tried / len(trees), "latr/pruned": pruned / max(1, tried)}

    def _find(self, policy: Any, trees: Sequence[Tree]) -> None:
        """Puts the branches of new leaves among those that wait."""
        new = [(tree, leaf) for tree in trees for leaf in tree.fresh()]
        best = policy.likeliest([leaf.decision for _, leaf in new], 2)
        for (tree, leaf), (tokens, logprobs) in zip(new, best, strict=True):
            forks = branches(leaf, tokens, logprobs, policy.codec.stop_ids, self.least, self.gap)
            tree.waiting = sorted([*tree.waiting, *forks], key=lambda branch: branch.at)

    def _looks(self, policy: Any, chosen: Sequence[tuple[Tree, TokenBranch]], act: dict[str, Any]) -> list[Decision]:
        """The branches with the tokens that follow, as many as the oldest age."""
        prefixes = [branch.tokens for _, branch in chosen]
        looks = complete_samples(policy, [tree.sample for tree, _ in chosen], act, prefixes, self.ages[-1])
        return [
            limited(policy, remembered(look, *known(branch)), policy.max_tokens)
            for look, (_, branch) in zip(looks, chosen, strict=True)
        ]

    def _alike(self, policy: Any, branch: TokenBranch, look: Decision) -> bool:
        """Whether a branch says what its parent says."""
        then, now = branch.parent.inputs.tokens[branch.at :], look.inputs.tokens[branch.at :]
        if policy.codec.decode(then[:1]).strip() in EXACT:
            return False
        ages = (age for age in self.ages if age <= min(len(then), len(now)))
        return any(alike(then[:age], now[:age], self.edit, self.suffix) for age in ages)

    def _ended(
        self, policy: Any, kept: Sequence[tuple[Tree, TokenBranch, Decision]], act: dict[str, Any]
    ) -> list[Decision]:
        """The branches written to their ends."""
        limit = policy.max_tokens
        open_ = [i for i, (*_, look) in enumerate(kept) if look.truncated and len(look.inputs.tokens) < limit]
        prompts, looks = [kept[i][0].sample for i in open_], [kept[i][2] for i in open_]
        room = limit - min((len(look.inputs.tokens) for look in looks), default=0)
        completions = complete_samples(policy, prompts, act, [look.inputs.tokens for look in looks], room)
        ends = [
            limited(policy, remembered(whole, look.logprobs, look.entropy), limit)
            for whole, look in zip(completions, looks, strict=True)
        ]
        of = dict(zip(open_, ends, strict=True))
        return [of.get(i, look) for i, (*_, look) in enumerate(kept)]


latr = Latr


def known(branch: TokenBranch) -> tuple:
    """Log-probabilities and entropies of a branch's tokens: its parent's, and at the last the chosen token's own."""
    parent, end = branch.parent, branch.at + 1
    logprobs = parent.logprobs[:end].clone()
    logprobs[-1] = branch.logprob
    return logprobs, parent.entropy[:end]
