"""Rewards for boxes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewards import boxes

SIDES = st.integers(0, 60)
BOXES = st.builds(lambda x, y, w, h: (x, y, x + w, y + h), SIDES, SIDES, st.integers(1, 40), st.integers(1, 40))


@given(BOXES, BOXES)
def test_iou_is_symmetric_and_counts_pixels(first, second):
    """Boxes of whole numbers are sets of pixels: the share of those in both."""
    sets = [{(x, y) for x in range(b[0], b[2]) for y in range(b[1], b[3])} for b in (first, second)]
    assert boxes.iou(first, second) == boxes.iou(second, first)
    assert boxes.iou(first, second) == pytest.approx(len(sets[0] & sets[1]) / len(sets[0] | sets[1]))


@given(BOXES, BOXES)
def test_only_the_truth_has_all_edges_right(first, second):
    """Otherwise another box would be taught."""
    size = (100, 100)
    assert boxes.edges(first, first, size) == 1.0
    assert (boxes.edges(first, second, size) == 1.0) == (first == second)
    assert boxes.edges(first, second, size) == boxes.edges(second, first, size)


def test_boxes_without_area_and_far_edges_are_worth_nothing():
    """Degenerate boxes are the cheapest to write."""
    assert boxes.iou((5, 5, 5, 5), (0, 0, 9, 9)) == boxes.iou((9, 9, 0, 0), (0, 0, 9, 9)) == 0.0
    assert boxes.edges((0, 0, 110, 9), (0, 0, 9, 9), (100, 100)) == boxes.edges((0, 0, 9, 9), (0, 0, 9, 9), (0, 9)) == 0
