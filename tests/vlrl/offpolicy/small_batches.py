"""What tests of agents share: a small problem, transitions by chance, the limits of two controls."""

from __future__ import annotations

import numpy as np

from vlrl.offpolicy.base import AgentSpec, Transitions

LOW, HIGH = np.array([-0.4, 0.0], np.float32), np.array([0.4, 0.1], np.float32)


def about(start: str | None = None, **changes) -> AgentSpec:
    given = {"state": 3, "chunk": 2, "controls": ("x", "grip"), "low": LOW, "high": HIGH, "gamma": 0.5, "start": start}
    return AgentSpec(**given | {"mean": np.zeros(3, np.float32), "spread": np.ones(3, np.float32)} | changes)


def batch(count: int = 8, seed: int = 0) -> Transitions:
    rng = np.random.default_rng(seed)
    return Transitions(
        state=rng.standard_normal((count, 3)), action=rng.uniform(LOW, HIGH, (count, 2, 2)), reward=rng.random(count),
        terminal=rng.random(count) < 0.3, next_state=rng.standard_normal((count, 3)), used=np.ones(count),
        person=np.zeros(count),
    )  # fmt: skip


def cut(count: int = 8, seed: int = 0, **changes) -> Transitions:
    """As `batch`, with chunks that were cut short by the end of an episode."""
    rng = np.random.default_rng(seed)
    made = {
        "state": rng.standard_normal((count, 3)), "action": rng.uniform(LOW, HIGH, (count, 2, 2)),
        "reward": rng.random(count), "terminal": rng.random(count) < 0.3, "used": rng.choice([0.5, 1.0], count),
        "next_state": rng.standard_normal((count, 3)), "person": np.zeros(count),
    }  # fmt: skip
    return Transitions(**made | changes)
