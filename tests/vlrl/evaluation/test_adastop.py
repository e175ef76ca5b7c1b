"""The test that says which differences are real: its level, its power, when it stops."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from vlrl.evaluation.stats import AdaStop, exchanges

NUMBERS = itertools.count()


def run(draw, pairs, each=5, looks=2, rows=500):
    """A test at 5 % to its end, with exchanges of its own. `draw(arm, n)` -> n measurements."""
    test, measured = AdaStop(pairs, each, looks, rows=rows, seed=next(NUMBERS)), {}
    while test.arms:
        for arm in test.arms:
            measured.setdefault(arm, []).extend(draw(arm, each))
        test.look(measured)
    return test


def rejected(test):
    return {pair for pair, decision in test.decisions.items() if decision.verdict != "open"}


def all_pairs(arms):
    return [(a, b) for i, a in enumerate(arms) for b in arms[i + 1 :]]


def allowed(n):
    """5 % and three standard errors of a share measured n times."""
    return 0.05 + 3 * math.sqrt(0.05 * 0.95 / n)


@pytest.mark.slow
@pytest.mark.parametrize(("each", "looks"), [(3, 1), (5, 1), (5, 2), (3, 3)])
def test_two_equal_arms_are_told_apart_at_most_as_often_as_the_level_says(each, looks):
    """A comparison would announce differences that are not there."""
    rng = np.random.default_rng(each * 10 + looks)
    draw = lambda arm, n: rng.standard_t(2, size=n)  # noqa: E731  far from normal: the test must not mind
    assert sum(bool(rejected(run(draw, [("a", "b")], each, looks))) for _ in range(1500)) / 1500 <= allowed(1500)


@pytest.mark.slow
@pytest.mark.parametrize("looks", [1, 2])
def test_eight_equal_arms_in_twenty_eight_pairs(looks):
    """With many pairs something always looks different: the error of the whole family is held."""
    rng = np.random.default_rng(looks)
    draw = lambda arm, n: rng.normal(size=n)  # noqa: E731
    n = 600
    wrong = sum(bool(rejected(run(draw, all_pairs("abcdefgh"), looks=looks))) for _ in range(n)) / n
    assert 0.015 <= wrong <= allowed(n)  # and a test that never rejects would be worth nothing


@pytest.mark.parametrize("shift", [1.0, 8.0])
def test_arms_that_differ_do_not_make_the_others_differ(shift):
    """One bad arm must not drag its equals along: a and b are equal, c is off by `shift` standard deviations."""
    rng = np.random.default_rng(round(shift))
    draw = lambda arm, n: rng.normal(shift * (arm == "c"), size=n)  # noqa: E731
    tests = [run(draw, all_pairs("abc")) for _ in range(500)]
    assert sum(("a", "b") in rejected(test) for test in tests) / 500 <= allowed(500)
    if shift == 8:
        assert sum(("a", "c") in rejected(test) for test in tests) / 500 > 0.95


def test_a_bad_arm_does_not_hide_a_difference_between_good_ones():
    """A collapsed recipe would make the others look alike, whose difference is what was asked."""
    rng = np.random.default_rng(4)
    means = {"a": 3.0, "b": 0.0, "collapsed": -40.0}
    tests = [run(lambda arm, n: rng.normal(means[arm], size=n), all_pairs(list(means))) for _ in range(100)]
    assert sum(("a", "b") in rejected(test) for test in tests) > 95


def test_a_clear_difference_stops_after_the_first_look_and_an_unclear_one_asks_for_more():
    """The seeds of hours would be run for nothing, or an open question would be closed."""
    values = {"a": [0.8, 0.81, 0.79, 0.82, 0.8], "b": [0.6, 0.61, 0.59, 0.6, 0.62], "c": [0.8, 0.8, 0.78, 0.83, 0.81]}
    test = AdaStop([("a", "b"), ("a", "c")], 5, 3)
    test.look(values)
    assert (test.decisions["a", "b"].verdict, test.decisions["a", "b"].look) == ("larger", 1)
    assert test.decisions["a", "b"].difference == pytest.approx(0.2)
    assert test.undecided == [("a", "c")] and test.arms == ["a", "c"]


def test_p_of_the_clearest_case_is_known():
    """5 against 5, all of one above all of the other: 2 of 252 exchanges are as extreme."""
    test = AdaStop([("a", "b")], 5, 1, rows=100_000)
    test.look({"a": [6, 7, 8, 9, 10], "b": [1, 2, 3, 4, 5]})
    assert test.decisions["a", "b"].p == pytest.approx(2 / 252, abs=1e-3)
    assert test.decisions["a", "b"].verdict == "larger"


def test_the_unit_does_not_matter_and_the_sign_follows_the_names():
    """Percent or shares, a - b or b - a: the same answer."""
    rng = np.random.default_rng(5)
    for _ in range(20):
        a, b = rng.normal(1.5, 1, 5), rng.normal(size=5)
        tests = [AdaStop([pair], 5, 2) for pair in (("a", "b"), ("b", "a"), ("a", "b"))]
        for test, scale in zip(tests, (1, 1, 100), strict=True):
            test.look({"a": a * scale, "b": b * scale})
        one, other, scaled = (next(iter(test.decisions.values())) for test in tests)
        assert one.p == scaled.p and one.p == pytest.approx(other.p, abs=0.02)
        assert one.difference == pytest.approx(-other.difference)
        assert one.verdict == scaled.verdict


def test_nothing_is_asked_for_after_the_last_look():
    """The command would train for ever."""
    test = run(lambda arm, n: [0.5] * n, [("a", "b")], each=3, looks=3)
    assert (test.done, test.arms, test.decisions["a", "b"].verdict, test.decisions["a", "b"].p) == (3, [], "open", 1.0)


def test_exchanges_leave_the_data_first_and_lose_nothing():
    """The data must be among the exchanges, or the test is not exact; a lost measurement would bias it."""
    drawn = exchanges(3, 4, 2, 50, 0)
    assert drawn.shape == (2, 50, 12) and (drawn[:, 0] == np.arange(12)).all()
    assert (np.sort(drawn, 2) == np.arange(12)).all()
