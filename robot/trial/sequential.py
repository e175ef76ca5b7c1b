"""The test of two policies that may be looked at after every episode, and what it says: go on, or stop and why."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from robot.trial.evalues import pairs, streams

STEP = 0.005  # between the differences that are tested: the interval's ends are right to half of it
DIFFERENCES = np.round(np.arange(1 - round(1 / STEP), round(1 / STEP)) * STEP, 6)  # inside (-1, 1), 0 among them
Decision = Literal["a", "b", "same", "open"]


@dataclass(frozen=True)
class Rule:
    """A comparison of A with B as it is fixed before the first episode.

    Args:
        alpha: the chance of any false claim about this pair, at whatever time one looks, in (0, 1).
        delta: 'no difference above delta' is said once the confidence sequence lies within [-delta, delta].
        paired: outcomes of a round come from one start (`evalues.pairs`); else `evalues.streams`.
    """

    alpha: float
    delta: float
    paired: bool


@dataclass(frozen=True, eq=False)
class Course:
    """What was known after each of n rounds. Differences are of success shares, A less B."""

    log_e: np.ndarray  # float64 [n], natural log of the e-value against 'no difference'
    low: np.ndarray  # float64 [n], the confidence sequence: with a chance of 1 - alpha it holds the true difference
    high: np.ndarray  # in all rounds at once; it never widens
    threshold: float  # log(1 / alpha)
    decision: Decision
    decided: int | None  # the round, from 1, at which the decision fell

    @property
    def rounds(self) -> int:
        return len(self.log_e)


def follow(rule: Rule, a: Sequence[bool], b: Sequence[bool]) -> Course:
    """The course of a test over n rounds [n], also over those after its decision."""
    won_a, won_b = np.asarray(a, bool), np.asarray(b, bool)
    threshold = -math.log(rule.alpha)
    log_e = (pairs if rule.paired else streams)(won_a, won_b, DIFFERENCES)  # [n, G]
    low, high = _hull(np.maximum.accumulate(log_e, axis=0) < threshold)
    none = log_e[:, DIFFERENCES == 0][:, 0]
    decision, decided = _decide(rule, none >= threshold, low, high, np.cumsum(won_a * 1 - won_b * 1))
    return Course(none, low, high, threshold, decision, decided)


def _hull(kept: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Ends of what is not refuted, [n, G] -> [n] each; half a step further, or the last ends where nothing is left."""
    low = np.clip(DIFFERENCES[kept.argmax(axis=1)] - STEP / 2, -1, 1)
    high = np.clip(DIFFERENCES[kept.shape[1] - 1 - kept[:, ::-1].argmax(axis=1)] + STEP / 2, -1, 1)
    low[kept[:, 0]], high[kept[:, -1]] = -1, 1
    last = max(0, int(kept.any(axis=1).sum()) - 1)  # what is refuted stays so: empty ones come last
    low[last + 1 :], high[last + 1 :] = low[last : last + 1], high[last : last + 1]
    return low, high


def _decide(rule: Rule, differ: np.ndarray, low: np.ndarray, high: np.ndarray, lead: np.ndarray):
    """The first decision of a course and its round."""
    same = (low >= -rule.delta) & (high <= rule.delta)
    differ = differ & (lead != 0)
    stops = np.flatnonzero(differ | same)
    if not len(stops):
        return "open", None
    first = int(stops[0])
    winner = "a" if lead[first] > 0 else "b"
    return (winner if differ[first] else "same"), first + 1
