"""Rollout strategies that branch."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field
from rapidfuzz.distance import Levenshtein

from vlrl.algorithms.rollout_common import (
    Share,
    check_one_answer,
    check_words,
    complete_samples,
    limited,
    played,
    remembered,
)
from vlrl.config import Count
from vlrl.methods import RolloutStrategy, method
from vlrl.types import Decision, Episode, Policy, Sample, UserError

if TYPE_CHECKING:
    from torch import Tensor


# How alike two texts are, token by token.


def suffix_match(a: Sequence[int], b: Sequence[int]) -> float:
    """The longest end of either text that stands somewhere in the other, as a share of the longer one's length."""
    return max(_end_within(a, b), _end_within(b, a)) / max(len(a), len(b))


def alike(a: Sequence[int], b: Sequence[int], edit: float | None, suffix: float | None) -> bool:
    """Whether texts of one length have an edit distance, as a share of it, below `edit`, or a suffix match above."""
    if edit is not None and Levenshtein.distance(a, b) / len(a) < edit:
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

Cost = Annotated[float, Field(ge=0, allow_inf_nan=False)]


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


# Monte Carlo tree search over the steps of an answer: rollout strategy `plan_search`.


@dataclass(eq=False)
class PlanNode:
    """What is written so far; its last step is `tokens[start:]`. N `visits` brought values that add up to `total`."""

    tokens: tuple[int, ...] = ()
    start: int = 0
    parent: PlanNode | None = None
    prior: float = 1.0  # of the step: exp of the mean log-probability of its tokens
    is_last: bool = False  # the answer ends here
    episode: Episode | None = None  # the first that took the step, with the step's tokens alone to learn from
    children: list[PlanNode] = field(default_factory=list)
    visits: int = 0
    total: float = 0.0

    @property
    def q(self) -> float:
        """Q of the step that led here, which is V of this state: the mean value of the completions through it."""
        return self.total / self.visits if self.visits else 0.0

    @property
    def depth(self) -> int:
        return 0 if self.parent is None else 1 + self.parent.depth

    @property
    def is_closed(self) -> bool:
        """Whether all that was tried from here has come to its end."""
        return self.is_last or (bool(self.children) and all(child.is_closed for child in self.children))

    def puct(self, c: float) -> float:
        """`Q + c P sqrt(N_parent) / (1 + N)`."""
        return self.q + c * self.prior * math.sqrt((self.parent or self).visits) / (1 + self.visits)

    def back_up(self, value: float) -> None:
        """One more completion through this state, and so through all before it."""
        node: PlanNode | None = self
        while node is not None:
            node.visits, node.total, node = node.visits + 1, node.total + value, node.parent

    def select(self, c: float) -> PlanNode | None:
        """The state to go on from: down the steps of the highest PUCT, to one without steps; None: all is closed."""
        if not self.children:
            return None if self.is_last else self
        ways = [each for each in self.children if not each.is_closed]
        return max(ways, key=lambda each: each.puct(c)).select(c) if ways else None

    def expand(self, episode: Episode, end: int, is_last: bool, value: float) -> None:
        """Takes in a completion that goes on from here by the tokens up to `end`; equal steps are one."""
        decision = episode.turns[0].decision
        tokens = decision.inputs.tokens[:end]
        child = next((each for each in self.children if each.tokens == tokens), None)
        if child is None:
            begin = len(self.tokens)
            prior = math.exp(float(decision.logprobs[begin:end].mean()))
            child = PlanNode(tokens, begin, self, prior, is_last, only_step(episode, begin, end))
            self.children.append(child)
        child.back_up(value)

    def states(self) -> Iterator[PlanNode]:
        """This state and those behind it from which steps were tried."""
        if self.children:
            yield self
            for child in self.children:
                yield from child.states()


def only_step(episode: Episode, begin: int, end: int) -> Episode:
    """The episode with the tokens of one step to learn from."""
    import torch

    (turn,) = episode.turns
    places = torch.arange(len(turn.decision.logprobs))
    decision = replace(turn.decision, forced_mask=(places < begin) | (places >= end))
    return replace(episode, turns=[replace(turn, decision=decision)])


def find_end(codec: Any, tokens: Sequence[int], begin: int, mark: re.Pattern[str]) -> int:
    """Where the step that begins at a place ends: behind the first mark with text before it, or with the tokens.

    A token that begins with the mark and goes on with other text, as ` square`, is the next step's.
    """
    for end in range(begin + 1, len(tokens) + 1):
        text = codec.decode(tokens[begin:end])
        match = next((each for each in mark.finditer(text) if text[: each.start()].strip()), None)
        if match is not None:
            return end - 1 if text[match.end() :] and end - 1 > begin else end
    return len(tokens)


def check_search(options: Mapping[str, Any], path: str) -> None:
    """UserError where `mark` is no regular expression."""
    try:
        re.compile(str(options.get("mark", "")))
    except re.error as error:
        raise UserError(f"{path}.mark: no regular expression: {error}: write \\n for a line's end") from None


