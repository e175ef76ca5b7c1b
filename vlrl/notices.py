"""What a user should hear of a run while it runs, and not when it has ended: it does not learn, its disk is slow."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from statistics import fmean
from typing import Any

STEPS = 10  # in a row, before anything is said
MOST = 0.5  # share of completions from which on something is said of them
UNREAD = "parse_fail/"
SAVED_S = 5.0  # seconds of saving, before anything is said of them


class Notices:
    """Sees every step's row; each notice is given once.

    Args:
        by_advantage: whether advantages are what moves the weights.
    """

    def __init__(self, by_advantage: bool = True) -> None:
        self._by_advantage = by_advantage
        self._rows: deque[Mapping[str, Any]] = deque(maxlen=STEPS)
        self._given: set[str] = set()
        self._steps_s, self._saves_s = 0.0, 0.0  # in all

    def see(self, row: Mapping[str, Any]) -> list[str]:
        """What there is to say after this step, in lines."""
        self._rows.append(row)
        self._steps_s += row.get("seconds", 0.0)
        if len(self._rows) < STEPS:
            return []
        found = [(kind, text) for kind, text in self._found() if kind not in self._given]
        self._given |= {kind for kind, _ in found}
        return [text for _, text in found]

    def saved(self, seconds: float) -> list[str]:
        """What there is to say after a checkpoint that took so long: whether saving takes longer than the steps do."""
        self._saves_s += seconds
        if "saves" in self._given or self._saves_s < max(SAVED_S, self._steps_s):
            return []
        self._given.add("saves")
        share = self._saves_s / (self._saves_s + self._steps_s)
        return [
            f"{share:.0%} of the time goes into saving, {seconds:.1f} s for the last checkpoint: raise "
            "log.checkpoint_every, or set out to a faster disk"
        ]

    def _found(self) -> Iterator[tuple[str, str]]:
        cut, reason, unread = self._mean("cut"), *self._unread()
        if self._by_advantage and all(row.get("zero_advantage") == 1.0 for row in self._rows):
            yield "silent", f"{STEPS} steps in which no reward taught anything: {self._why(reason, unread)}"
        elif unread > MOST:
            yield "unread", f"{unread:.0%} of the answers of {STEPS} steps were not read ({reason}): {_READ}"
        if cut > MOST:
            yield "cut", f"{cut:.0%} of the completions of {STEPS} steps end at policy.max_tokens: raise it"

    def _why(self, reason: str, unread: float) -> str:
        """Why all completions of each prompt earn the same."""
        right = self._mean("accuracy")
        if unread > MOST:
            return f"{unread:.0%} of the answers were not read ({reason}); {_READ}"
        if right == 0.0:
            return "no answer is right; take easier samples, a better start, or a reward with steps on the way"
        if right == 1.0:
            return "every answer is right; take harder samples: `vlrl select` finds those that the model is unsure of"
        return (
            "all completions of a prompt earn the same; raise policy.temperature or train.group_size, or lower train.lr"
        )

    def _unread(self) -> tuple[str, float]:
        """The most frequent reason why answers were not read, and the share of answers with any."""
        names = {name for row in self._rows for name in row if name.startswith(UNREAD)}
        shares = {name.removeprefix(UNREAD): self._mean(name) for name in sorted(names)}
        return max(shares, key=lambda name: shares[name], default=""), sum(shares.values())

    def _mean(self, name: str) -> float:
        return fmean(row.get(name, 0.0) for row in self._rows)


_READ = "look at the rollouts in report.html, and at what the prompt asks for (task.template, task.thinking)"
