"""Length penalties."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from vlrl.algorithms.reward_shaping import lengths, members, pays_above
from vlrl.config import Count, Rate
from vlrl.methods import RewardShaping, method
from vlrl.types import Rollouts, UserError

if TYPE_CHECKING:
    from torch import Tensor


# Length bonuses whose targets follow what the policy can do: LASER-D and LASER-DE (arXiv 2505.15612).

LEVELS = {"high": 2 / 3, "medium": 1 / 3, "low": 0.0}  # accuracy of a group from which it belongs there


def level_of(accuracy: float) -> str:
    """A group's class by its share of right completions."""
    return next(name for name, least in LEVELS.items() if accuracy >= least - 1e-9)


def target_of(level: str, seen: Sequence[int], ladder: Sequence[int], size: int) -> int | None:
    """The shortest length of the ladder at which a class's group can expect to have a right answer covered.

    A group of `size` in the class has at least n = floor(2/3 size), floor(1/3 size) or 1 right answers. At length L the
    share c of the class's completions is covered, so floor(c n) right ones are. None: not even the longest covers one.
    """
    least = max(1, int(size * LEVELS[level] + 1e-9))
    covered = {length: sum(n <= length for n in seen) / max(1, len(seen)) for length in sorted(ladder)}
    return next((length for length, share in covered.items() if int(share * least + 1e-9) >= 1), None)


