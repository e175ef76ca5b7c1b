"""Rewards for how many there are. `rewards.parse.count` reads the number."""

from __future__ import annotations

from rewards.total import total


@total()
def exact(predicted: int, truth: int) -> float:
    """0 or 1: the right number. Never raises."""
    return float(predicted == truth)


@total()
def closeness(predicted: int, truth: int) -> float:
    """1 - |predicted - truth| / truth, in [0, 1]: off by the truth itself or more is worth 0. Never raises.

    A truth of 0 is worth 1 for 0 only; a truth below 0 is worth 0 to all.
    """
    most = max(truth, 1)
    return 0.0 if truth < 0 else 1.0 - min(abs(predicted - truth), most) / most
