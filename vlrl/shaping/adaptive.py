"""Length bonuses whose targets follow what the policy can do: LASER-D and LASER-DE (arXiv 2505.15612)."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from vlrl.methods import method
from vlrl.shaping.outcomes import lengths, members
from vlrl.strict import Count, Rate
from vlrl.types import Rollouts, UserError

if TYPE_CHECKING:
    from torch import Tensor

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
        tokens, solved, wanted = lengths(rollouts), rollouts.is_correct, lengths(rollouts)
        seen: dict[str, list[int]] = {name: [] for name in LEVELS}
        sizes = []
        for chosen in members(rollouts):
            level = level_of(float(solved[chosen].double().mean()))
            wanted[chosen] = self.now[level]
            seen[level] += tokens[chosen].tolist()
            sizes.append(len(chosen))
        self._learn(seen, max(sizes))
        return wanted

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


@method(needs=("group",), source="LASER-D, arXiv 2505.15612; github.com/hkust-nlp/Laser, length_penalty.py")
class LaserD:
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
            raise UserError("shaping: laser_d needs at least one length: ladder: [64, 128, 256]")
        self.targets, self.bonus, self.wrong = Targets(ladder, every, window), bonus, wrong

    def __call__(self, rollouts: Rollouts) -> Tensor:
        """-> [N], and the targets chosen anew where it is time."""
        solved, within = rollouts.is_correct, lengths(rollouts) <= self.targets.of(rollouts)
        return rollouts.reward + self._gained(rollouts, solved, within)

    def _gained(self, rollouts: Rollouts, solved: Tensor, within: Tensor) -> Tensor:
        gained = within.to(rollouts.reward.dtype) * self.bonus
        return gained.where(solved, self.wrong)

    @property
    def metrics(self) -> dict[str, float]:
        return {f"laser/target_{level}": float(target) for level, target in self.targets.now.items()}

    def state_dict(self) -> dict[str, Any]:
        return self.targets.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.targets.load_state_dict(state)


laser_d = LaserD


@method(needs=("group",), source="LASER-DE, arXiv 2505.15612; github.com/hkust-nlp/Laser, length_penalty.py")
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
    said = text.split()
    runs = Counter(tuple(said[i : i + words]) for i in range(len(said) - words + 1))
    return max(runs.values(), default=0) >= times
