"""The published detection rewards of the study: the faults that the figure shows must be theirs, not ours."""

import sys
from pathlib import Path

import pytest

from rewards.boxes import f1
from rewards.parse import Object

sys.path.insert(0, str(Path(__file__).parents[2] / "bench" / "learn"))  # scripts, not a package

from detection_study import ap, recall_precision

TRUTH = (Object("cat", (10.0, 10.0, 30.0, 30.0)), Object("cat", (50.0, 40.0, 90.0, 70.0)))
SURPLUS = (*TRUTH, *(Object("cat", (float(i), 0.0, i + 5.0, 5.0)) for i in range(9)))


@pytest.mark.parametrize("reward", [ap, recall_precision])
def test_published_rewards_leave_surplus_boxes_free_and_ours_does_not(reward):
    """Otherwise the comparison would be with a straw man, or there would be nothing to compare."""
    assert reward(TRUTH, TRUTH, (0.5,)) == pytest.approx(1)
    assert reward(SURPLUS, TRUTH, (0.5,)) == pytest.approx(1)
    assert f1(SURPLUS, TRUTH) < 0.5


def test_progressive_rules_pay_nothing_below_their_bar():
    """The refined rules are what the third arm of the study tests."""
    near = (Object("cat", (10.0, 10.0, 30.0, 26.0)), Object("cat", (50.0, 40.0, 90.0, 64.0)))  # IoU 0.8
    assert recall_precision(near, TRUTH, (0.5, 0.75)) == pytest.approx(1)
    assert recall_precision(near, TRUTH, (0.75, 0.9)) == pytest.approx((1 + 0.8) / 2)
    assert recall_precision(near, TRUTH, (0.85, 0.9)) == 0
