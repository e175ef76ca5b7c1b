"""Chunks that no policy can mean are not executed, whatever the governor would clip them to."""

from __future__ import annotations

import math

import numpy as np
import pytest

from robot.control.loop import Plausible, speeds
from robot.control.messages import ActionPlan
from robot.control.process import Motion
from robot.safety.limits import Safety
from robot.types import Channel
from vlrl.serving.protocol import Feature, PolicySpec, declared

CHANNELS = (Channel("pan", "deg"), Channel("grip", "%"))
DECLARED = declared(PolicySpec((), (), (Feature("pan", "deg", -20.0, 30.0), Feature("grip", "%")), 10.0, 2))


def plan(*actions, of=DECLARED):
    return ActionPlan(0, None, np.array(actions, np.float32), 10.0, math.inf, 0.0, declared=of)


@pytest.mark.parametrize(
    ("actions", "of", "good"),
    [
        (((0, 50), (75, 50)), DECLARED, True),  # within a width of the range, which the governor clips
        (((0, 50), (81, 50)), DECLARED, False),
        (((-71, 50),), DECLARED, False),
        (((0, 1e30),), DECLARED, False),  # of a number without a range: ten widths of the unit's
        (((0, -1900),), DECLARED, True),
        (((500, 50),), None, True),
        (((1e30, 50),), None, False),
        (((-1e5, 50),), None, False),
        (((math.nan, 50), (math.inf, 50)), DECLARED, True),  # the stage `finite` holds
    ],
)
def test_what_is_far_outside_the_range_is_refused(actions, of, good) -> None:
    """1e30 clipped is a full-speed motion to the joint's limit."""
    assert Plausible(CHANNELS, CHANNELS, Safety(), 10.0).admit(plan(*actions, of=of)) == good


def test_it_holds_after_as_many_in_a_row_as_are_allowed() -> None:
    """One broken answer is dropped with a warning; a policy that gives nothing else must not keep the arm waiting."""
    judge = Plausible(CHANNELS, CHANNELS, Safety.model_validate({"range": {"chunks": 2}}), 10.0)
    bad, good = plan((1e30, 0)), plan((0, 0))
    assert not judge.admit(bad) and not judge.full
    event = judge.event()
    assert (event.stage, event.reaction) == ("range", "warn") and "pan: a chunk asks for 1e+30 deg" in event.cause
    assert judge.event() is None
    assert judge.admit(good) and not judge.admit(bad) and not judge.full
    assert not judge.admit(bad) and judge.full
    assert [judge.event().reaction for _ in range(3)] == ["hold"] * 3
    assert judge.admit(good) and judge.event() is None


def test_speeds_are_judged_by_what_the_channels_may_do() -> None:
    """Policies of speeds give degrees a second, whose range is another."""
    judge = Plausible(CHANNELS, speeds(CHANNELS), Safety(), 10.0)
    assert judge.admit(plan((1200, 0), of=None)) and not judge.admit(plan((1e6, 0), of=None))


def test_a_motion_process_never_carries_one_out(eventually) -> None:
    """The arm must not go to its limits on a chunk of 1e30, and the run must say why it stopped."""
    safety = Safety.model_validate({"stale": {"hold_s": 60.0, "stop_s": 0.2}, "silence_s": 60.0})
    motion = Motion({"name": "simulated", "robot": "so101"}, safety)
    try:
        first = motion.begin(1)
        chunk = np.full((50, len(motion.info.controls)), 1e30, np.float32)
        for seq in range(3):
            motion.plan(ActionPlan(seq, None, chunk, motion.info.hz, math.inf, first.sensed.t))
        eventually(lambda: motion.latest().stopped)
        ticks = [tick for tick in motion.ticks() if tick.sent is not None]
    finally:
        assert motion.close().code == 3
    assert any(event.stage == "range" and event.reaction == "hold" for tick in ticks for event in tick.events)
    assert max(float(np.abs(tick.sent - ticks[0].sent).max()) for tick in ticks) < 1e-3
