"""The replay that fills silent groups with those that teach most."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vlrl.contrib.replay_mixing import Vspo
from vlrl.types import Episode, Observation, Sample, TrainingEpisode

SAMPLE = Sample("q", Observation(()))


def lessons(*groups: list[float]) -> list[TrainingEpisode]:
    """Groups of episodes with these rewards; credits are what each is above the mean."""
    made = []
    for number, rewards in enumerate(groups):
        mean = sum(rewards) / len(rewards)
        for reward in rewards:
            made.append(TrainingEpisode(Episode(SAMPLE, number, reward=reward), (torch.full((3,), reward - mean),)))
    return made


def told(mixed: list[TrainingEpisode]) -> dict[int, list[float]]:
    found: dict[int, list[float]] = {}
    for lesson in mixed:
        found.setdefault(lesson.episode.group, []).append(lesson.advantages[0][0].item())
    return found


def test_silent_groups_become_copies_that_count_less():
    """By hand, decay 0.5: the first copy has half the advantages, the second a quarter; the group itself all."""
    part = Vspo(None, None, 0, decay=0.5)
    mixed = part(lessons([1.0, 1.0], [0.0, 1.0], [0.0, 0.0]), 0)
    assert told(mixed) == {0: [-0.25, 0.25], 1: [-0.5, 0.5], 2: [-0.125, 0.125]}
    assert part.metrics == {"vspo/replaced": pytest.approx(2 / 3), "vspo/copies": 2.0}
    assert [lesson.episode.reward for lesson in mixed] == [0.0, 1.0] * 3


def test_values_are_drawn_as_worked_out_by_hand():
    """best 1: rewards 0 0 0 1: (1 - .25) * sqrt(3)/4 = .324760; 0 1 1 1: .25 * sqrt(3)/4 = .108253: 3 to 1."""
    hard, easy, silent = [0.0, 0.0, 0.0, 1.0], [0.0, 1.0, 1.0, 1.0], [1.0] * 4
    part = Vspo(None, None, 0)
    assert part._value(lessons(hard), {0: lessons(hard)}) == pytest.approx(0.324760, abs=1e-6)
    given_best = Vspo(None, None, 0, best=2.0)
    assert given_best._value(lessons(easy), {}) == pytest.approx((2 - 0.75) * 3**0.5 / 4)
    drawn = [
        part._draw_groups({0: lessons(hard), 1: lessons(easy), 2: lessons(silent)}, 1, step)[0] for step in range(600)
    ]
    assert drawn.count(0) / 600 == pytest.approx(0.75, abs=0.05) and 2 not in drawn


@given(st.lists(st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=2, max_size=4), min_size=1, max_size=8),
       st.floats(0, 1), st.integers(0, 9))  # fmt: skip
def test_a_step_keeps_its_groups_and_no_group_rules_it(groups, decay, step):
    """A prompt that is copied often would turn the update alone, or a step shrink."""
    before = lessons(*groups)
    after = Vspo(None, None, 3, decay=decay)(before, step)
    assert list(told(after)) == list(range(len(groups)))
    again = Vspo(None, None, 3, decay=decay)(lessons(*groups), step)
    assert told(after) == told(again)  # known from the step's number alone: a resumed run goes on exactly
    if not any(len(set(rewards)) > 1 for rewards in groups):
        assert told(after) == told(before)
    weight = sum(abs(value) for each in told(after).values() for value in each)
    whole = sum(abs(value) for each in told(before).values() for value in each)
    assert decay == 1 or weight <= whole / (1 - decay) + 1e-4


def test_demonstrations_are_not_replaced():
    """What is to be imitated has no advantage, and would be thrown away for that."""
    shown = [TrainingEpisode(Episode(SAMPLE, 5, reward=1.0, is_demonstration=True), (torch.zeros(3),))]
    mixed = Vspo(None, None, 0)([*shown, *lessons([0.0, 1.0], [0.0, 0.0])], 0)
    assert [lesson.episode.is_demonstration for lesson in mixed] == [True] + [False] * 4
    assert sorted(told(mixed)) == [0, 1, 5] and any(told(mixed)[1])
