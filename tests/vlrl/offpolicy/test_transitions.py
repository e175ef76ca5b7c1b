"""What off-policy learning remembers: rows that belong together, rings that forget the oldest, files that come back."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlrl.offpolicy.base import ReplayBuffer, Transitions, concat
from vlrl.types import UserError


def rows(first: int, count: int, *, state: int = 2, chunk: int = 3, controls: int = 2) -> Transitions:
    """Transitions whose every column tells their number."""
    number = np.arange(first, first + count, dtype=np.float32)
    wide = number[:, None] + np.zeros((1, state), np.float32)
    return Transitions(
        state=wide, action=number[:, None, None] + np.zeros((1, chunk, controls), np.float32), reward=number,
        terminal=number % 2 == 0, next_state=wide + 1, used=np.ones(count), person=number % 3 == 0, paid=-number,
    )  # fmt: skip


def numbers(transitions: Transitions) -> list[int]:
    """The rows' numbers; every column must tell the same."""
    found = transitions.reward.astype(int)
    assert (transitions.state == found[:, None]).all() and (transitions.action == found[:, None, None]).all()
    assert (transitions.next_state == found[:, None] + 1).all() and (transitions.paid == -found).all()
    assert (transitions.terminal == (found % 2 == 0)).all() and (transitions.person == (found % 3 == 0)).all()
    return found.tolist()


@given(st.integers(1, 12), st.lists(st.integers(1, 30), min_size=1, max_size=6))
def test_the_ring_holds_the_latest_in_order(capacity, sizes):
    """An agent would learn from a state of one decision and the action of another, or from what is long gone."""
    replay, first = ReplayBuffer(capacity), 0
    for size in sizes:
        replay.add(rows(first, size))
        first += size
    assert numbers(replay.all()) == list(range(max(0, first - capacity), first)) and len(replay) == min(first, capacity)
    drawn = numbers(replay.sample(50, np.random.default_rng(0)))
    assert len(drawn) == 50 and set(drawn) <= set(numbers(replay.all()))


@given(st.integers(1, 9), st.integers(0, 25), st.integers(1, 12))
def test_a_saved_ring_goes_on_as_if_it_had_not_been(tmp_path_factory, capacity, before, after):
    """A resumed run would draw other batches, or overwrite what is newest."""
    path = tmp_path_factory.mktemp("kept") / "replay.npz"
    kept, loaded = ReplayBuffer(capacity), ReplayBuffer(capacity)
    if before:
        kept.add(rows(0, before))
    kept.save(path)
    loaded.load(path)
    for replay in (kept, loaded):
        replay.add(rows(before, after))
    assert numbers(kept.all()) == numbers(loaded.all())
    drawn = [numbers(replay.sample(20, np.random.default_rng(1))) for replay in (kept, loaded)]
    assert drawn[0] == drawn[1]


def test_draws_are_even():
    """What is old, or at the ring's seam, would be learned from more often."""
    replay = ReplayBuffer(10)
    replay.add(rows(0, 13))
    counts = np.bincount(numbers(replay.sample(20_000, np.random.default_rng(0))), minlength=13)
    assert counts[:3].sum() == 0 and abs(counts[3:] - 2000).max() < 250  # 5.9 standard deviations of 42


@pytest.mark.parametrize("text", [b"", b"no archive", b"PK\x03\x04 cut short"])
def test_a_damaged_file_is_one_line(tmp_path, text):
    """A power cut must lead to an earlier checkpoint, not to a traceback."""
    path = tmp_path / "replay.npz"
    path.write_bytes(text)
    with pytest.raises(UserError, match="damaged"):
        ReplayBuffer(4).load(path)
    with pytest.raises(UserError, match=r"missing\.npz is damaged"):
        ReplayBuffer(4).load(tmp_path / "missing.npz")


def test_a_ring_of_another_size_is_refused(tmp_path):
    """Changed in the run's config, capacity would mix old rows with new ones."""
    kept = ReplayBuffer(4)
    kept.add(rows(0, 6))
    kept.save(tmp_path / "replay.npz")
    with pytest.raises(UserError, match="capacity 4"):
        ReplayBuffer(8).load(tmp_path / "replay.npz")
    assert list(tmp_path.iterdir()) == [tmp_path / "replay.npz"]


def test_the_discount_counts_ticks():
    """gamma 0.5, K = 4. Whole chunk: 0.5^4 = 0.0625; half: 0.5^2 = 0.25; terminal: 0, however little was used."""
    made = Transitions(
        np.zeros((3, 1)), np.zeros((3, 4, 1)), np.zeros(3), np.array([False, False, True]), np.zeros((3, 1)),
        np.array([1.0, 0.5, 0.25]), np.zeros(3),
    )  # fmt: skip
    assert made.discount(0.5).tolist() == [0.0625, 0.25, 0.0] and made.ticks().tolist() == [4, 2, 1]
    assert made.paid.tolist() == [0.0, 0.0, 0.0] and made.person.dtype == np.bool_


@given(st.lists(st.integers(0, 8), min_size=1, max_size=8))
def test_taking_and_joining_keep_rows_together(indices):
    """A person's steps would be filed with the wrong actions."""
    made = rows(0, 9)
    assert numbers(made.take(indices)) == indices
    assert numbers(made.take(made.person)) == [0, 3, 6]
    assert numbers(concat([made.take(indices), rows(9, 2)])) == [*indices, 9, 10]


def test_columns_that_do_not_belong_together_are_refused():
    """A source's mistake would show as a shape error deep in a network, or not at all."""
    made = rows(0, 4).columns()
    for wrong in ({"reward": np.zeros(3)}, {"action": np.zeros((4, 2))}, {"terminal": np.zeros((4, 1))}):
        with pytest.raises(ValueError, match="do not belong together"):
            Transitions(**made | wrong)
    with pytest.raises(ValueError, match="empty"):
        ReplayBuffer(3).sample(1, np.random.default_rng(0))
