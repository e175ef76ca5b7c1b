"""Rewards for brevity."""

import pytest

from rewards.lengths import dast


def test_dast_equals_the_worked_examples():
    """Results of the published trainer, with each completion's own length."""
    assert dast([3, 3, 3, 3], [10, 20, 30, 40]) == pytest.approx([0.8, 0.6, 0.4, 0.2])
    assert dast([3, 3, 2, 0], [10, 20, 30, 40])[1] == pytest.approx(7 / 11)
    assert dast([0, 0, 0, 0], [10, 20, 30, 40]) == pytest.approx([-0.775, -0.55, -0.325, -0.1])
    assert dast([3, 0, 0, 0], [500, 5, 5, 5]) == pytest.approx([0.5, -0.991, -0.991, -0.991])


def test_shorter_right_answers_gain_more():
    """With padded rows, as published, all lengths are equal and nothing is learned about brevity."""
    terms = dast([3, 3, 3, 0], [10, 20, 200, 50])
    assert terms[0] > terms[1] > terms[2] > 0 > terms[3]
    assert len(set(dast([3, 3, 3], [512, 512, 512]))) == 1


def test_empty_completions_have_no_budget():
    """A group that writes nothing would divide by zero."""
    assert dast([3, 0], [0, 0]) == [0.5, -0.1]


@pytest.mark.parametrize(("rewards", "lengths"), [([], []), ([3.0], [1, 2])])
def test_one_length_a_reward(rewards, lengths):
    """A shifted list would pay one completion for another."""
    with pytest.raises(ValueError, match="one length a reward"):
        dast(rewards, lengths)
