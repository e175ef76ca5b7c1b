"""The sampler: epochs, resuming, a limited pool."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlrl.samplers import Shuffled

SIZES = st.integers(1, 40)
DRAWS = st.lists(st.integers(1, 50), min_size=1, max_size=10)


@given(SIZES, DRAWS, st.integers(0, 9))
def test_every_sample_comes_once_per_epoch(n, draws, seed):
    """Some samples would be trained on twice as often as others."""
    sampler = Shuffled(n, seed)
    drawn = [i for count in draws for i in sampler.draw(count)]
    assert len(drawn) == sum(draws)
    for start in range(0, len(drawn), n):
        epoch = drawn[start : start + n]
        assert max(Counter(epoch).values()) == 1
        assert set(epoch) == set(range(n)) or len(epoch) < n


@given(SIZES, DRAWS, DRAWS, st.integers(0, 9))
def test_a_resumed_sampler_goes_on_exactly(n, before, after, seed):
    """A resumed run would train on other samples than an unbroken one."""
    whole = Shuffled(n, seed)
    for count in before:
        whole.draw(count)
    resumed = Shuffled(n, seed)
    resumed.load_state_dict(json.loads(json.dumps(whole.state_dict())))
    assert [whole.draw(count) for count in after] == [resumed.draw(count) for count in after]


@given(SIZES, st.integers(1, 60))
def test_a_limit_keeps_to_the_first_samples(n, limit):
    """Methods with per-prompt state need a small pool that recurs."""
    sampler = Shuffled(n, 0, limit=limit)
    assert set(sampler.draw(3 * n)) == set(range(min(n, limit)))
    assert sampler.n == min(n, limit)


@pytest.mark.parametrize("change", [{"seed": 1}, {"epoch": 1}])
def test_seeds_and_epochs_differ(change):
    """Every epoch, or every run, would see the samples in one order."""
    sampler = Shuffled(100, change.get("seed", 0))
    if "epoch" in change:
        sampler.draw(100)
    assert sampler.draw(100) != Shuffled(100, 0).draw(100)