class Targets:
    """Each class's target: chosen anew every `every` steps from the completions of the last `window` steps."""

    def __init__(self, ladder: Sequence[int], every: int, window: int):
        self.ladder, self.every = sorted(ladder), every
        self.now = dict.fromkeys(LEVELS, self.ladder[-1])
        self.seen: deque[dict[str, list[int]]] = deque(maxlen=window)
        self.steps = 0

    def of(self, rollouts: Rollouts) -> Tensor:
        """int64 [N], the target of each episode, before this step is taken into account."""
        tokens, solved, targets = lengths(rollouts), rollouts.is_correct, lengths(rollouts)
        history: dict[str, list[int]] = {name: [] for name in LEVELS}
        sizes = []
        for chosen in members(rollouts):
            level = level_of(float(solved[chosen].double().mean()))
            targets[chosen] = self.now[level]
            history[level] += tokens[chosen].tolist()
            sizes.append(len(chosen))
        self._learn(history, max(sizes))
        return targets

    def _learn(self, seen: dict[str, list[int]], size: int) -> None:
        self.seen.append(seen)
        self.steps += 1
        if self.steps % self.every:
            return
        for level in LEVELS:
            of_level = [n for step in self.seen for n in step[level]]
            self.now[level] = target_of(level, of_level, self.ladder, size) or self.ladder[-1]

    def state_dict(self) -> dict[str, Any]:
        return {"now": dict(self.now), "seen": list(self.seen), "steps": self.steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.now, self.steps = dict(state["now"]), state["steps"]
        self.seen = deque(state["seen"], maxlen=self.seen.maxlen)


@method(
    check_recipe=pays_above(lambda options: min(options["ladder"])),
    needs=("group",),
    source="LASER-D, arXiv 2505.15612; github.com/hkust-nlp/Laser, length_penalty.py",
)
class LaserD(RewardShaping):
    """LASER with a target for each class of prompts: easy ones, which the policy mostly solves, get a shorter one.

    Right completions of at most the target's tokens gain `bonus`, wrong ones gain `wrong`, see `laser`. A prompt's
    class is its group's accuracy: from 2/3 high, from 1/3 medium, else low. A class's target is the shortest length of
    the ladder at which its groups can expect a right answer to fit (`target_of`), the longest before there is a choice
    and where none fits.

    Published: bonus, classes, ladder and rule. Ours: the completions looked at are the run's own of the last `window`
    steps, instead of a monitor set that is sampled apart; `every`, which is not published.

    Args:
        ladder: lengths in tokens of the whole episode, of which targets are chosen.
        every: steps between two choices.
        window: steps whose completions are looked at.
    """

    def __init__(
        self, *, ladder: Sequence[Count] = tuple(range(1024, 16385, 1024)), every: Count = 20, window: Count = 20,
        bonus: Rate = 0.5, wrong: float = -0.5,
    ):  # fmt: skip
        if not ladder:
            raise UserError("reward_shaping: laser_d needs at least one length: ladder: [64, 128, 256]")
        self.targets, self.bonus, self.wrong = Targets(ladder, every, window), bonus, wrong

    def __call__(self, rollouts: Rollouts) -> Tensor:
        """-> [N], and the targets chosen anew where it is time."""
        solved, within = rollouts.is_correct, lengths(rollouts) <= self.targets.of(rollouts)
        self.metrics = {f"laser/target_{level}": float(target) for level, target in self.targets.now.items()}
        return rollouts.reward + self._gained(rollouts, solved, within)

    def _gained(self, rollouts: Rollouts, solved: Tensor, within: Tensor) -> Tensor:
        gained = within.to(rollouts.reward.dtype) * self.bonus
        return gained.where(solved, self.wrong)

    def state_dict(self) -> dict[str, Any]:
        return self.targets.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.targets.load_state_dict(state)


laser_d = LaserD


@method(
    check_recipe=pays_above(lambda options: min(options["ladder"])),
    needs=("group",),
    source="LASER-DE, arXiv 2505.15612; github.com/hkust-nlp/Laser, length_penalty.py",
)
class LaserDE(LaserD):
    """LASER-D that also pays `bonus` to wrong completions beyond the target: to explore on what is not yet solved.

    Not to those that repeat themselves: eight words in a row that stand three times in the text. Published: that there
    is such a test, on the tokens of the last action; its form is ours.
    """

    def _gained(self, rollouts: Rollouts, solved: Tensor, within: Tensor) -> Tensor:
        repeated = solved.new_tensor([repeats(text) for text in rollouts.texts] or [False] * len(solved))
        explored = (~within & ~repeated).to(rollouts.reward.dtype) * self.bonus + self.wrong
        return super()._gained(rollouts, solved, within).where(solved, explored)


laser_de = LaserDE


def repeats(text: str, words: int = 8, times: int = 3) -> bool:
    """Whether some `words` words in a row stand in the text `times` times or more."""
    text_words = text.split()
    runs = Counter(tuple(text_words[i : i + words]) for i in range(len(text_words) - words + 1))
    return max(runs.values(), default=0) >= times


# Brevity among the completions of a prompt.


@method(needs=("group",), source="UI-R1-E (DAST), arXiv 2503.21620; github.com/lll6gg/UI-R1")
def dast(rollouts: Rollouts, *, full: float = 3.0, slope: float = -0.5, offset: float = 0.5) -> Tensor:
    """Adds what each completion gains for brevity among its group, see `brevity`.

    A length is the number of tokens that the policy wrote in the whole episode. The published trainer takes the padded
    row's, so that all are equal and nothing is learned about length.

    Args:
        full: the reward from which a completion counts as right; UI-R1's three parts add up to 3.

    Returns:
        [N]
    """
    reward = rollouts.reward
    tokens, shaped = lengths(rollouts), reward.clone()
    for chosen in members(rollouts):
        right = (reward[chosen] >= full).tolist()
        shaped[chosen] += reward.new_tensor(brevity(right, tokens[chosen].tolist(), slope=slope, offset=offset))
    return shaped


def brevity(right: Sequence[bool], tokens: Sequence[int], slope: float = -0.5, offset: float = 0.5) -> list[float]:
    """What each completion of a group gains for brevity: 0.1 to 1 if it is `right`, else -1 to -0.1.

    The budget mixes the mean length of the right ones and the longest: the more are right, the shorter. With
    d = (length - budget) / budget a right one gains max(slope * d + offset, 0.1), a wrong one min(0.9 d - 0.1, -0.1).

    Raises:
        ValueError: no completion, or another number of lengths.
    """
    if not right or len(right) != len(tokens):
        raise ValueError(f"{len(right)} completions, {len(tokens)} lengths: one length each, at least one")
    own = [length for good, length in zip(right, tokens, strict=True) if good]
    share = len(own) / len(right)
    budget = (share * sum(own) / len(own) if own else 0.0) + (1 - share) * max(tokens)
    terms = []
    for good, length in zip(right, tokens, strict=True):
        over = (length - budget) / budget if budget > 0 else 0.0
        term = max(slope * over + offset, 0.1) if good else min(0.9 * over - 0.1, -0.1)
        terms.append(min(max(term, -1.0), 1.0))
    return terms


# Kimi k1.5: brevity among the completions of a prompt.


@method(needs=("group",), source="length penalty of Kimi k1.5, arXiv 2501.12599, section 2.3.3")
def kimi_length(rollouts: Rollouts, *, weight: Rate = 1.0, begin: Annotated[int, Field(ge=0)] = 0) -> Tensor:
    """Adds `weight lambda` to right completions and `weight min(0, lambda)` to wrong ones.

    `lambda = 1/2 - (n - min n) / (max n - min n)` for n tokens of the whole episode, over the prompt's completions,
    right and wrong ones: from 1/2 for the shortest to -1/2 for the longest. Nothing where all are equally long. The
    paper begins without it and adds it with a constant weight, which it does not give: here from the step `begin` on.

    Returns:
        [N]
    """
    if rollouts.step < begin:
        return rollouts.reward
    tokens, solved, shaped = lengths(rollouts).to(rollouts.reward.dtype), rollouts.is_correct, rollouts.reward.clone()
    for chosen in members(rollouts):
        own = tokens[chosen]
        span = own.max() - own.min()
        if span > 0:
            gain = 0.5 - (own - own.min()) / span
            shaped[chosen] += weight * gain.where(solved[chosen], gain.clamp(max=0.0))
    return shaped


# Penalties and bonuses for how long completions are, one by one.


@method(
    check_recipe=pays_above(lambda options: options["longest"] - options["cache"]),
    source="DAPO, arXiv 2503.14476, equation 13; verl workers/reward_manager/dapo.py",
)
def overlong(rollouts: Rollouts, *, longest: Count, cache: Count, factor: Rate = 1.0) -> Tensor:
    """Takes up to `factor` from completions that come near the length limit: softly over the last `cache` tokens.

    `r - factor * clip((n - (longest - cache)) / cache, 0, 1)` for n tokens in the whole episode. Clipped beyond
    `longest` as in the paper; the released code goes on, but there generation stops at the limit.

    Args:
        longest: where the penalty is complete: policy.max_tokens, of one turn.
        cache: so many tokens before it begins (the paper: 4096 of 20480).

    Returns:
        [N]
    """
    over = (lengths(rollouts) - (longest - cache)).to(rollouts.reward.dtype) / cache
    return rollouts.reward - factor * over.clamp(0, 1)


@method(
    check_recipe=pays_above(lambda options: options["target"]),
    source="LASER, arXiv 2505.15612; github.com/hkust-nlp/Laser, length_penalty.py",
)
def laser(rollouts: Rollouts, *, target: Count, bonus: Rate = 0.5, wrong: float = -0.5) -> Tensor:
    """Adds `bonus` to right completions of at most `target` tokens: a step, where other methods have a slope.

    With a reward of 1 or 0 this gives the published 1.5, 1 and -0.5. What is wrong gains `wrong` whatever its form; in
    the released code completions without a form, or cut off, keep a score of their own.

    Args:
        target: in tokens of the whole episode; one for all prompts (`laser_d` chooses it).

    Returns:
        [N]
    """
    solved = rollouts.is_correct
    gained = solved.to(rollouts.reward.dtype) * bonus * (lengths(rollouts) <= target)
    return rollouts.reward + gained.where(solved, wrong)
