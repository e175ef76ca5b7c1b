"""Statistics of a trial: e-values, Fisher's test, stopping early."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import comb
from typing import Literal

import numpy as np

# E-processes of two streams of successes: bets against 'the difference is d' that nobody can win by waiting.
#
# A round holds one outcome of A and one of B. Before each round a bet is placed from the rounds before it alone; were
# the true difference d, its expected return would be at most 1, whatever the shares are and however they change from
# round to round. So the product of all returns exceeds 1/alpha with a chance of at most alpha, ever (Ville): it may be
# looked at after each round, and rounds may be stopped or added for any reason.
#
# Shapes: n rounds, G differences; leading axes are independent trials.

PRIOR = 1.0  # of Beta(p, p) and Dirichlet(p, p, p): uniform. Validity does not hang on it, how soon a trial ends does
HALVINGS = 36  # of an interval of length 1 at most


def streams(a: np.ndarray, b: np.ndarray, differences: np.ndarray, prior: float = PRIOR) -> np.ndarray:
    """Log e-values of two independent streams against each difference of their shares, A less B.

    Turner, Ly and Grünwald, arXiv 2106.02693 (difference 0, with blocks of one outcome each); Turner and Grünwald,
    arXiv 2203.09785 (other differences). The bet is the likelihood ratio of the posterior means against the nearest
    point, by Kullback-Leibler divergence, of the shares with that difference: the reverse information projection.

    Args:
        a, b: outcomes, bool [..., n].
        differences: float [G], in (-1, 1).
        prior: of Beta(prior, prior) for each share. The paper's 0.18 is for the worst case; at shares that robots have
            the uniform one decides sooner (docs/trial.md).

    Returns:
        float64 [..., n, G], after each round.
    """
    here, there = _means(a, prior), _means(b, prior)
    low = _nearest_shares(here, there, differences)
    return np.cumsum(_log_ratio(a, here, low + differences) + _log_ratio(b, there, low), axis=-2)


def pairs(a: np.ndarray, b: np.ndarray, differences: np.ndarray) -> np.ndarray:
    """Log e-values of pairs of outcomes from one start each, which may depend on each other.

    At the difference 0 only pairs that differ count, as in McNemar's test: each returns twice the share that was bet
    on its side, the posterior mean of Beta(1, 1). Elsewhere the bet is on 'only A', 'only B' and 'the same', against
    the nearest law of the three with that difference.

    Args, Returns: see `streams`.
    """
    a, b = np.asarray(a, bool), np.asarray(b, bool)
    outcomes = np.stack([a & ~b, b & ~a, a == b], axis=-1)  # [..., n, 3]
    before = np.cumsum(outcomes, axis=-2) - outcomes
    guess = (before + PRIOR) / (before.sum(axis=-1, keepdims=True) + 3 * PRIOR)
    nearest = _nearest_pairs(guess, differences)
    ratio = np.log(guess)[..., None, :] - np.log(nearest)  # [..., n, G, 3]
    return np.cumsum(np.take_along_axis(ratio, outcomes.argmax(axis=-1)[..., None, None], axis=-1)[..., 0], axis=-2)


def _means(outcomes: np.ndarray, prior: float) -> np.ndarray:
    """The posterior mean of a stream's share before each round, from the rounds before it: float64 [..., n]."""
    outcomes = np.asarray(outcomes, bool)
    won = np.cumsum(outcomes, axis=-1) - outcomes
    return (won + prior) / (np.arange(outcomes.shape[-1]) + 2 * prior)


def _log_ratio(outcomes: np.ndarray, guess: np.ndarray, null: np.ndarray) -> np.ndarray:
    """Log-likelihood ratio of the outcomes [..., n] under the guess [..., n] against the null [..., n, G]."""
    won, guess = np.asarray(outcomes, bool)[..., None], guess[..., None]
    return np.where(won, np.log(guess) - np.log(null), np.log1p(-guess) - np.log1p(-null))


def _nearest_shares(a: np.ndarray, b: np.ndarray, d: np.ndarray) -> np.ndarray:
    """B's share s of the pair (s + d, s) nearest to (a, b) [..., n] -> [..., n, G], by halving."""
    a, b = a[..., None], b[..., None]
    shape = np.broadcast_shapes(a.shape, d.shape)
    low, high = (np.broadcast_to(end, shape) for end in (np.maximum(0.0, -d), np.minimum(1.0, 1 - d)))
    for _ in range(HALVINGS):
        s = (low + high) / 2
        rises = (a - s - d) / ((s + d) * (1 - s - d)) + (b - s) / (s * (1 - s)) > 0  # the likelihood, towards high
        low, high = np.where(rises, s, low), np.where(rises, high, s)
    return (low + high) / 2


def _nearest_pairs(guess: np.ndarray, d: np.ndarray) -> np.ndarray:
    """The law (only A, only B, the same) with 'only A' - 'only B' = d nearest to a guess [..., n, 3] -> [..., n, G, 3].

    The rarer of 'only A' and 'only B' is the root in [0, 1] of 2 s^2 - p s - q, in the form that does not cancel.
    """
    only_a, only_b, same = (guess[..., None, k] for k in range(3))
    more, less = np.where(d > 0, only_a, only_b), np.where(d > 0, only_b, only_a)
    size = np.abs(d)
    p, q = more * (1 - size) + less * (1 - 3 * size) - 2 * same * size, less * size * (1 - size)
    root = np.sqrt(p * p + 8 * q)
    rare = np.where(p > 0, (p + root) / 4, 2 * q / np.where(p > 0, 1, root - p))
    return np.stack([rare + np.maximum(d, 0), rare + np.maximum(-d, 0), 1 - size - 2 * rare], axis=-1)


# Fisher's exact test of two shares, for what is looked at once: whether voids fell on one policy more.


@cache
def fisher(hits_a: int, n_a: int, hits_b: int, n_b: int) -> float:
    """Two-sided p-value of 'hits are as likely in A as in B': the chance of all tables at most as likely as this one.

    Conditional on the number of hits (Fisher 1935); as R's fisher.test and SciPy's fisher_exact. 1 without trials.
    """
    hits = hits_a + hits_b
    ways = {k: comb(n_a, k) * comb(n_b, hits - k) for k in range(max(0, hits - n_b), min(n_a, hits) + 1)}
    return sum(way for way in ways.values() if way <= ways[hits_a]) / comb(n_a + n_b, hits)


# The test of two policies that may be looked at after every episode, and what it says: go on, or stop and why.

STEP = 0.005  # between the differences that are tested: the interval's ends are right to half of it
DIFFERENCES = np.round(np.arange(1 - round(1 / STEP), round(1 / STEP)) * STEP, 6)  # inside (-1, 1), 0 among them
Decision = Literal["a", "b", "same", "open"]


@dataclass(frozen=True)
class ComparisonRule:
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


def follow(rule: ComparisonRule, a: Sequence[bool], b: Sequence[bool]) -> Course:
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


def _decide(rule: ComparisonRule, differ: np.ndarray, low: np.ndarray, high: np.ndarray, lead: np.ndarray):
    """The first decision of a course and its round."""
    same = (low >= -rule.delta) & (high <= rule.delta)
    differ = differ & (lead != 0)
    stops = np.flatnonzero(differ | same)
    if not len(stops):
        return "open", None
    first = int(stops[0])
    winner = "a" if lead[first] > 0 else "b"
    return (winner if differ[first] else "same"), first + 1
