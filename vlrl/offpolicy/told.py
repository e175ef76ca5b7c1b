"""What an off-policy run tells of itself: the outcome of a round, its summary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vlrl.types import Episode


def outcome(episodes: Sequence[Episode]) -> dict[str, float]:
    """Rewards and successes of the episodes of a round; {} of none."""
    if not episodes:
        return {}
    n, parts = len(episodes), episodes[0].score.parts
    return {
        "reward": sum(e.reward for e in episodes) / n,
        **{f"reward/{name}": sum(e.score.parts[name] for e in episodes) / n for name in parts},
        "accuracy": sum(e.score.correct for e in episodes) / n,
        "length": sum(len(e.turns) for e in episodes) / n,
        "repeated": sum(len(e.faults) for e in episodes),
    }


def summary(
    results: Mapping[str, Mapping[str, float]], counts: Mapping[str, int], clock: Mapping[str, float], **about: Any
) -> dict[str, Any]:
    """What `vlrl report` and others read of a finished run.

    Args:
        results: before, after and best -> value, low, high, n and step.
    """
    ends = {when: results[when] for when in ("before", "after") if when in results}
    return {
        "metric": "accuracy",
        **{when: {key: each[key] for key in ("value", "low", "high", "n")} for when, each in ends.items()},
        "best": results.get("best"), **about, "rollouts": counts["episodes"], **counts, **clock,
    }  # fmt: skip
