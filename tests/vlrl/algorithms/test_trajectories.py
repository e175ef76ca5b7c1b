"""What samplers learn of the courses of samples over epochs: LIMR's alignment, SwS's weaknesses."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlrl.algorithms.curriculum import Limr, Sws, Trajectories, alignment, failed, filled
from vlrl.types import Episode, Observation, Sample, Score, UserError

KINDS = ("icon", "text")


def samples(n: int) -> list[Sample]:
    return [Sample(f"q/{i}", Observation(()), tags={"type": KINDS[i % 2]}) for i in range(n)]


def tried(sampler, drawn: list[int], correct: dict[int, float], n: int) -> None:
    """Two rollouts of each drawn sample."""
    of = samples(n)
    sampler.observe([
        Episode(of[i], g, score=Score({}, correct.get(i, 0.0))) for g, i in enumerate(drawn) for _ in range(2)
    ])  # fmt: skip


def test_alignment_equals_the_worked_example():
    """By hand: courses (0, .5, 1) and (1, .5, 0) have the mean (.5, .5, .5): 1 - (.25 + 0 + .25) / .75 = 1/3 each.
    With (0, 0, 1), (0, 1, 1): mean (0, .5, 1), room 1 + .25: 1 - .25 / 1.25 = .8 each."""
    assert alignment({3: [0.0, 0.5, 1.0], 5: [1.0, 0.5, 0.0]}) == pytest.approx({3: 1 / 3, 5: 1 / 3})
    assert alignment({0: [0.0, 0.0, 1.0], 1: [0.0, 1.0, 1.0]}) == pytest.approx({0: 0.8, 1: 0.8})
    assert alignment({0: [1.0, 1.0]}) == {0: 0.0} and alignment({}) == {}


@given(st.lists(st.lists(st.floats(0, 1), min_size=3, max_size=3), min_size=1, max_size=8))
def test_the_average_course_itself_is_aligned_best(courses):
    """The score would not measure nearness to the average."""
    mean = [sum(values) / len(courses) for values in zip(*courses, strict=True)]
    scores = alignment(dict(enumerate([*courses, mean])))
    assert max(scores.values()) <= 1 + 1e-9
    assert scores[len(courses)] == pytest.approx(max(scores.values()), abs=1e-9)


def test_a_weakness_was_never_half_right_and_falls():
    """What is being learned, or was never possible, would be drilled in the place of what is lost."""
    assert failed([0.4, 0.3, 0.1]) and failed([0.25, 0.0])
    assert not failed([0.1, 0.3, 0.4])  # it rises
    assert not failed([0.0, 0.0, 0.0])  # it does not fall
    assert not failed([0.5, 0.1, 0.0])  # it was half right once
    assert not failed([0.2])


def test_gaps_are_filled_with_what_came_next():
    """A sample that a strategy left out once would be lost for the choice."""
    assert filled([None, 0.5, None, None, 1.0, None]) == [0.5, 0.5, 1.0, 1.0, 1.0, None]
    noted = Trajectories(3, 0)
    noted.order.epoch = 3
    noted.noted = {0: [0.0, None, 1.0], 1: [1.0, 0.5], 2: [0.5, 0.5, 0.5, 0.0]}
    assert noted.complete() == {0: [0.0, 1.0, 1.0], 2: [0.5, 0.5, 0.5]}
    assert noted.complete(2) == {0: [1.0, 1.0], 2: [0.5, 0.5]}


def test_epochs_are_noted_as_they_went():
    """Rollouts at an epoch's end would count for the wrong epoch."""
    sampler = Limr(6, 3, limit=4)
    sampler.follow(samples(6), [])
    courses: dict[int, list[float]] = {i: [] for i in range(4)}
    for step in range(8):  # 3 a step: epochs end within steps
        drawn = sampler.draw(3)
        correct = {i: (i + step) % 3 / 2 for i in drawn}
        tried(sampler, drawn, correct, 6)
        for i in drawn:
            courses[i].append(correct[i])
    assert sampler.trajectories.epochs == 6 and sampler.trajectories.complete() == courses
    scores = alignment(courses)
    kept = sum(score >= 0.6 for score in scores.values()) / 4
    assert sampler.metrics == {"limr/epochs": 6.0, "limr/kept": kept}


