"""Recorded episodes as overlapping chunks: what each one began with, led to and earned."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlrl.offpolicy.base import windows


def episode(ticks: int) -> tuple[np.ndarray, np.ndarray]:
    """States 0, 1, ..., T and controls 10, 11, ..., so that each tells its tick."""
    return np.arange(ticks + 1.0)[:, None], 10 + np.arange(float(ticks))[:, None]


def test_windows_worked_by_hand():
    """Four ticks in chunks of three, won at the last: what reaches beyond the end repeats the last control."""
    made = windows(*episode(4), 3, won=True, ended=True, paid=np.array([1.0, 2.0, 4.0, 8.0]))
    assert made.action[..., 0].tolist() == [[10, 11, 12], [11, 12, 13], [12, 13, 13], [13, 13, 13]]
    assert made.state[:, 0].tolist() == [0, 1, 2, 3] and made.next_state[:, 0].tolist() == [3, 4, 4, 4]
    assert made.terminal.tolist() == [False, True, True, True] and made.reward.tolist() == [0, 1, 1, 1]
    assert made.used.tolist() == pytest.approx([1, 1, 2 / 3, 1 / 3]) and made.ticks().tolist() == [3, 3, 2, 1]
    assert made.paid.tolist() == [7, 14, 12, 8] and not made.person.any()


@given(st.integers(1, 12), st.integers(1, 6), st.booleans(), st.booleans())
def test_every_window_leads_where_its_ticks_lead(ticks, chunk, won, ended):
    """A value would be learned of a state that the action does not lead to."""
    made = windows(*episode(ticks), chunk, won=won, ended=ended)
    assert len(made) == ticks
    assert (made.next_state[:, 0] - made.state[:, 0]).tolist() == made.ticks().tolist()
    assert (made.terminal == (ended & (made.next_state[:, 0] == ticks))).all()
    assert (made.reward == won * (made.next_state[:, 0] == ticks)).all()
    first = made.action[:, 0, 0] - 10
    assert (first == made.state[:, 0]).all()


def test_a_time_out_is_no_end_and_a_person_is_told():
    """A recording that just stops must not teach that its last state is worth nothing."""
    made = windows(*episode(3), 2, won=False, ended=False, person=np.array([False, True, True]))
    assert not made.terminal.any() and not made.reward.any() and made.person.tolist() == [False, True, True]
    for states, controls in ((np.zeros((3, 1)), np.zeros((3, 1))), (np.zeros((1, 1)), np.zeros((0, 1)))):
        with pytest.raises(ValueError, match="one more is needed"):
            windows(states, controls, 2, won=False, ended=False)
