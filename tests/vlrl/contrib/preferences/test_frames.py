"""Moments of a data set: each once, with its picture, and none both learned from and held out."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from vlrl.contrib.preferences.labelling import StateAlbum, frames_of, moments, pair_of, sample_pairs, split
from vlrl.offpolicy.base import concat, windows
from vlrl.types import Observation, UserError


def played(episodes: int, ticks: int = 9):
    """Episodes whose states tell them apart: [episode, tick]."""
    made = [np.stack([np.full(ticks + 1, float(i)), np.arange(ticks + 1.0)], 1) for i in range(episodes)]
    return concat([windows(each, np.zeros((ticks, 1)), 4, won=True, ended=True) for each in made])


def test_every_state_is_one_moment_of_its_episode():
    """Shown twice it would count twice; filed with another episode, what is held out would have been learned from."""
    given = played(3)
    frames = frames_of(given, StateAlbum())
    assert len(frames) == 3 * 10 and len(np.unique(frames.state, axis=0)) == 30
    assert all(len(set(frames.episode[frames.state[:, 0] == i])) == 1 for i in range(3))
    assert len(set(frames.episode)) == 3
    states, before, after = moments(given)
    assert np.array_equal(states[before], given.state) and np.array_equal(states[after], given.next_state)


@given(st.integers(2, 12), st.floats(0.01, 0.79), st.integers(0, 99))
def test_no_episode_is_on_both_sides(episodes, share, seed):
    """Neighbouring moments are nearly the same: agreement on held-out pairs would say nothing."""
    frames = frames_of(played(episodes), StateAlbum())
    learned, held = split(frames, share, seed)
    assert not set(frames.episode[learned]) & set(frames.episode[held])
    assert sorted([*learned, *held]) == list(range(len(frames)))
    assert len(held) <= share * len(frames) + 10 or len(held) == 10


def test_one_episode_is_too_few():
    """Measured on what was learned, any model is good."""
    with pytest.raises(UserError, match="give more episodes"):
        split(frames_of(played(1), StateAlbum()), 0.2, 0)


@given(st.integers(2, 50), st.integers(1, 40), st.integers(1, 40), st.integers(0, 9))
def test_more_pairs_begin_with_the_same(n, few, more, seed):
    """Another 500 pairs would ask the judge for all of them anew; a moment against itself would be wasted."""
    places = np.arange(100, 100 + n)
    long = sample_pairs(places, few + more, np.random.default_rng(seed))
    assert np.array_equal(sample_pairs(places, few, np.random.default_rng(seed)), long[:few])
    assert (long[:, 0] != long[:, 1]).all() and np.isin(long, places).all()


def picture(value: int) -> Image.Image:
    return Image.new("RGB", (4, 4), (value, 0, 0))


def test_a_picture_that_may_be_anothers_is_left_out():
    """Where the state leaves out the cube, a judge would be shown the cube of another scene."""
    album = StateAlbum()
    for state, value in (((0.0, 1.0), 10), ((0.0, 2.0), 20), ((0.0, 2.0), 20), ((0.0, 3.0), 30), ((0.0, 3.0), 31)):
        album.note(Observation((picture(value), "go"), np.array(state, np.float32)))
    album.note(Observation((picture(30),), np.array((0.0, 3.0), np.float32)))  # seen once more, it is no clearer
    assert album.of(np.array([-0.0, 1.0]))[0].getpixel((0, 0)) == (10, 0, 0)
    assert album.of(np.array([0.0, 3.0])) is None and album.of(np.array([9.0, 9.0])) == ()
    frames = frames_of(played(1), album)
    assert 3.0 not in frames.state[:, 1] and len(frames) == 9
    assert [len(pictures) for pictures in frames.pictures] == [0, 1, 1, 0, 0, 0, 0, 0, 0]


def test_a_pairs_name_tells_all_that_it_shows():
    """Answers about one picture would be taken for answers about another, or be lost."""
    state, other = np.zeros(2, np.float32), np.ones(2, np.float32)
    shown = [Observation((picture(1),), state), Observation((picture(2),), state), Observation((picture(1),), other)]
    keys = [pair_of(a, b).key for a in shown for b in shown]
    assert len(set(keys)) == 9
    assert pair_of(*shown[:2]).key == pair_of(Observation((picture(1), "said"), state), shown[1]).key
