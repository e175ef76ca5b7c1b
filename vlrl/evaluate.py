"""Held-out evaluation: greedy answers, a 95 % interval, and what was wrong."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from vlrl.rollout import collect
from vlrl.types import Episode, Policy


@dataclass(frozen=True)
class Measured:
    """A mean over n held-out samples with its 95 % interval."""

    value: float
    low: float
    high: float
    n: int


@dataclass(frozen=True)
class Result:
    accuracy: Measured
    reward: float
    parts: dict[str, float]
    parse_fail: dict[str, float]
    length: float
    episodes: list[Episode]

    def row(self) -> dict[str, float]:
        """The result as a row of metrics."""
        measured = self.accuracy
        return {
            "eval/accuracy": measured.value, "eval/low": measured.low, "eval/high": measured.high, "eval/n": measured.n,
            "eval/reward": self.reward, "eval/length": self.length,
            **{f"eval/reward/{k}": v for k, v in self.parts.items()},
            **{f"eval/parse_fail/{k}": v for k, v in self.parse_fail.items()},
        }  # fmt: skip


def wilson(successes: float, n: int, z: float = 1.959964) -> tuple[float, float]:
    """Wilson's score interval of a share: it stays inside [0, 1] and is honest for small n."""
    if n == 0:
        return 0.0, 1.0
    p = successes / n
    centre, half = p + z * z / (2 * n), z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    low, high = (centre - half) / (1 + z * z / n), (centre + half) / (1 + z * z / n)
    return max(0.0, min(p, low)), min(1.0, max(p, high))  # rounding must not exclude a share of 0 or 1


def evaluate(
    policy: Policy, task: Any, *, samples: int | None = None, batch: int = 128,
    progress: Callable[[int, int], None] | None = None,
) -> Result:  # fmt: skip
    """Greedy accuracy on the first `samples` of the test split (default: all of it)."""
    held_out = task.samples("test")
    n = min(samples or len(held_out), len(held_out))
    episodes: list[Episode] = []
    for start in range(0, n, batch):
        chosen = [held_out[i] for i in range(start, min(start + batch, n))]
        episodes += collect(policy, task, chosen, group_size=1, greedy=True)
        if progress:
            progress(len(episodes), n)
    return summarise(episodes)


def summarise(episodes: list[Episode]) -> Result:
    n = len(episodes)
    correct = sum(e.score.correct for e in episodes)
    reasons = Counter(e.score.reason for e in episodes if e.score.reason)
    return Result(
        Measured(correct / n, *wilson(correct, n), n),
        sum(e.reward for e in episodes) / n,
        {name: sum(e.score.parts[name] for e in episodes) / n for name in episodes[0].score.parts},
        {reason: count / n for reason, count in sorted(reasons.items())},
        sum(len(e.turns[-1].decision.logprobs) for e in episodes) / n,
        episodes,
    )
