"""Matching of boxes and the default detection reward."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment

from rewards import boxes
from rewards.parse import Object

SIDES = st.integers(0, 60)
BOXES = st.builds(lambda x, y, w, h: (x, y, x + w, y + h), SIDES, SIDES, st.integers(1, 40), st.integers(1, 40))
OBJECTS = st.lists(st.builds(Object, st.sampled_from(["cat", "dog", "cow"]), BOXES), max_size=6)


def apart(draw):
    """Truths that do not overlap: each in a cell of its own."""
    cells = draw(st.lists(st.integers(0, 24), unique=True, min_size=1, max_size=6))
    corners = [(100 * (cell % 5), 100 * (cell // 5)) for cell in cells]
    sizes = [(draw(st.integers(4, 90)), draw(st.integers(4, 90))) for _ in cells]
    labels = [draw(st.sampled_from(["cat", "dog"])) for _ in cells]
    return [
        Object(label, (x, y, x + w, y + h))
        for label, (x, y), (w, h) in zip(labels, corners, sizes, strict=True)
    ]  # fmt: skip


APART = st.composite(apart)()


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 9, 40])
def test_ious_are_those_of_single_boxes(count):
    """A fast path that differs would pay some completions otherwise than others."""
    rng = random.Random(count)
    first, second = (
        [tuple(rng.choice([rng.uniform(0, 9), rng.randrange(9)]) for _ in range(4)) for _ in range(n)]
        for n in (count, 7)
    )  # fmt: skip
    expected = [[boxes.iou(a, b) for b in second] for a in first]
    assert boxes.ious(first, second).tolist() == expected
    assert boxes.ious(first, second).shape == (count, 7)


@settings(deadline=None)  # a busy machine is no failure
@given(BOXES, BOXES)
def test_gious_are_below_ious_and_fall_with_distance(first, second):
    """A generalized IoU that grew with distance would draw boxes away."""
    x1, y1, x2, y2 = second
    away = (x1 + 1000, y1, x2 + 1000, y2), (x1 + 2000, y1, x2 + 2000, y2)
    near, far, farther = boxes.gious([first], [second, *away])[0]
    assert -1 <= farther < far < 0
    assert far < near <= boxes.iou(first, second) + 1e-12
    assert boxes.gious([first], [first])[0, 0] == 1.0


def test_gious_equal_the_formula():
    """Squares of side 2 that share one of 7 cells; the hull has 9."""
    assert boxes.gious([(0, 0, 2, 2)], [(1, 1, 3, 3)])[0, 0] == pytest.approx(1 / 7 - 2 / 9)
    assert boxes.gious([(0, 0, 2, 2)], [(1, 1, 1, 3), (3, 3, 1, 1), (0, 0, 1e308, 1e308)]).tolist() == [[-1.0] * 3]


@settings(deadline=None)  # a busy machine is no failure
@given(st.integers(1, 5), st.integers(1, 5), st.integers(0, 10**6))
def test_assign_finds_the_largest_sum(rows, columns, seed):
    """A lesser matching would pay for the order in which boxes are listed."""
    gain = np.random.default_rng(seed).random((rows, columns))
    found, expected = boxes.assign(gain), linear_sum_assignment(gain, maximize=True)
    assert gain[found].sum() == pytest.approx(gain[expected].sum())
    assert len(set(found[0])) == len(set(found[1])) == min(rows, columns)


def test_credit_rises_in_equal_steps():
    """The thresholds of a config decide what is paid."""
    iou = np.array([0.0, 0.49, 0.5, 0.7, 0.9, 0.95, 1.0])
    assert boxes.credit(iou, (0.5,)).tolist() == [0, 0, 1, 1, 1, 1, 1]
    assert boxes.credit(iou, (0.5, 0.9)).tolist() == pytest.approx([0, 0, 0, 0.5, 1, 1, 1])
    assert boxes.credit(iou, (0.5, 0.7, 0.95)).tolist() == pytest.approx([0, 0, 0, 0.5, 0.9, 1, 1])


@settings(deadline=None)  # a busy machine is no failure
@given(OBJECTS)
def test_the_truth_is_worth_1(truths):
    """A perfect answer must be the best there is, the empty one too."""
    assert boxes.f1(truths, truths) == 1.0
    assert boxes.f1([Object(f" {o.label.upper()} ", o.box) for o in truths], truths) == 1.0


@settings(deadline=None)  # a busy machine is no failure
@given(OBJECTS, OBJECTS, st.randoms(use_true_random=False))
def test_order_says_nothing(predicted, truths, rng):
    """Otherwise a policy learns an order in which to list its guesses."""
    shuffled = rng.sample(predicted, len(predicted)), rng.sample(truths, len(truths))
    assert boxes.f1(*shuffled) == pytest.approx(boxes.f1(predicted, truths), abs=1e-12)


@settings(deadline=None)  # a busy machine is no failure
@given(APART, st.data())
def test_no_surplus_box_is_paid(truths, data):
    """Duplicates, boxes elsewhere and wrong labels must cost wherever they are listed."""
    found = data.draw(st.lists(st.sampled_from(truths), unique=True))
    copies = st.sampled_from(found or [Object("cat", (900, 900, 950, 950))])
    wrong = st.builds(lambda o: Object("cow", o.box), st.sampled_from(truths))
    elsewhere = st.builds(lambda o: Object(o.label, (600, 600, 640, 640)), st.sampled_from(truths))
    surplus = data.draw(st.lists(st.one_of(copies, wrong, elsewhere), min_size=1, max_size=4))
    more = data.draw(st.permutations(found + surplus))
    before, after = boxes.f1(found, truths), boxes.f1(more, truths)
    assert after < before or before == after == 0.0


@settings(deadline=None)  # a busy machine is no failure
@given(APART, st.data())
def test_a_smaller_box_inside_its_truth_is_worth_no_more(truths, data):
    """Tiny boxes in the middle are the safest guess where only the centre counts."""
    label, (x1, y1, x2, y2) = truths[0].label, truths[0].box
    left, right = data.draw(st.integers(0, (x2 - x1) // 3)), data.draw(st.integers(0, (x2 - x1) // 3))
    inside = (x1 + left, y1, x2 - right, y2)
    smaller = (inside[0], y1 + data.draw(st.integers(0, (y2 - y1) // 3)), inside[2], y2)
    worth = [boxes.f1([Object(label, box), *truths[1:]], truths) for box in (truths[0].box, inside, smaller)]
    assert worth == sorted(worth, reverse=True)
    assert boxes.iou(smaller, truths[0].box) <= boxes.iou(inside, truths[0].box)
