"""What a reward model learns from, and what is said of it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from vlrl.imitation.datasets import DatasetEpisode
from vlrl.imitation.reward_classifier import (
    NEGATIVE,
    POSITIVE,
    UNSURE,
    Spans,
    auc,
    hard,
    labels,
    measured,
    split,
    threshold_for,
)
from vlrl.types import UserError

SPANS = Spans(near=0.2, unsure=0.3, hard=0.5)
UNIT = st.floats(0, 1, width=32)


def recorded(length: int, won: bool) -> DatasetEpisode:
    success = np.arange(length) == (length - 1 if won else -1)
    nothing = np.zeros((length, 1), np.float32)
    return DatasetEpisode(0, "", nothing, nothing, success, nothing[:, 0], np.ones(length, int), ())


def test_the_frames_before_success_are_success_then_unsure_then_not():
    """A frame that looks like success would be taught as none: the model would learn nothing of either."""
    marked = labels(recorded(10, won=True), 10.0, SPANS)
    assert marked.tolist() == [NEGATIVE] * 4 + [UNSURE] * 3 + [POSITIVE] * 3
    assert not hard(recorded(10, won=True), 10.0, SPANS).any()


def test_the_end_of_a_failure_is_learned_harder():
    """It is where a policy ends up that is taken for won and is not."""
    assert labels(recorded(10, won=False), 10.0, SPANS).tolist() == [NEGATIVE] * 10
    assert hard(recorded(10, won=False), 10.0, SPANS).tolist() == [False] * 5 + [True] * 5


@given(st.integers(6, 30), st.integers(0, 30), st.floats(0.1, 0.6), st.integers(0, 5))
def test_no_episode_is_in_two_parts_and_each_has_successes(won, lost, share, seed):
    """Frames of one episode are alike: a model measured on what it has learned from would look perfect."""
    taken = [recorded(3, place < won) for place in range(won + max(lost, 12 - won))]
    parts = split(taken, share, seed)
    assert sorted(place for part in parts for place in part) == list(range(len(taken)))
    assert all(any(taken[place].won for place in part) for part in parts)
    assert len(parts[0]) >= max(map(len, parts[1:])) or share > 0.5


def test_too_few_episodes_are_said():
    """A threshold from one success means nothing."""
    with pytest.raises(UserError, match="5 successes in 20 episodes: record at least 6 in 12"):
        split([recorded(3, place < 5) for place in range(20)], 0.4, 0)


@st.composite
def scored(draw):
    count = draw(st.integers(2, 40))
    scores = np.array(draw(st.lists(UNIT, min_size=count, max_size=count)), np.float32)
    label = np.array([NEGATIVE, POSITIVE, *draw(st.lists(st.sampled_from([-1, 0, 1]), min_size=count - 2,
                                                         max_size=count - 2))])  # fmt: skip
    return scores, label, np.array(draw(st.lists(st.integers(0, 5), min_size=count, max_size=count)))


@given(scored(), st.floats(0.01, 0.9))
def test_the_threshold_keeps_what_it_promises(frames, share):
    """RL finds every episode that is taken for won and is not."""
    threshold = threshold_for(*frames, share)
    k, n, low, high = measured(*frames, threshold)["false_success_episodes"]
    assert k <= share * n and low <= k / n <= high
    lower = np.nextafter(np.float32(threshold), np.float32(0))  # as wide as the scores
    assert threshold == 0.5 or measured(*frames, lower)["false_success_episodes"][0] > share * n - 1 or k == share * n


@given(scored())
def test_auc_is_that_of_scikit_learn(frames):
    """A number that cannot be compared with anybody else's."""
    scores, label, _ = frames
    sure = label >= 0
    theirs = roc_auc_score(label[sure], scores[sure])
    assert auc(scores[label == POSITIVE], scores[label == NEGATIVE]) == pytest.approx(theirs)
