"""What rows of episodes say of an arm, and of two arms beside each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from vlrl.paired import count, mcnemar, needed, newcombe
from vlrl.simulation.play import Played, Row
from vlrl.types import wilson

POINTS = 0.1  # the difference of success that a comparison should be able to see


def measure(played: Played, hz: float) -> dict[str, Any]:
    """An arm in numbers (docs/simulate.md says what each is); None where no episode has one."""
    rows, n = played.rows, len(played.rows)
    won = [row["ticks"] for row in rows if row["success"]]
    low, high = wilson(len(won), n)
    ticks = sum(row["ticks"] for row in rows)
    faults = Counter(fault for row in rows for fault in row["faults"])
    return {
        "name": played.arm.name, "source": played.arm.source,
        "success": {"value": len(won) / n, "low": low, "high": high, "count": len(won), "n": n},
        "outcomes": dict(Counter(row["outcome"] for row in rows).most_common()),
        "reasons": dict(Counter(f"{row['outcome']}: {row['reason']}" for row in rows if row["reason"]).most_common()),
        "repeats": {"count": faults.total(), "reasons": dict(faults.most_common())},
        "ticks_to_success": quartiles(won), "seconds_to_success": quartiles([each / hz for each in won]),
        "action_rate": mean(rows, "action_rate"), "action_jerk": mean(rows, "action_jerk"),
        "clipped": sum(row["clipped"] for row in rows) / max(1, ticks), "ticks": ticks,
        "wall_s": played.wall_s, "policy_s": played.policy_s,
        "seconds_per_episode": played.wall_s / n, "ticks_per_s": ticks / played.wall_s,
    }  # fmt: skip


def compare(a: Sequence[Row], b: Sequence[Row]) -> dict[str, Any]:
    """Two arms on the same scenes: counts, difference of success A - B, its 95 % interval, exact p.

    Raises:
        ValueError: their scenes are not the same.
    """
    if [row["seed"] for row in a] != [row["seed"] for row in b]:
        raise ValueError("pairs are of the same scenes")
    pairs = count([row["success"] for row in a], [row["success"] for row in b])
    low, high = newcombe(pairs)
    return {
        "a": a[0]["arm"], "b": b[0]["arm"], "n": pairs.n, "both": pairs.both, "only_a": pairs.only_a,
        "only_b": pairs.only_b, "neither": pairs.neither, "difference": pairs.difference, "low": low, "high": high,
        "p": mcnemar(pairs), "needed": needed(pairs.discordant, POINTS),
    }  # fmt: skip


def notes(pairs: Sequence[dict[str, Any]]) -> list[str]:
    """What a reader could take wrongly: no difference seen where none of POINTS could be."""
    return [
        f"{pair['n']} scenes are too few to see a difference of {100 * POINTS:.0f} points between {pair['a']} and "
        f"{pair['b']} with a power of 80 %: it takes about {pair['needed']}, if as many of them differ as here"
        for pair in pairs
        if pair["p"] >= 0.05 and pair["n"] < pair["needed"]
    ]


def quartiles(values: Sequence[float]) -> dict[str, float] | None:
    """Median and quartiles, interpolated linearly; None of nothing."""
    if not values:
        return None
    low, median, high = np.percentile(values, (25, 50, 75)).tolist()
    return {"median": median, "low": low, "high": high}


def mean(rows: Sequence[Row], name: str) -> float | None:
    known = [row[name] for row in rows if row[name] is not None]
    return sum(known) / len(known) if known else None
