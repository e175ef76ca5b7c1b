"""Fisher's exact test of two shares, for what is looked at once: whether voids fell on one policy more."""

from __future__ import annotations

from functools import cache
from math import comb


@cache
def fisher(hits_a: int, n_a: int, hits_b: int, n_b: int) -> float:
    """Two-sided p-value of 'hits are as likely in A as in B': the chance of all tables at most as likely as this one.

    Conditional on the number of hits (Fisher 1935); as R's fisher.test and SciPy's fisher_exact. 1 without trials.
    """
    hits = hits_a + hits_b
    ways = {k: comb(n_a, k) * comb(n_b, hits - k) for k in range(max(0, hits - n_b), min(n_a, hits) + 1)}
    return sum(way for way in ways.values() if way <= ways[hits_a]) / comb(n_a + n_b, hits)
