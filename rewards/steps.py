"""Credit for single steps of an episode, from values that critics estimate."""

from __future__ import annotations

from rewards.total import total


@total()
def advances(value: float, next_value: float, reward: float, returned: float, cost: float = 0.05) -> float:
    """0 or 1: the step gained more than its `cost`: V(next) - V(now) - cost + reward + Monte Carlo return > 0.

    0 for NaN. Never raises on numbers. Source: DigiRL (2406.11896), the filter of its actor's steps.
    """
    return float(next_value - value - cost + reward + returned > 0)