@method(
    reads=("all_episodes", "truth"),
    check_options=check_search,
    check_recipe=check_one_answer,
    needs=("group",),
    source="plan-based MCTS: CPL, arXiv 2409.08642; github.com/keesh0410/CPL-Reasoning, mcts_plan",
)
class PlanSearch(RolloutStrategy):
    """A search tree over the steps of a prompt's answer, and from each undecided state the steps that were tried.

    A step ends with `mark`. The search goes down by `Q + c P sqrt(N) / (1 + N_step)` to a state without steps, tries
    `width` of them (`first` at the root), each with the rest of an answer behind it, and backs up 1 for a right answer
    and -1 for a wrong one: Q is the mean of the answers through a step, N their number, P the exp of the mean
    log-probability of its tokens. A tree takes `train.group_size` completions, or fewer where nothing is left to try.

    What is learned from are the states with steps of Q > 0 and of Q < 0; of a tree without, the steps at its root. Each
    state is a group, and each of its steps an episode: the first answer through it, of which the step's tokens alone
    have credit, and whose reward is Q. The loss `step_apo` compares them. `reward` and `accuracy` in the log are of
    these, `plan_search/accuracy` that of all completions.

    Published: the formula with c 1.5, 5 steps at the root and 3 elsewhere, at most 6 deep, 200 iterations, values of 1
    and -1, equal steps as one, pairs by the sign of Q, values of last steps times 0.3. Ours: a state is evaluated by
    the answer written from it, whose rest is thrown away, in place of a value model; what is deeper than `depth` is one
    last step, not a failure; all pairs of last steps count, not one; no supervised round before; fewer completions.

    Args:
        mark: regular expression of what ends a step.
        c: weight of exploration.
        width, first: completions from a state, and from the root.
        depth: steps of an answer at most.
        last: weight of the value of a step that ends the answer.
    """

    def __init__(
        self, policy: Policy, task: Any, seed: int, *, mark: str = r"\n", c: Cost = 1.5, width: Count = 3,
        first: Count = 5, depth: Count = 6, last: Share = 0.3,
    ):  # fmt: skip
        check_words(policy, "plan_search")
        self.mark, self.c, self.width, self.first = re.compile(mark), c, width, first
        self.depth, self.last = depth, last
        self.played = 0  # completions of the latest step

    def __call__(
        self, policy: Policy, task: Any, samples: Sequence[Sample], group_size: int, step: int, **act: Any
    ) -> list[Episode]:
        act.pop("keep", None)  # a prefill that is kept serves prompts of one forward pass only
        roots, right, left = [PlanNode() for _ in samples], [], group_size
        while left:
            width = min(left, self.width if right else self.first)
            nodes = [(sample, root.select(self.c)) for sample, root in zip(samples, roots, strict=True)]
            states = [(sample, node) for sample, node in nodes if node is not None for _ in range(width)]
            if not states:
                break
            right += self._grow(policy, task, states, act)
            left -= width
        self.played = len(right)
        groups = [state for root in roots for state in undecided(root)]
        self._describe(groups, right, len(samples))
        return [
            replace(each.episode, group=i, reward=each.q * (self.last if each.is_last else 1.0))
            for i, state in enumerate(groups) for each in state.children if each.episode is not None
        ]  # fmt: skip

    def _grow(
        self, policy: Any, task: Any, states: Sequence[tuple[Sample, PlanNode]], act: dict[str, Any]
    ) -> list[bool]:
        """A completion from each state, into its tree -> which are right."""
        samples, prefixes = [sample for sample, _ in states], [node.tokens for _, node in states]
        room = policy.max_tokens - min(map(len, prefixes))
        completions = complete_samples(policy, samples, act, prefixes, room)
        decisions = [replace(limited(policy, each, policy.max_tokens), forced_mask=None) for each in completions]
        episodes = played(policy, task, samples, decisions, "plan_search")
        for (_, node), episode in zip(states, episodes, strict=True):
            tokens = episode.turns[0].decision.inputs.tokens
            whole = node.depth + 1 >= self.depth
            end = len(tokens) if whole else find_end(policy.codec, tokens, len(node.tokens), self.mark)
            node.expand(episode, end, end == len(tokens), 1.0 if episode.score.is_correct else -1.0)
        return [episode.score.is_correct for episode in episodes]

    def _describe(self, groups: Sequence[PlanNode], right: Sequence[bool], trees: int) -> None:
        ranges = [[child.q for child in state.children] for state in groups]
        self.metrics = {
            "plan_search/accuracy": sum(right) / len(right),
            "plan_search/completions": len(right) / trees,
            "plan_search/undecided": sum(min(q) < 0 < max(q) for q in ranges) / trees,
            "plan_search/gap": sum(max(q) - min(q) for q in ranges) / len(ranges),
        }


plan_search = PlanSearch


def undecided(root: PlanNode) -> list[PlanNode]:
    """The states from which a step is right more often than wrong and another wrong more often; else the root."""
    states = [
        state for state in root.states() if min(s.q for s in state.children) < 0 < max(s.q for s in state.children)
    ]
    return states or [root]
