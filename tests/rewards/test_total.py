"""No value that a model's answer can hold makes a reward raise, leave its range or become no number."""

from __future__ import annotations

import inspect
import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rewards import RANGES
from rewards.parse import Object
from vlrl import registry

NUMBERS = st.one_of(
    st.integers(), st.just(10**400), st.just(-(10**400)), st.floats(), st.booleans(),
    st.sampled_from([0, 1, 0.5, 1e308, 10**99]),
)  # fmt: skip
LEAVES = st.one_of(st.none(), NUMBERS, st.text(max_size=20), st.just("500"))
JSON = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(), inner), max_leaves=8)
LISTS = st.lists(LEAVES, max_size=5) | st.lists(st.lists(NUMBERS, max_size=3), max_size=3)
BOXES = st.lists(NUMBERS, min_size=4, max_size=4) | st.lists(NUMBERS, min_size=2, max_size=2).map(tuple)
OBJECTS = st.lists(st.builds(Object, st.text(max_size=3) | LEAVES, BOXES) | JSON, max_size=3)
ANY = st.one_of(JSON, LISTS, BOXES, OBJECTS)
REWARDS = registry.rewards()


@pytest.mark.parametrize("name", REWARDS)
@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_any_value_earns_a_number_of_the_range(name, data):
    """One answer such as `[null, 1]` would end a run of days, or poison a group's mean with NaN."""
    reward = REWARDS[name]
    parameters = inspect.signature(reward).parameters
    optional = [n for n, p in parameters.items() if p.default is not inspect.Parameter.empty]
    left = {"read", *data.draw(st.sets(st.sampled_from(optional)) if optional else st.just(set()), label="left out")}
    value = reward(**{n: data.draw(ANY, label=n) for n in parameters if n not in left})
    low, high = RANGES[name]
    assert isinstance(value, int | float | np.floating) and math.isfinite(value)
    assert low <= value <= high


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("boxes.in_box", (["500", "500"], [0, 0, 999, 999])), ("boxes.closeness", (math.nan, 3)),
        ("boxes.exact_count", (True, 1)), ("gui.gui_odyssey_click", ("[500, 500]", [500, 500])),
        ("boxes.iou", ([0, 0, None, 1], [0, 0, 1, 1])), ("intervals.tiou", (None, (0, 1))),
    ],
)  # fmt: skip
def test_other_kinds_than_declared_earn_nothing(name, arguments):
    """Text would be taken for numbers, or stop the run."""
    assert REWARDS[name](*arguments) == 0.0
