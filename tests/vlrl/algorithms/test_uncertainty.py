"""The sampler that draws what is not yet known to be solved or hopeless."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlrl.algorithms.advantages import batch_norm
from vlrl.algorithms.curriculum import Uncertainty
from vlrl.algorithms.single_rollout import BetaTracker
from vlrl.methods import PromptTracker
from vlrl.types import Observation, Sample, UserError

SAMPLES = [Sample(f"q/{i}", Observation(())) for i in range(20)]


class Known(PromptTracker):
    """A tracker whose values are given."""

    def __init__(self, values: list[float], seen: float = 1.0):
        self.values, self.seen = {f"q/{i}": value for i, value in enumerate(values)}, seen

    def value(self, key: str) -> float:
        return self.values[key]

    def weight(self, key: str) -> float:
        return self.seen


def sampler_of(values: list[float], seed: int = 0, **options) -> Uncertainty:
    made = Uncertainty(len(values), seed, **options)
    made.follow(SAMPLES, [batch_norm, Known(values)])
    return made


def test_shares_equal_the_worked_example(golden, near):
    """The curriculum would be another one than SPO's."""
    inputs, outputs = golden("spo_tracker_sampler")
    near(sampler_of(inputs["values"]).shares(), outputs["sample_prob"])


VALUES = st.lists(st.floats(-1, 2), min_size=1, max_size=20)


@given(VALUES, st.floats(1e-3, 10), st.floats(0, 2))
def test_every_sample_keeps_a_chance(values, eps, gamma):
    """A prompt that failed at first would never be asked again."""
    shares = sampler_of(values, eps=eps, gamma=gamma).shares()
    assert np.isfinite(shares).all() and shares.sum() == pytest.approx(1.0)
    assert (shares > 0).all() and shares.min() / shares.max() >= eps / (eps + 0.5) - 1e-9


@given(VALUES, st.integers(1, 45), st.integers(0, 5))
def test_none_is_drawn_twice_while_others_are_left(values, count, seed):
    """A step would spend its budget on one prompt."""
    drawn = sampler_of(values, seed).draw(count)
    assert len(drawn) == count
    for start in range(0, count, len(values)):
        part = drawn[start : start + len(values)]
        assert len(set(part)) == len(part) and set(part) <= set(range(len(values)))


def test_uncertain_prompts_come_more_often():
    """Asking what is always solved teaches nothing."""
    sampler = sampler_of([1.0] * 10 + [0.5] * 10)
    drawn = [i for _ in range(300) for i in sampler.draw(2)]
    even = sum(i >= 10 for i in drawn) / len(drawn)
    assert 0.85 < even < 0.97  # 0.55 / 0.60 = 0.917 of first draws


def test_seldom_seen_prompts_come_more_often_with_gamma():
    """`gamma` would do nothing, or the opposite."""
    tracker = BetaTracker(eta="fixed")
    tracker.counts = {"q/0": (50.0, 50.0), "q/1": (0.5, 0.5)}
    sampler = Uncertainty(2, 0, gamma=0.5)
    sampler.follow(SAMPLES, [tracker])
    assert sampler.shares() == pytest.approx(np.array([0.05 + 0.05, 0.5 + 0.05]) / 0.65)


def test_values_are_those_of_the_moment():
    """The draw would go by what was known when the run began."""
    tracker = BetaTracker(eta="fixed")
    sampler = Uncertainty(2, 0)
    sampler.follow(SAMPLES, [tracker])
    assert sampler.shares() == pytest.approx([0.5, 0.5])
    tracker.counts["q/0"] = (8.0, 0.0)
    assert sampler.shares() == pytest.approx([0.05 / 0.6, 0.55 / 0.6])


def test_samples_of_a_bucket_share_its_value():
    """Scenes of one kind would each count as unseen for ever."""
    tracker = BetaTracker(eta="fixed")
    tracker.counts["hard"] = (0.0, 8.0)
    sampler = Uncertainty(3, 0)
    sampler.follow([Sample(str(i), Observation(()), bucket="hard" if i else "") for i in range(3)], [tracker])
    assert sampler.shares() == pytest.approx([0.55 / 0.65, 0.05 / 0.65, 0.05 / 0.65])


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.lists(st.integers(1, 9), min_size=1, max_size=6))
def test_a_resumed_sampler_goes_on_exactly(before, after):
    """A resumed run would train on other samples than an unbroken one."""
    values = [0.0, 0.2, 0.5, 0.9, 1.0, 0.5]
    whole, resumed = sampler_of(values, 3), sampler_of(values, 3)
    for count in before:
        whole.draw(count)
    resumed.load_state_dict(json.loads(json.dumps(whole.state_dict())))
    assert [whole.draw(count) for count in after] == [resumed.draw(count) for count in after]


def test_steps_and_seeds_differ():
    """Every step, or every run, would ask the same prompts."""
    sampler, values = sampler_of([0.5] * 20), [0.5] * 20
    first = sampler.draw(10)
    assert first != sampler.draw(10) and first != sampler_of(values, seed=1).draw(10)


def test_a_limit_keeps_to_the_first_samples():
    """Prompts must recur, or the values never come true."""
    sampler = sampler_of([0.5] * 20, limit=4)
    assert set(sampler.draw(12)) == set(sampler.positions) == {0, 1, 2, 3}


def test_without_a_tracker_it_is_refused():
    """The draw would be uniform under the name of a curriculum."""
    with pytest.raises(UserError, match=r"sampler: uncertainty .* add spo_tracker or beta_tracker to advantages"):
        Uncertainty(3, 0).follow(SAMPLES, [batch_norm])
