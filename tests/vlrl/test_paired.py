"""Statistics of pairs: published values, and what must hold for all tables."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest, ttest_ind

from vlrl.evaluation.stats import Pairs, count, detectable, mcnemar, needed, newcombe, welch
from vlrl.types import wilson

CAVO = Pairs(59, 6, 16, 80)  # Cavo et al. 2012, in Fagerland, Lydersen and Laake, Statistics in Medicine 33 (2014)
ALTMAN = Pairs(14, 5, 0, 22)  # Altman et al., Statistics with Confidence (2000), table 6.2
counts = st.integers(0, 400)
tables = st.builds(Pairs, counts, counts, counts, counts).filter(lambda pairs: pairs.n > 0)


def swapped(pairs):
    return Pairs(pairs.both, pairs.only_b, pairs.only_a, pairs.neither)


@pytest.mark.parametrize(
    ("pairs", "difference", "low", "high", "digits"),
    [(CAVO, -0.0621, -0.1186, -0.0046, 4), (ALTMAN, 0.122, 0.011, 0.226, 3)],
)
def test_newcombe_equals_published_values(pairs, difference, low, high, digits):
    """A policy would be called better, or not, by a wrong interval."""
    assert tuple(round(each, digits) for each in (pairs.difference, *newcombe(pairs))) == (difference, low, high)


def test_mcnemar_equals_published_values():
    """As above, by a wrong p. The R package `contingencytables` gives 0.052479 for the first."""
    assert mcnemar(CAVO) == pytest.approx(0.052479, abs=5e-7)
    assert mcnemar(ALTMAN) == 2 * 0.5**5
    assert mcnemar(Pairs(3, 0, 0, 4)) == 1.0


def test_needed_equals_published_values():
    """Someone would play too few scenes and take what chance gave. Connor, Biometrics 43 (1987), page 209."""
    assert needed(0.45 + 0.05, 0.45 - 0.05) == 23
    assert needed(0.45, 0.15) == 155
    assert needed(0.0, 0.1) == needed(0.1, 0.1)  # fewer scenes than the difference cannot make it


def test_pairs_are_counted_scene_by_scene():
    """A success of one arm would be set against another scene's."""
    assert count([True, True, False, False, True], [True, False, True, False, True]) == Pairs(2, 1, 1, 1)
    with pytest.raises(ValueError, match="shorter"):
        count([True, False], [True])


@given(tables)
def test_mcnemar_is_the_binomial_test(pairs):
    """It is written out, to be had without scipy's seconds of loading, and must stay what it is."""
    differ = pairs.only_a + pairs.only_b
    assert mcnemar(pairs) == pytest.approx(binomtest(pairs.only_a, differ).pvalue if differ else 1.0, rel=1e-9)


@given(tables)
def test_the_interval_holds_the_difference(pairs):
    """A bar would be drawn beside its dot, or beyond what shares can be."""
    low, high = newcombe(pairs)
    assert -1 <= low <= pairs.difference <= high <= 1 and low < high


@given(tables)
def test_swapping_the_arms_mirrors_the_result(pairs):
    """Which of two policies is named first would decide whether they differ."""
    low, high = newcombe(pairs)
    assert newcombe(swapped(pairs)) == pytest.approx((-high, -low), abs=1e-12)
    assert mcnemar(swapped(pairs)) == pytest.approx(mcnemar(pairs), rel=1e-9)


@given(counts, counts)
def test_arms_that_agree_do_not_differ(both, neither):
    """An arm beside its own copy would win or lose."""
    pairs = Pairs(both, 0, 0, neither + 1)
    low, high = newcombe(pairs)
    assert mcnemar(pairs) == 1.0 and low == pytest.approx(-high, abs=1e-12)


@given(st.integers(1, 400), st.integers(0, 400))
def test_against_an_arm_that_never_wins_the_interval_is_of_both_shares(won, lost):
    """Without a correlation to lean on, the two Wilson intervals are combined as independent ones."""
    pairs = Pairs(0, won, 0, lost)
    (low, high), (_, most) = wilson(won, pairs.n), wilson(0, pairs.n)
    share = won / pairs.n
    below = ((share - low) ** 2 + most**2) ** 0.5
    assert newcombe(pairs) == pytest.approx((max(-1, share - below), high), abs=1e-9)


def test_the_interval_of_two_means_is_welchs():
    """An effect would be printed with an interval that is not one."""
    rng = np.random.default_rng(0)
    for _ in range(20):
        a, b = rng.normal(0.6, 0.05, rng.integers(2, 9)), rng.normal(0.5, 0.01, rng.integers(2, 9))
        expected = ttest_ind(a, b, equal_var=False).confidence_interval(0.95)
        assert welch(a, b) == pytest.approx((expected.low, expected.high), rel=1e-9)
    assert welch([0.5, 0.5], [0.25, 0.25]) == (0.25, 0.25)


@pytest.mark.slow
def test_a_detectable_effect_is_found_in_four_of_five_repetitions():
    """A page that says what its budget can show must not promise more."""
    rng, n, sd = np.random.default_rng(1), 4000, 0.03
    for seeds in (5, 10):
        sample = [sd * math.sqrt((seeds - 1) / 2) * x for x in (1, -1, *[0] * (seeds - 2))]  # its variance is sd ** 2
        smallest = detectable([sample, sample])
        draws = rng.normal(0, sd, (n, 2, seeds))
        found = np.mean([ttest_ind(a + smallest, b).pvalue < 0.05 for a, b in draws])
        assert found == pytest.approx(0.8, abs=0.03)
