"""The hook that changes a coefficient with the steps."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlrl.algorithms.auxiliary_losses import entropy, kl
from vlrl.algorithms.policy_losses import ppo_clip
from vlrl.algorithms.schedules import Schedule
from vlrl.methods import bind
from vlrl.types import UserError


class Updater:
    """Of an updater, what this hook changes."""

    def __init__(self, *terms):
        self.terms = list(terms)


def made(**options) -> tuple[Schedule, Updater]:
    clip = bind("losses", ppo_clip, {"low": 0.2, "high": 0.2})
    updater = Updater(clip, bind("losses", kl, {"kind": "k3", "coef": 0.5}), bind("losses", entropy, {"coef": 0.1}))
    return Schedule(
        None, None, updater, 0, **({"loss": "kl", "start": 0.04, "end": 0.0, "steps": 10} | options)
    ), updater


@pytest.mark.parametrize(
    ("shape", "expected"),
    [  # 0.04 + (0 - 0.04) s(t), t = step / 10: by hand
        ("linear", [0.04, 0.04 - 0.04 * 0.25 * 10 / 10, 0.02, 0.0]),
        ("cosine", [0.04, 0.04 - 0.04 * (1 - math.cos(math.pi / 4)) / 2, 0.02, 0.0]),
    ],
)
def test_values_are_those_of_the_formula(shape, expected):
    """A coefficient would be another one than the recipe says."""
    hook, _ = made(shape=shape, steps=8)
    assert [hook.value(step) for step in (0, 2, 4, 8)] == pytest.approx(expected, abs=1e-15)


@given(st.integers(0, 40), st.integers(1, 20), st.integers(0, 10), st.sampled_from(["linear", "cosine"]))
def test_values_lie_between_the_ends(step, steps, after, shape):
    """A coefficient would overshoot, or never arrive."""
    hook, _ = made(start=-1.0, end=2.0, steps=steps, after=after, shape=shape)
    assert -1.0 <= hook.value(step) <= hook.value(step + 1) <= 2.0
    assert hook.value(after) == -1.0 and hook.value(after + steps) == 2.0


def test_only_the_named_term_changes_and_keeps_its_other_options():
    """The clip, or the kind of the KL, would fall back to its default."""
    hook, updater = made()
    before = updater.terms
    hook.on_step_begin(5)
    first, second, third = updater.terms
    assert (first, third) == (before[0], before[2])
    assert second.function is kl and second.options == {"kind": "k3", "coef": 0.02}
    assert hook.metrics == {"schedule/kl.coef": 0.02}
    hook.on_step_begin(10)
    assert updater.terms[1].options["coef"] == 0.0  # in any order of steps: it hangs on the step alone
    hook.on_step_begin(0)
    assert updater.terms[1].options["coef"] == 0.04


def test_any_option_that_is_a_number_may_change():
    """A clip range that widens is a schedule as well."""
    hook, updater = made(loss="ppo_clip", option="high", start=0.2, end=0.4, steps=2)
    hook.on_step_begin(1)
    assert updater.terms[0].options == {"low": 0.2, "high": pytest.approx(0.3)}


@pytest.mark.parametrize(
    ("options", "named"), [({"loss": "klx"}, "ppo_clip, kl, entropy"), ({"option": "cof"}, "'cof'")]
)
def test_a_term_or_option_that_is_not_there_is_named(options, named):
    """A schedule of nothing would run for days without effect."""
    with pytest.raises(UserError, match=named):
        made(**options)
