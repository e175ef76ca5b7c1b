"""Held-out evaluation: greedy answers, a 95 % interval, and what was wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from vlrl.metrics import part_means
from vlrl.rollout import collect
from vlrl.types import Episode, Estimate, Policy, wilson


@dataclass(frozen=True)
class EvalResult:
    """What was measured of a model on held-out data."""

    accuracy: Estimate
    metrics: dict[str, float] = field(default_factory=dict, kw_only=True)  # beside the accuracy, as the task reports
    facts: dict[str, str] = field(default_factory=dict, kw_only=True)  # what it was measured on: a checksum of scenes
    episodes: Sequence[Episode] = field(default=(), kw_only=True)

    def row(self) -> dict[str, Any]:
        """The result as a row of metrics."""
        measured = self.accuracy
        return {
            **{f"eval/{k}": v for k, v in {**self.metrics, **self.facts}.items()},
            "eval/accuracy": measured.value, "eval/low": measured.low, "eval/high": measured.high, "eval/n": measured.n,
        }  # fmt: skip


@dataclass(frozen=True)
class Result(EvalResult):
    """What was measured on a task's held-out samples."""

    reward: float
    parts: dict[str, float]
    parse_fail: dict[str, float]
    length: float

    def row(self) -> dict[str, Any]:
        return {
            **super().row(), "eval/reward": self.reward, "eval/length": self.length,
            **{f"eval/reward/{k}": v for k, v in self.parts.items()},
            **{f"eval/parse_fail/{k}": v for k, v in self.parse_fail.items()},
        }  # fmt: skip


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
    told = [dict(getattr(task, name)(episodes)) if hasattr(task, name) else {} for name in ("metrics", "facts")]
    return summarise(episodes, *told)


def summarise(
    episodes: list[Episode], metrics: dict[str, float] | None = None, facts: dict[str, str] | None = None
) -> Result:
    """Accuracy, reward and reasons of scored episodes, with the task's own metrics of them and facts."""
    n = len(episodes)
    correct = sum(e.score.correct for e in episodes)
    reasons = Counter(e.score.reason for e in episodes if e.score.reason)
    return Result(
        Estimate(correct / n, *wilson(correct, n), n),
        sum(e.reward for e in episodes) / n,
        part_means(episodes),
        {reason: count / n for reason, count in sorted(reasons.items())},
        sum(len(e.turns[-1].decision.logprobs) for e in episodes) / n,
        metrics=metrics or {},
        facts=facts or {},
        episodes=episodes,
    )