def weak(n: int = 40, **options) -> Sws:
    """A sampler whose policy gets worse at texts."""
    sampler = Sws(n, 3, **{"tag": "type", "limit": 8, "epochs": 3} | options)
    sampler.follow(samples(n), [])
    for epoch in range(3):
        drawn = sampler.draw(8)
        assert set(drawn) == set(range(8)) == set(sampler.positions)
        tried(sampler, drawn, {i: 0.4 - 0.1 * epoch if i in (1, 3) else 0.9 for i in drawn}, n)
    return sampler


def test_weak_kinds_get_new_samples():
    """The policy would go on failing at the same kind, with the same few questions."""
    sampler = weak(share=0.25)
    assert sampler.shares() == {"text": 1.0}
    drawn = []
    for step in range(9):
        drawn.append(sampler.draw(8))
        tried(sampler, drawn[-1], {i: 0.2 - 0.01 * step if i in (1, 3) else 0.9 for i in drawn[-1]}, 40)
    new = [[i for i in step if i >= 8] for step in drawn]
    assert all(len(step) == 2 for step in new) and sampler.metrics == {"sws/new": 0.25, "sws/text": 1.0}
    assert [i for step in new for i in step] == [*range(9, 40, 2), 9, 11]  # in order, then over again
    pool = Counter(i for step in drawn for i in step if i < 8)
    assert sum(pool.values()) == 9 * 6 and set(pool) == set(range(8))


def test_kinds_are_weighed_by_their_share_of_weaknesses():
    """By hand: 2 of 4 texts and 1 of 4 icons fail: 2/3 and 1/3."""
    sampler = weak()
    courses = {i: [0.4, 0.2, 0.1] if i in (1, 3, 4) else [0.9] * 3 for i in range(8)}
    sampler.pool.noted = courses
    assert sampler.shares() == pytest.approx({"text": 2 / 3, "icon": 1 / 3})


def test_without_a_weakness_or_a_sample_of_its_kind_the_pool_goes_on():
    """The run would stop, or draw what nobody asked for."""
    strong = weak()
    strong.pool.noted = {i: [0.0, 0.5, 1.0] for i in range(8)}
    assert set(strong.draw(8)) == set(range(8)) and strong.metrics == {"sws/new": 0.0}
    lost = Sws(10, 3, tag="type", limit=8, epochs=2)
    lost.follow([*samples(8), *samples(10)[8::2] * 2], [])  # icons alone behind the pool
    lost.pool.order.epoch, lost.pool.noted = 2, {1: [0.4, 0.1]}
    assert lost.shares() == {"text": 1.0} and all(i < 8 for i in lost.draw(8))


def test_a_pool_without_anything_behind_it_is_refused():
    """There would be no new samples, under the name of a method that brings them."""
    with pytest.raises(
        UserError, match=r"sampler\.limit: 512: the split has 300 samples, and new ones must lie behind"
    ):
        Sws(300, 0)


@pytest.mark.parametrize("kind", ["limr", "sws"])
@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 4)), min_size=2, max_size=12), st.data())
def test_a_resumed_sampler_goes_on_exactly(kind, steps, data):
    """A resumed run would train on other samples, or choose by other courses, than an unbroken one."""
    options = {"limr": {"limit": 5}, "sws": {"limit": 5, "epochs": 2, "tag": "type"}}[kind]
    whole, resumed = ({"limr": Limr, "sws": Sws}[kind](12, 3, **options) for _ in range(2))
    for sampler in (whole, resumed):
        sampler.follow(samples(12), [])
    cut = data.draw(st.integers(1, len(steps) - 1))
    for number, (count, outcome) in enumerate(steps):
        if number == cut:
            resumed.load_state_dict(json.loads(json.dumps(whole.state_dict())))
        both = (whole, resumed)[: 1 + (number >= cut)]
        drawn = [sampler.draw(count) for sampler in both]
        assert drawn[0] == drawn[-1]
        for sampler in both:
            tried(sampler, drawn[0], {i: outcome * 0.1 for i in drawn[0][::2]}, 12)
    assert whole.state_dict() == resumed.state_dict() and whole.metrics == resumed.metrics
