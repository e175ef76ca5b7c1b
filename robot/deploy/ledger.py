"""What a run was like: latencies, punctuality, what the governor did, what a person did, how episodes ended."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from robot.motion.body import Ticked
from robot.serving.ledger import Answer
from vlrl.types import wilson

PERCENTILES = (50, 95, 99)
BINS = 40  # of the histograms


@dataclass
class Ledger:
    """Counts from the first tick on. Series are float32 [n], in seconds.

    Args:
        hz: ticks a second that the motion process should keep.
    """

    hz: float
    episodes: list[dict[str, Any]] = field(default_factory=list)
    sources: Counter[str] = field(default_factory=Counter)
    events: Counter[tuple[str, str]] = field(default_factory=Counter)
    causes: dict[tuple[str, str], str] = field(default_factory=dict)  # the first of each
    takeovers: int = 0
    recoveries: int = 0
    reconnects: int = 0
    lost_records: int = 0
    series: dict[str, array] = field(
        default_factory=lambda: {name: array("f") for name in ("round_trip", "queue", "inference", "age", "jitter")}
    )

    def __post_init__(self):
        self._last: Ticked | None = None

    def tick(self, ticked: Ticked) -> None:
        self.sources[ticked.source] += 1
        for event in ticked.events:
            self.count(event.stage, event.reaction, event.cause)
        last, self._last = self._last, ticked
        if ticked.source == "policy":
            self.series["age"].append(ticked.age)
        if last is not None and ticked.tick == last.tick + 1:
            self.series["jitter"].append(ticked.sensed.t - last.sensed.t - 1 / self.hz)
        if ticked.source == "person" and (last is None or last.source != "person"):
            self.takeovers += 1

    def count(self, stage: str, reaction: str, cause: str) -> None:
        self.events[stage, reaction] += 1
        self.causes.setdefault((stage, reaction), cause)

    def answer(self, answer: Answer) -> None:
        self.series["round_trip"].append(answer.received_at - answer.sent_at)
        self.series["queue"].append(answer.queue_s)
        self.series["inference"].append(answer.infer_s)

    def pause(self) -> None:
        """What follows does not follow on the last tick: between episodes the rate does not count."""
        self._last = None

    def result(self) -> dict[str, Any]:
        """What JSON can hold."""
        judged = [episode for episode in self.episodes if episode["success"] is not None]
        won, ticks = sum(episode["success"] for episode in judged), self.sources.total()
        low, high = wilson(won, len(judged))
        share = self.sources["policy"] / ticks if ticks else 0.0
        return {
            "success": {"value": won / len(judged) if judged else None, "low": low, "high": high, "n": len(judged)},
            "episodes": self.episodes,
            "latency_ms": {name: summary(self.series[name]) for name in ("round_trip", "queue", "inference", "age")},
            "jitter_ms": summary(np.abs(self.series["jitter"])),
            "ticks": {"n": ticks, "hz": self.hz, "not_fresh": 1 - share if ticks else 0.0, **self.sources},
            "events": [
                {"stage": stage, "reaction": reaction, "count": count, "first_cause": self.causes[stage, reaction]}
                for (stage, reaction), count in self.events.most_common()
            ],
            "interventions": {"takeovers": self.takeovers, "ticks": self.sources["person"]},
            "recoveries": self.recoveries, "reconnects": self.reconnects, "lost_records": self.lost_records,
        }  # fmt: skip


def summary(seconds: Sequence[float] | np.ndarray) -> dict[str, float]:
    """Percentiles in milliseconds; only n = 0 where there is nothing."""
    if not len(seconds):
        return {"n": 0}
    values = np.asarray(seconds, np.float64) * 1000
    found = {f"p{each}": float(np.percentile(values, each)) for each in PERCENTILES}
    return {"n": len(values), **found, "max": float(values.max())}
