"""The numbers of a comparison: means over seeds, first crossings, pass@k, and the page that shows them."""

from __future__ import annotations

import itertools
import math
import re
from html.parser import HTMLParser

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlrl.evaluation.compare import pass_at
from vlrl.evaluation.compare_report import (
    COSTS,
    Curves,
    Line,
    area,
    arm_summary,
    chart,
    courses,
    crossing,
    legend,
    over_seeds,
    summary_reached,
    targets,
)
from vlrl.evaluation.stats import AdaStop


def curves(seed, accuracy, slow=1.0):
    n = len(accuracy)
    x = {axis: np.arange(n) * 10.0 * slow for axis in COSTS}
    after = {"value": accuracy[-1], "low": accuracy[-1] - 0.04, "high": accuracy[-1] + 0.04, "n": 512}
    summary = {"before": after, "after": after, "updates": 5, "skipped": 0, "cpu_s": 9.0, "rollouts": 40}
    answers = {"n": 4, "correct": [0, 1, 4], "entropy": 0.2, "length": 9.0, "cpu_s": 1.0}
    return Curves(seed, x, np.array(accuracy), np.linspace(1.0, 0.5, n - 1), summary, answers)


@given(st.integers(1, 7), st.data())
def test_pass_at_k_is_the_share_of_sets_of_k_answers_with_a_right_one(n, data):
    """The naive 1 - (1 - c/n)^k is biased: it would make a recipe that narrows its answers look better."""
    k, c = data.draw(st.integers(1, n)), data.draw(st.integers(0, n))
    right = [True] * c + [False] * (n - c)
    sets = list(itertools.combinations(right, k))
    assert pass_at([c], n, k) == pytest.approx(sum(map(any, sets)) / len(sets))


def test_pass_at_k_is_unbiased():
    """Of answers that are right with chance 0.3, one of 4 is right with chance 1 - 0.7^4."""
    correct = np.random.default_rng(0).binomial(8, 0.3, size=20_000).tolist()
    assert pass_at(correct, 8, 4) == pytest.approx(1 - 0.7**4, abs=0.01)


def test_a_crossing_lies_between_the_evaluations_around_it():
    """Rounded to evaluations, half the steps could be claimed or missed."""
    x = np.array([[0.0, 10, 20, 30]] * 4)
    accuracy = np.array([[0.2, 0.4, 0.8, 0.7], [0.2, 0.3, 0.4, 0.5], [0.7, 0.1, 0.9, 0.9], [0.6, 0.6, 0.6, 0.6]])
    assert crossing(x, accuracy, 0.6).tolist() == [15.0, math.inf, 0.0, 0.0]


def test_reaching_a_target_has_an_interval_over_seeds_and_may_not_happen():
    """One lucky seed is no result; a recipe that never got there must not get a number."""
    runs = [curves(i, [0.2, 0.4 + 0.02 * i, 0.8]) for i in range(5)]
    found = summary_reached(runs, 0.6)["steps"]
    assert 10 < found["low"] < found["value"] < found["high"] < 20
    assert summary_reached(runs, 0.9)["rollouts"] == {"value": None, "low": None, "high": None}
    assert summary_reached(runs[:1], 0.6)["steps"]["low"] is None


def test_intervals_over_seeds_are_students():
    """With five seeds the normal quantile is a third too narrow."""
    values = [0.6, 0.62, 0.64, 0.66, 0.68]
    found = over_seeds(values)
    assert found["value"] == pytest.approx(0.64)
    assert found["high"] - found["value"] == pytest.approx(2.776445 * np.std(values, ddof=1) / math.sqrt(5), rel=1e-6)
    assert over_seeds([0.5]) == {"value": 0.5, "low": None, "high": None}


def test_an_arm_is_summed_up():
    """The table, the curves and the JSON all come from here."""
    runs = [curves(0, [0.2, 0.6, 0.8]), curves(1, [0.2, 0.4, 0.6])]
    arm = arm_summary(runs, [1, 4])
    assert arm["final"]["value"] == pytest.approx(0.7) and [s["seed"] for s in arm["seeds"]] == [0, 1]
    assert arm["pass_at"]["1"]["value"] == pytest.approx(5 / 12) and arm["pass_at"]["4"]["value"] == pytest.approx(
        2 / 3
    )
    assert area(runs[0]) == pytest.approx((0.4 + 0.7) / 2)
    assert courses(runs)["accuracy"][1]["value"] == pytest.approx(0.5)
    assert targets([0.5, "x"], {"x": arm}) == [("0.500", 0.5), ("x's final accuracy 0.700", pytest.approx(0.7))]


def test_a_chart_draws_every_arm_inside_its_frame_and_escapes_names():
    """A recipe's name that is markup would break the page; a curve outside the frame is not seen."""
    lines = [Line(f"<b>{i}", [0, 5, 9], [0.1, 0.5, 0.9], [None, 0.4, 0.8], [None, 0.6, 1.0]) for i in range(10)]
    drawn = chart(lines, "steps", "accuracy") + legend([line.name for line in lines])
    HTMLParser().feed(drawn)
    assert "<b>" not in drawn and drawn.count('class="line"') == 10 and drawn.count("data-dashed") == 4
    for path in re.findall(r' d="M([^"Z]*)', drawn):
        for point in path.split("L"):
            x, y = map(float, point.split())
            assert 0 <= x <= 620 and 0 <= y <= 300


def test_decided_pairs_tell_which_is_better():
    """The verdict's direction is what people read."""
    from vlrl.evaluation.compare_report import result_decisions

    test = AdaStop([("a", "b")], 4, 1)
    test.look({"a": [1, 2, 3, 4], "b": [11, 12, 13, 14]})
    assert result_decisions(test)[0] | {"p": 0} == {
        "a": "a", "b": "b", "verdict": "smaller", "difference": -10.0, "p": 0, "look": 1,
    }  # fmt: skip
